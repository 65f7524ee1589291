"""One in-process engine with what the process adds: named requests, workloads, state, reloads."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from workbench.clock import RealClock
from workbench.config import (
    EngineConfig,
    all_settings,
    difference,
    get_setting,
    replace_settings,
)
from workbench.engine.process.arrivals import ArrivalPlanner
from workbench.engine.process.journal import Journal
from workbench.engine.process.own import OwnPolicies
from workbench.engine.process.pacing import StateJudge
from workbench.engine.process.protocol import (
    Announcement,
    OutputBatch,
    Published,
    StartWorkload,
    WorkloadEnded,
    WorkloadStarted,
)
from workbench.errors import RequestError, WorkbenchError
from workbench.events import KVEventBatch
from workbench.registry import Name
from workbench.request import RequestOutput, RequestSpec
from workbench.views import ApplyReport, IntegrityView

if TYPE_CHECKING:
    from workbench.engine.engine import Engine
    from workbench.model.load import LoadedModel

Publish = Callable[[Published], None]


class EngineHost:
    """Owns the engine of this process; `publish` gets every accepted request and all tokens.

    The host keeps a journal of its own, so that requests survive loading other weights. `policies`:
    texts of the user's own files by name, run before the engine is built. `on_kv_events` gets the
    batches of every engine, one after the other.
    """

    def __init__(
        self,
        clock: RealClock,
        publish: Publish,
        first_request_number: int,
        last_event_seq: int = 0,
        policies: dict[str, str] | None = None,
        on_kv_events: Callable[[KVEventBatch], None] | None = None,
    ) -> None:
        self.clock = clock
        self.journal = Journal()
        self._engine: Engine | None = None
        self._publish = publish
        self._next_number = first_request_number
        self._last_event_seq = last_event_seq
        self._policies = OwnPolicies(policies or {})
        self._on_kv_events = on_kv_events
        self.planner = ArrivalPlanner(self._submit_planned, clock.now_s)
        self.judge = StateJudge()

    @property
    def engine(self) -> "Engine":
        """The engine; only after `adopt`."""
        if self._engine is None:
            raise WorkbenchError("the engine is still loading: try again in a moment")
        return self._engine

    @property
    def is_ready(self) -> bool:
        """Whether there is an engine."""
        return self._engine is not None

    def adopt(self, config: EngineConfig, model: "LoadedModel") -> None:
        """Build the engine on a loaded model; running requests of an earlier one go on in it.

        Their tokens are recomputed where the vocabulary is the same; otherwise they start over.
        Raises CapacityError, ModelError or TierError, and goes on with the earlier model.
        """
        earlier = self._engine
        if earlier is None:
            self._engine = self._build(config, model)
            return
        earlier.close()  # first: the new one opens the same tier folders
        self._last_event_seq = earlier.log.last_seq
        try:
            self._engine = self._build(config, model)
        except WorkbenchError:
            self._engine = self._build(earlier.config, earlier.model)
            self._follow(earlier)
            raise
        self._follow(earlier)

    def _build(self, config: EngineConfig, model: "LoadedModel") -> "Engine":
        from workbench.engine.engine import Engine  # torch only once the model is loaded

        registry = self._policies.registry()
        return Engine(
            config,
            model,
            clock=self.clock,
            last_event_seq=self._last_event_seq,
            registry=registry,
            on_kv_events=self._on_kv_events,
        )

    def load_policy(self, name: str, text: str) -> list[Name]:
        """Run a policy file of the user's own; returns what it has registered."""
        return self._policies.load(self.engine, name, text)

    def submit(self, spec: RequestSpec, workload: str = "", index: int = -1) -> str:
        """Add a request under its own name or the next number; returns the id."""
        if not spec.request_id:
            spec = msgspec.structs.replace(spec, request_id=str(self._next_number))
            self._next_number += 1
        request_id = self.engine.add_request(spec)
        self._tell(Announcement(request_id, spec, workload, index))
        return request_id

    def abort(self, request_id: str) -> bool:
        """Stop a request; False when it is not there."""
        found = self.engine.abort(request_id)
        if found:
            self._deliver(self.engine.take_outputs())
        return found

    def clear(self) -> int:
        """Stop all workloads and requests; returns how many requests were stopped."""
        for name in self.planner.names:
            self._tell(WorkloadEnded(name))
        self.planner.clear()
        return sum(self.abort(entry.request_id) for entry in self.journal.unfinished())

    def start_workload(self, command: StartWorkload) -> list[str]:
        """Begin a workload; returns the ids of the requests submitted at once."""
        self._tell(WorkloadStarted(command.workload, command.first_index))
        try:
            return self.planner.start(command)
        except RequestError:
            self._tell(WorkloadEnded(command.workload.name))
            raise

    def stop_workload(self, name: str) -> int:
        """Stop a workload and its requests; returns how many requests were stopped."""
        if name in self.planner.names:
            self.planner.stop(name)
            self._tell(WorkloadEnded(name))
        mine = [entry for entry in self.journal.unfinished() if entry.workload == name]
        return sum(self.abort(entry.request_id) for entry in mine)

    def submit_due(self) -> None:
        """Submit what the workloads have due now."""
        before = self.planner.names
        self.planner.due()
        for name in before:
            if name not in self.planner.names:
                self._tell(WorkloadEnded(name))

    def step(self) -> None:
        """Run one step and publish its tokens.

        An error that belongs to one request ends that request; any other goes up.
        """
        try:
            outputs = self.engine.step()
        except Exception as error:
            request_id = getattr(error, "request_id", "")
            if not request_id or not self.engine.abort(request_id):
                raise
            entry = self.journal.entries.get(request_id)
            count = len(entry.token_ids) if entry else 0
            outputs = [_ended(request_id, count, "finished_error", str(error))]
        if outputs:
            self._deliver(outputs)

    def state(self, paused: bool) -> tuple[str, str]:
        """The engine's state and its detail."""
        engine, now_s = self.engine, self.clock.now_s()
        self.judge.saw(engine.events_since(self.judge.event_seq))
        return self.judge.state(
            now_s,
            paused=paused,
            has_work=engine.has_work(),
            num_waiting=len(engine.scheduler.waiting),
            has_room=self._has_room(),
        )

    def _has_room(self) -> bool:
        """Whether the first waiting request would find its blocks, cached ones evicted."""
        engine = self.engine
        first = next(iter(engine.scheduler.waiting), None)
        if first is None:
            return True
        manager = engine.stack.manager
        pages = manager.num_pages_for(engine.retainer.max_slots(first))
        needs = {cls: pages * manager.classes.count(cls) for cls in set(manager.classes)}
        return engine.stack.pool.can_allocate(needs)

    def reloaded(self, previous: EngineConfig, milliseconds: float) -> ApplyReport:
        """Count and tell a change of settings that loaded the model again."""
        engine = self.engine
        engine.config_version += 1
        report = reload_report(
            previous, engine.config, engine.config_version, len(engine.requests), milliseconds
        )
        engine.last_apply = report
        engine.metrics.mark()
        engine.log.tell("apply", changes=report.changes, milliseconds=milliseconds)
        return report

    def check(self) -> IntegrityView:
        """Check the invariants now."""
        return self.engine.check_integrity()

    def close(self) -> None:
        """Release what the engine holds."""
        if self._engine is not None:
            self._engine.close()

    def _submit_planned(self, spec: RequestSpec, workload: str, index: int) -> str:
        return self.submit(spec, workload, index)

    def _follow(self, earlier: "Engine") -> None:
        """Carry over what a viewer knows of the earlier engine, and its requests."""
        self.engine.config_version = earlier.config_version
        self.judge = StateJudge()
        known, new = earlier.model.tokenizer, self.engine.model.tokenizer
        same_vocabulary = known.fingerprint == new.fingerprint
        for entry in self.journal.unfinished():
            spec = entry.resumed_spec() if same_vocabulary else entry.spec
            try:
                if not same_vocabulary:
                    self._refuse_foreign_ids(spec)
                    spec = msgspec.structs.replace(
                        spec, request_id=entry.request_id, resume_tokens=[]
                    )
                self.engine.add_request(spec)
            except RequestError as error:
                count = len(entry.token_ids)
                self._deliver([_ended(entry.request_id, count, "finished_error", str(error))])
                continue
            if not same_vocabulary:
                self._tell(
                    Announcement(entry.request_id, spec, entry.workload, entry.workload_index, True)
                )

    def _refuse_foreign_ids(self, spec: RequestSpec) -> None:
        if spec.token_ids is not None:
            raise RequestError(
                "this request was given as token ids, which mean other text in the model loaded "
                "now: submit it again as text"
            )

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        self._tell(OutputBatch(outputs))
        for output in outputs:
            entry = self.journal.entries.get(output.request_id)
            if entry is not None and output.status.startswith("finished"):
                self.planner.finished(output.request_id, entry.spec, entry.text)

    def _tell(self, message: Published) -> None:
        self.journal.record(message)
        self._publish(message)


def restart_changes(config: EngineConfig, changes: dict[str, Any]) -> bool:
    """Whether `changes` need the model to be loaded again; raises SettingError for a bad one."""
    wanted = replace_settings(config, changes)
    return any(
        get_setting(wanted, path) != get_setting(config, path)
        for path in ("model.path", "model.weight_format")
    )


def reload_report(
    previous: EngineConfig,
    config: EngineConfig,
    version: int,
    num_requests: int,
    milliseconds: float = 0.0,
    *,
    preview: bool = False,
) -> ApplyReport:
    """The report of an apply that loads the model again."""
    settings, changes = all_settings(), difference(config, previous)
    return ApplyReport(
        version=version,
        changes=changes,
        previous=difference(previous, config),
        kinds={path: settings[path].metadata["change"] for path in changes},
        num_preempted_requests=num_requests,
        milliseconds=milliseconds,
        preview=preview,
        notes=[] if preview else ["model_reloaded"],
    )


def _ended(request_id: str, count: int, status: str, error: str = "") -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        new_token_ids=[],
        new_text="",
        status=status,
        num_output_tokens=count,
        error=error,
    )
