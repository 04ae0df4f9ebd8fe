"""Large request bodies, read in processes of their own so that no stream waits for it.

Decoding, tokenising and hashing hold the interpreter lock of the process that does it. A body above
LARGE_BODY_BYTES is received into shared memory (`shared_body.py`), a worker process makes of it
what the API process needs (`body_workers.py`, `body_worker_process.py`; process/body_worker.py is
what runs there), and the result comes back the same way. Time and memory of a worker are bounded.
"""
