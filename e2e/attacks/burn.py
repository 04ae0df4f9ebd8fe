"""Keep a core busy for a share of the time: python burn.py SHARE SECONDS

What an attack costs the machine, without the attack: beside it the well-behaved client's times say
what is contention.
"""

import sys
import time

SLICE = 0.02


def main(share: float, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stop = time.thread_time() + SLICE * share
        while time.thread_time() < stop:
            pass
        time.sleep(SLICE * (1 - share))


if __name__ == "__main__":
    main(min(float(sys.argv[1]), 0.98), float(sys.argv[2]))
