"""The chat that a body of Anthropic's Messages API stands for.

Engine and router both make it from the parsed body alone: the engine answers it, the router hashes
its text (kvasir.wire.text_chain), so they agree on which prompts share a beginning.
"""
