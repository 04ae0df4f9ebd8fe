"""gpt-oss's Harmony: its messages, and their grammars."""
