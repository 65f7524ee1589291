"""Messages between a client and the engine process; msgpack on three private ipc sockets.

    commands   ROUTER <-> DEALER   Command -> Reply, in any order, matched by `call_id`
    frames     XPUB   ->  SUB      frames of `workbench.snapshot`; the newest replaces older ones
    outputs    XPUB   ->  SUB      Announcement | OutputBatch, none lost

The sockets live in a directory that only its user may enter. Nothing here imports torch.
"""

from typing import Any

import msgspec

from workbench import errors
from workbench.request import RequestOutput, RequestSpec

WELCOME = b"welcome"  # first message of a publisher: the subscription stands, nothing is missed
FRAME_INTERVAL_S = 0.095  # a little under 0.1, so that viewers see ten a second
IDLE_FRAME_INTERVAL_S = 1.0


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Add one request; answered with its id."""

    spec: RequestSpec


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop one request; answered with whether it was there."""

    request_id: str


class StopWorkload(msgspec.Struct, frozen=True, tag=True):
    """Stop one workload and its requests; answered with how many requests were stopped."""

    name: str


class ClearRequests(msgspec.Struct, frozen=True, tag=True):
    """Stop every request and every workload; answered with how many requests were stopped."""


class Apply(msgspec.Struct, frozen=True, tag=True):
    """Change settings (path to value); answered with an ApplyReport."""

    changes: dict[str, Any]


class Preview(msgspec.Struct, frozen=True, tag=True):
    """Say what `Apply` would do; answered with an ApplyReport."""

    changes: dict[str, Any]


class Play(msgspec.Struct, frozen=True, tag=True):
    """Run steps on and on."""


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Stop after the running step; the metrics' clock stands still."""


class Step(msgspec.Struct, frozen=True, tag=True):
    """Pause and run one step; answered with whether there was work."""


class SetSpeed(msgspec.Struct, frozen=True, tag=True):
    """1 = as fast as it runs; 0.1 = a step takes ten times its time."""

    speed: float


class GetSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Answered with a Snapshot."""


class GetFrame(msgspec.Struct, frozen=True, tag=True):
    """Answered with one frame's bytes."""


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Answered with a BlockView."""

    tier: str
    cell: int


class EventsSince(msgspec.Struct, frozen=True, tag=True):
    """Answered with the events after `seq`, oldest first."""

    seq: int


class StartShadow(msgspec.Struct, frozen=True, tag=True):
    """Also compute one request in full precision."""

    request_id: str


class StopShadow(msgspec.Struct, frozen=True, tag=True):
    """End the shadow computation."""


class Check(msgspec.Struct, frozen=True, tag=True):
    """Check the invariants; answered with an IntegrityView."""


class GetTiers(msgspec.Struct, frozen=True, tag=True):
    """Costs, faults and worth of the tiers below HBM; answered with a TiersReport."""


class Journey(msgspec.Struct, frozen=True, tag=True):
    """Where a block has been; answered with a list of BlockMove.

    `key` is hex, or the beginning of it; empty asks for the blocks that moved most, one move each.
    """

    key: str = ""


class InjectFault(msgspec.Struct, frozen=True, tag=True):
    """Damage real bytes of a tier; answered with the key that was hit, or an empty text."""

    kind: str


class SetOutage(msgspec.Struct, frozen=True, tag=True):
    """Take a tier's medium away, fill it, or put it right again; answered with nothing.

    `kind`: unplugged, full or none.
    """

    tier: str
    kind: str


class HoldBlock(msgspec.Struct, frozen=True, tag=True):
    """Keep a block in the tiers, or let it go; answered with a HoldView.

    `kind`: lease (for `seconds`), hard, soft (for `seconds`, it goes last) or none.
    """

    key: str
    kind: str
    seconds: float = 0.0


class LoadPolicy(msgspec.Struct, frozen=True, tag=True):
    """Run a policy file of the user's own, as they have seen and confirmed it.

    Answered with the names it has registered, as pairs of kind and name.
    """

    name: str
    text: str


class Arrival(msgspec.Struct, frozen=True):
    """One request of a workload, due `at_s` seconds after its start.

    `follows` >= 0 is a later turn: it is due when that arrival has finished, its messages are put
    after that conversation and its answer.
    """

    at_s: float
    spec: RequestSpec
    follows: int = -1


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and when they arrive.

    `max_in_flight` > 0 holds back arrivals while so many requests of this workload are unfinished.
    `repeat` starts over when all have arrived, with other sampling seeds.
    """

    name: str
    arrivals: list[Arrival]
    max_in_flight: int = 0
    repeat: bool = False


