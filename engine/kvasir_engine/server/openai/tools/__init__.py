"""Tools of a chat: what a body says of them, and the form of calls that it asks for."""
