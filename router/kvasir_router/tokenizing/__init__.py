"""Prompts tokenised beside the router, for engines that do not report which text their KV is of.

A pool of processes (`tokenizer_pool.py`, `tokenizer_worker.py`) renders and tokenises prompts and
makes the reports that a Kvasir engine would send (kvasir.wire.prompt_report); `Tokenizing` decides
which prompts are tokenised, and what waits for it.
"""
