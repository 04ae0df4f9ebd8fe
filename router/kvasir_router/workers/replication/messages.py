"""Messages between the index process and the workers.

Replicas are named by their slot, their row in the load table. KV blocks are their own 128-bit
hashes (kvasir.wire.block_hash), 16 bytes each, little-endian; text blocks are numbers.
"""

from collections.abc import Iterable, Sequence

import msgspec

from kvasir.wire.block_hash import HASH_BYTES
from kvasir.wire.kv_events import KVEvent
from kvasir_router.discovery.specs import CanarySpec, ModelSpec, PolicySpec, Snapshot
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health, LoadStreamState
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.workers.process_stats import ProcessStats
from kvasir_router.workers.shared_memory.load_table_rows import ReplicaName

MAX_FRAME_BYTES = 32 * 2**20
BLOCKS_PER_MESSAGE = 512
"""KV or text blocks in one message: less than half a millisecond's work."""

_KEY = (1 << (8 * HASH_BYTES)) - 1


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages between the index process and the workers."""


# From the index process


class Welcome(Message, tag=0):
    """Beginning of the state as of the news with this number."""

    number: int
    fresh: bool
    """The index process has only just begun: what it does not know yet may still be so."""


class Discovered(Message, tag=1):
    """Snapshot of a discovery source: all that exists."""

    models: list[ModelSpec]
    canaries: list[CanarySpec]
    slots: dict[ReplicaName, int]
    created: dict[str, int]
    """Unix seconds, by model."""

    @property
    def snapshot(self) -> Snapshot:
        return (*self.models, *self.canaries)


class PolicyChanged(Message, tag=2):
    """A policy that was set at run time."""

    model: str
    policy: PolicySpec


class Observed(Message, tag=3):
    """A probe's verdict."""

    slot: int
    health: Health
    max_model_len: int | None
    serves: ModelIdentity | None


class Heard(Message, tag=4):
    """State of a replica's load stream."""

    slot: int
    load_stream_state: LoadStreamState


class Loaded(Message, tag=5):
    """A report of an engine's load."""

    slot: int
    report: LoadReport
    report_every: float
    kv_capacity: int


class Known(Message, tag=6):
    """End of the state needed to serve; block tables follow."""


class Held(Message, tag=7):
    """KV blocks are in the replica's cache."""

    slot: int
    group: int
    tier: str
    block_size: int
    keys: bytes


class Dropped(Message, tag=8):
    """KV blocks have left it."""

    slot: int
    group: int
    tier: str
    keys: bytes


class Cleared(Message, tag=9):
    """Nothing is known to be in it."""

    slot: int


class Learned(Message, tag=10):
    """A report of a prompt that was sent to the model."""

    model: str
    report: PromptReport
    retold: bool = False
    """It is no news to who tells it."""


class Remembered(Message, tag=11):
    """Text blocks that were sent to a replica, the oldest first: the approximate index's list."""

    slot: int
    contents: list[tuple[int, float, int]]
    """Block, when it was sent, its bytes of text."""


class EngineEvent(Message, tag=15):
    """An engine's event as it came, for sinks that have no log of their own."""

    slot: int
    event: KVEvent


class Complete(Message, tag=12):
    """That was the whole state."""


class Ask(Message, tag=13):
    """A worker's numbers are wanted."""


class MetricsText(Message, tag=14):
    """The answer to MetricsRequest."""

    question: int
    text: bytes


# From both


class Routed(Message, tag=20):
    """A prompt was sent to a replica by the process of this column."""

    column: int
    slot: int
    texts: Sequence[int]
    known: int


class Poisoned(Message, tag=21):
    """Requests with this digest end engines."""

    digest: bytes


# From workers


class Hello(Message, tag=30):
    """The first message."""

    pid: int


class ReplicaSuspected(Message, tag=31):
    """A request failed at the replica, or it said no: how is it?"""

    slot: int


class ResyncRequest(Message, tag=32):
    """Something was missed: tell everything anew."""


class QueueReport(Message, tag=33):
    """Requests that wait in this worker, and their estimated prompt tokens, by model."""

    by_model: dict[str, tuple[int, int]]


class StatsReport(Message, tag=34):
    """A worker's numbers."""

    numbers: ProcessStats


class MetricsRequest(Message, tag=35):
    """All processes' metrics together are wanted."""

    question: int


ToWorker = (
    Welcome
    | Discovered
    | PolicyChanged
    | Observed
    | Heard
    | Loaded
    | Known
    | Held
    | Dropped
    | Cleared
    | EngineEvent
    | Learned
    | Remembered
    | Complete
    | Ask
    | MetricsText
    | Routed
    | Poisoned
)
ToIndex = (
    Hello
    | Routed
    | Poisoned
    | ReplicaSuspected
    | ResyncRequest
    | QueueReport
    | StatsReport
    | MetricsRequest
    | Learned
)


class Frame(msgspec.Struct, array_like=True, gc=False):
    """Messages sent over the socket at once. News are numbered, each one more than the last;
    those for one worker alone have no number."""

    number: int | None
    messages: list[ToWorker]


encode = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_to_index = msgspec.msgpack.Decoder(list[ToIndex]).decode


def pack_keys(keys: Iterable[int]) -> bytes:
    """Return KV blocks' own hashes as bytes."""
    return b"".join([(key & _KEY).to_bytes(HASH_BYTES, "little") for key in keys])


def unpack_keys(packed: bytes) -> list[int]:
    """Return the hashes that `pack_keys` packed."""
    read = int.from_bytes
    return [
        read(packed[at : at + HASH_BYTES], "little") for at in range(0, len(packed), HASH_BYTES)
    ]
