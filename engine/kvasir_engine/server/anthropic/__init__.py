"""Anthropic's Messages API, as chats: https://docs.anthropic.com/en/api/messages."""
