"""OpenAI's Responses API on the routes, parsers and limits of chats."""
