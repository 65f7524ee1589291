"""Client of an engine process: commands, frames, tokens, and going on after its death.

Thread-safe. Never imports torch. One background thread owns all sockets; callers wait for answers.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from workbench.config import EngineConfig, replace_settings
from workbench.engine.process import protocol
from workbench.engine.process.journal import Entry
from workbench.engine.process.link import ANSWER_TIMEOUT_S, LOADING_TIMEOUT_S, EngineLink
from workbench.errors import EngineDied, RequestError, WorkbenchError
from workbench.events import Event
from workbench.lab.prompts_file import read_prompts
from workbench.lab.workloads import make_workload
from workbench.registry import Name
from workbench.request import RequestSpec
from workbench.snapshot import Snapshot, decode_frame
from workbench.tier_views import BlockMove, HoldView, TiersReport
from workbench.views import ApplyReport, BlockView, IntegrityView


class LoadedLines(list[str]):
    """Ids of the requests made from a file's lines, and `problems`: a sentence a bad line."""

    def __init__(self, request_ids: Iterable[str], problems: list[str]) -> None:
        super().__init__(request_ids)
        self.problems = problems


class EngineClient(EngineLink):
    """One engine process and everything that a viewer or a script asks of it.

    `state` is `loading`, `running` or `dead`; `death_reason` is one sentence once it is dead.
    Commands sent while the model loads wait for it. Every call raises EngineDied after the
    process has ended, except `snapshot`, `latest_frame` and `outputs`, which show what was last.
    """

    @classmethod
    def start(
        cls,
        config: EngineConfig | None = None,
        *,
        wait: bool = False,
        random_layers: int = 0,
        random_seed: int = 0,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        kv_events: str = "",
        kv_events_replay: str = "",
    ) -> "EngineClient":
        """Start an engine process; with `wait`, return when its model is loaded.

        `random_layers` > 0 runs a small random model instead of loading one. `kv_events`: an
        address of this machine where KV events are published as vLLM's are, and `kv_events_replay`
        one where missed ones are asked for; neither by default. Raises EngineDied
        when it cannot be loaded (only with `wait`).
        """
        client = cls(
            config or EngineConfig(),
            random_layers=random_layers,
            random_seed=random_seed,
            answer_timeout_s=answer_timeout_s,
            kv_events=kv_events,
            kv_events_replay=kv_events_replay,
        )
        if wait:
            client.wait_ready()
        return client

    # Requests

    def submit(self, spec: RequestSpec) -> str:
        """Add a request; returns its id. Raises RequestError with one sentence."""
        request_id = self._call(protocol.Submit(spec), str)
        with self._lock:  # the answer may overtake the announcement
            if request_id not in self.journal.entries:
                self.journal.record(protocol.Announcement(request_id, spec))
        return request_id

    def abort(self, request_id: str) -> bool:
        """Stop a request; False when there is none of that name."""
        return self._call(protocol.Abort(request_id), bool)

    def clear_requests(self) -> int:
        """Stop all workloads and requests; returns how many requests were stopped."""
        return self._call(protocol.ClearRequests(), int)

    def start_workload(self, name: str, **options: Any) -> list[str]:
        """Start a preset of `workbench.lab.workloads`; returns the ids submitted at once."""
        return self.run_workload(make_workload(name, **options))

    def run_workload(self, workload: protocol.Workload) -> list[str]:
        """Start a workload; returns the ids submitted at once."""
        return self._call(protocol.StartWorkload(workload), list[str])

    def stop_workload(self, name: str) -> int:
        """Stop one workload and its requests; returns how many requests were stopped."""
        return self._call(protocol.StopWorkload(name), int)

    def start_workload_soon(self, name: str, **options: Any) -> None:
        """Start a preset as soon as the model is loaded, without waiting for it."""
        self._send(protocol.StartWorkload(make_workload(name, **options)))

    def load_jsonl(self, lines: Iterable[str] | bytes, salt: str = "") -> LoadedLines:
        """Submit one request a line; a bad line becomes a sentence in `problems`.

        `salt` names the tenant whose lines they are: what one tenant cached no other ever hits.
        Raises RequestError when the file is too large or holds no usable line.
        """
        specs, problems = read_prompts(lines, salt)
        ids = []
        for number, spec in specs:
            try:
                ids.append(self.submit(spec))
            except RequestError as error:
                problems.append(f"line {number}: {error}")
        if not ids:
            empty = "the file is empty: give one request a line"
            raise RequestError(problems[0] if problems else empty)
        return LoadedLines(ids, problems)

    def outputs(self, request_id: str) -> Entry:
        """Text, tokens and status of a request so far; raises RequestError for an unknown one."""
        with self._lock:
            entry = self.journal.entries.get(request_id)
            if entry is None:
                raise RequestError(f"there is no request {request_id!r}: it may be too old")
            return dataclasses.replace(entry, token_ids=list(entry.token_ids))

    # Policies of one's own

    def load_policy(self, name: str, text: str) -> list[Name]:
        """Run a policy file's text in the engine; returns what it has registered.

        It is run again after a restart. SettingError, in one sentence, where it fails.
        """
        added = self._call(protocol.LoadPolicy(name, text), list[Name])
        self.policies[name], self.own_names[name] = text, added
        return added

    def names_of_own(self, kind: str) -> list[str]:
        """Names of one kind that the user's own files have registered."""
        pairs = [pair for names in self.own_names.values() for pair in names]
        return [name for each, name in pairs if each == kind]

    # Settings and time

    def apply(self, changes: dict[str, Any]) -> ApplyReport:
        """Change settings; raises SettingError and changes nothing when one is not allowed."""
        restart = LOADING_TIMEOUT_S if any(p.startswith("model.") for p in changes) else None
        report = self._call(protocol.Apply(changes), ApplyReport, restart)
        with self._lock:
            self.config = replace_settings(self.config, report.changes)
        return report

    def preview(self, changes: dict[str, Any]) -> ApplyReport:
        """What `apply` would do."""
        return self._call(protocol.Preview(changes), ApplyReport)

    def play(self) -> None:
        """Run on."""
        self._call(protocol.Play(), type(None))
        self._paused = False

    def pause(self) -> None:
        """Stop after the running step."""
        self._call(protocol.Pause(), type(None))
        self._paused = True

    def step(self) -> bool:
        """Pause and run one step; whether there was work."""
        worked = self._call(protocol.Step(), bool)
        self._paused = True
        return worked

    def set_speed(self, speed: float) -> None:
        """1 = full speed, 0.1 = each step takes ten times as long."""
        self._call(protocol.SetSpeed(speed), type(None))
        self._speed = speed

    # Views

    def snapshot(self) -> Snapshot:
        """What the engine shows now; after its death the last frame's, marked dead."""
        try:
            return self._call(protocol.GetSnapshot(), Snapshot)
        except EngineDied:
            frame = self.latest_frame()
            if not frame:
                raise
            return decode_frame(frame)[0]

    def latest_frame(self) -> bytes:
        """The newest frame; empty when none was ever seen."""
        with self._lock:
            watched = bool(self._callbacks) or self.state != "running"
            frame = self._frame
        if not watched or not frame:
            try:
                frame = self._call(protocol.GetFrame(), bytes)
            except WorkbenchError:
                return self._frame  # the engine has ended, as `state` tells: the last picture stays
            with self._lock:
                self._frame = frame
        return frame

    def inspect(self, tier: str, cell: int) -> BlockView:
        """Everything about one block."""
        return self._call(protocol.Inspect(tier, cell), BlockView)

    def events_since(self, seq: int) -> list[Event]:
        """Events after `seq`, oldest first."""
        return self._call(protocol.EventsSince(seq), list[Event])

    def tiers(self) -> TiersReport:
        """Costs, faults and worth of the tiers below HBM."""
        return self._call(protocol.GetTiers(), TiersReport)

    def journey(self, key: str = "") -> list[BlockMove]:
        """Moves of the block whose key begins so; without one the blocks that moved most."""
        return self._call(protocol.Journey(key), list[BlockMove])

    def inject_fault(self, kind: str) -> str:
        """Damage real bytes of a tier; the key that was hit, empty if nothing was there to hit."""
        return self._call(protocol.InjectFault(kind), str)

    def set_outage(self, tier: str, kind: str) -> None:
        """Unplug or fill a tier's medium (unplugged, full), or plug it in again (none).

        SettingError or TierError in one sentence where that cannot be.
        """
        self._call(protocol.SetOutage(tier, kind), Any)

    def hold_block(self, key: str, kind: str, seconds: float = 0.0) -> HoldView:
        """Keep a block in the tiers (lease, hard, soft) or let it go (none); which tiers keep it.

        `key`: hex, or the beginning of it. SettingError for a kind that does not exist.
        """
        return self._call(protocol.HoldBlock(key, kind, seconds), HoldView)

    def start_shadow(self, request_id: str) -> None:
        """Also compute one running request in full precision."""
        self._call(protocol.StartShadow(request_id), Any)

    def stop_shadow(self) -> None:
        """End the shadow computation."""
        self._call(protocol.StopShadow(), Any)

    def check(self) -> IntegrityView:
        """Check the invariants now."""
        return self._call(protocol.Check(), IntegrityView)
