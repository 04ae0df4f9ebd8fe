"""OpenAI's protocol: bodies, answers and events, without a word of HTTP's transport."""
