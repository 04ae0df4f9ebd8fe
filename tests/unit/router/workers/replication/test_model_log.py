"""What the log of a foreign policy's sink keeps."""

from kvasir.wire.block_hash import HASH_BYTES
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.workers.replication.model_log import SinkLog


class Sink:
    """Knows nothing."""

    max_text_blocks = 4

    def learned(self, report) -> None:
        """BlockSink.learned."""


def test_a_sink_says_how_many_texts_are_kept_for_late_workers() -> None:
    log = SinkLog("m", Sink(), lambda *told: None, lambda: None)
    for text in range(1, 9):
        log.learned(PromptReport([text], [1], bytes(HASH_BYTES)))
    kept = [text for message in log.texts() for text in message.report.text_hashes]
    assert kept == [7, 8]
