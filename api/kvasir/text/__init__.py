"""Tokenizer and chat template: chat messages to token ids, without torch or transformers."""
