"""KV blocks that a prompt's text determines: they let a router without a tokenizer find them."""