class StartWorkload(msgspec.Struct, frozen=True, tag=True):
    """Start a workload; answered with the ids of the requests submitted at once.

    `first_index` > 0 goes on after a restart: the arrivals before it were submitted already, and
    `in_flight` tells those unfinished (request id to arrival), `conversations` the messages and
    the answer of those that a later turn follows.
    """

    workload: Workload
    first_index: int = 0
    in_flight: dict[str, int] = {}
    conversations: dict[int, list[dict[str, str]]] = {}


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


Body = (
    Submit | Abort | ClearRequests | Apply | Preview | Play | Pause | Step | SetSpeed | GetSnapshot
    | GetFrame | Inspect | EventsSince | StartShadow | StopShadow | Check | StartWorkload
    | StopWorkload | GetTiers | Journey | InjectFault | SetOutage | HoldBlock | LoadPolicy
    | Shutdown
)  # fmt: skip

SHOWN_AT_ONCE = (Apply, Play, Pause, SetSpeed)  # somebody has touched a control and waits
WHILE_LOADING = (Play, Pause, SetSpeed, GetSnapshot, GetFrame, Shutdown)  # need no engine


class Command(msgspec.Struct, frozen=True):
    """What a client sends; the reply carries the same `call_id`."""

    call_id: int
    body: Body


class Reply(msgspec.Struct, frozen=True):
    """`value` is the msgpack of the answer; if `error` is set it is one sentence for the user."""

    call_id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    error_kind: str = ""


class Announcement(msgspec.Struct, frozen=True, tag=True):
    """A request was accepted; sent before its first token.

    `fresh`: tokens received before belong to another vocabulary and are void.
    """

    request_id: str
    spec: RequestSpec
    workload: str = ""
    workload_index: int = -1
    fresh: bool = False


class OutputBatch(msgspec.Struct, frozen=True, tag=True):
    """New tokens of one step."""

    outputs: list[RequestOutput]


class WorkloadStarted(msgspec.Struct, frozen=True, tag=True):
    """A workload runs from arrival `first_index` on."""

    workload: Workload
    first_index: int = 0


class WorkloadEnded(msgspec.Struct, frozen=True, tag=True):
    """Nothing more of this workload will arrive."""

    name: str


Published = Announcement | OutputBatch | WorkloadStarted | WorkloadEnded


def detail(kind: str, **numbers: float) -> str:
    """A `Snapshot.state_detail`: a kind and numbers, from which the app makes a sentence.

    While loading: `start`, `fetch` (num_bytes, total_bytes, remaining_s), `load`; while running:
    `thrashing` (num_preemptions, seconds), `saturated` (num_waiting). Example:
    `fetch num_bytes=1048576 total_bytes=191233472 remaining_s=42`.
    """
    return " ".join(
        [
            kind,
            *(
                f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                for name, value in numbers.items()
            ),
        ]
    )


def parse_detail(text: str) -> tuple[str, dict[str, float]]:
    """Inverse of `detail`; other text (a reason of death) comes back as its own kind."""
    kind, *parts = text.split(" ")
    try:
        pairs = [part.split("=") for part in parts]
        return kind, {name: float(value) for name, value in pairs}
    except ValueError:
        return text, {}


def error_from(kind: str, message: str) -> errors.WorkbenchError:
    """The error a reply stands for, as the class it was raised with."""
    found = getattr(errors, kind, errors.WorkbenchError)
    if isinstance(found, type) and issubclass(found, errors.WorkbenchError):
        return found(message)
    return errors.WorkbenchError(message)
