"""A conversation in the terminal with any server that speaks OpenAI's API."""
