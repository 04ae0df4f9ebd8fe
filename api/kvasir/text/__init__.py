"""From chat messages to token ids without torch or transformers: tokenizer and chat template."""
