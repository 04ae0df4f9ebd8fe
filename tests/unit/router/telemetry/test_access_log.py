"""The access log."""

import io
import json
import os
import threading

from kvasir_router.telemetry.access_log import AccessLog, AccessRecord


def test_lines_are_json_in_order() -> None:
    output = io.BytesIO()
    log = AccessLog(output, lambda: None)
    for number in range(100):
        log.write(AccessRecord("POST", "/v1/x", 200, 1.5, number, "id", "m", "r0"))
    log.close()
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [line["bytes"] for line in lines[1:]] == list(range(1, 100))
    assert lines[5]["model"] == "m"
    assert lines[5]["time"] > 1e9


def test_a_log_that_nobody_reads_loses_lines_and_blocks_nobody() -> None:
    reader, writer = os.pipe()
    dropped = 0

    def drop() -> None:
        nonlocal dropped
        dropped += 1

    with os.fdopen(writer, "wb") as output:
        log = AccessLog(output, drop)
        for _ in range(60_000):
            log.write(AccessRecord("POST", "/v1/x" * 20, 200))
        assert dropped > 0
        drain = threading.Thread(target=_read_all, args=(reader,))
        drain.start()
        log.close(timeout=30)
    drain.join()


def _read_all(descriptor: int) -> None:
    while os.read(descriptor, 1 << 20):
        pass
    os.close(descriptor)
