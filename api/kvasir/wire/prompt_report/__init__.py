"""Which KV blocks a prompt's text determines: what lets a router without a tokenizer find them."""
