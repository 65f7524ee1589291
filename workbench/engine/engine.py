"""The engine: schedule, run, update. Usable in process; `workbench/client` puts it in its own."""

import functools
from typing import Any

import torch

from workbench.cache.lifetimes import Lifetimes
from workbench.cache.row_slices import row_slices
from workbench.clock import Clock, RealClock, ServingClock
from workbench.config import EngineConfig
from workbench.engine import apply as applying
from workbench.engine import integrity
from workbench.engine.binding import bind_settings
from workbench.engine.builtin import builtin_registry
from workbench.engine.byte_guard import ByteGuard
from workbench.engine.cache_stack import CacheStack, build_stack
from workbench.engine.calibrating import find_calibration
from workbench.engine.commit import commit, roll_back
from workbench.engine.cuda_pins import CudaPins
from workbench.engine.event_log import EventLog
from workbench.engine.intake import Intake
from workbench.engine.kv_stream import OnKvEvents
from workbench.engine.metrics import Metrics
from workbench.engine.misses import MissExplainer
from workbench.engine.moves import Moves
from workbench.engine.outlet import Outlet
from workbench.engine.placing import make_placement
from workbench.engine.retainer import Retainer
from workbench.engine.runner import ForwardBatch, make_batch
from workbench.engine.sampling import sample
from workbench.engine.shadow import Shadow
from workbench.engine.split_reads import SplitReads
from workbench.engine.step_recorder import StepRecorder
from workbench.engine.streams import Stream
from workbench.engine.tap import Tap, hand_out
from workbench.engine.views import inspector
from workbench.engine.views.frames import FrameBuilder
from workbench.engine.watchdog import Watchdog
from workbench.errors import RequestError
from workbench.events import Event
from workbench.model.load import LoadedModel
from workbench.registry import Registry
from workbench.request import Request, RequestOutput, RequestSpec, RequestStatus
from workbench.snapshot import Snapshot
from workbench.spatial.hierarchy.hierarchy import Hierarchy
from workbench.spatial.hierarchy.values import ValuesBelow
from workbench.temporal.scheduling.fetcher import Fetcher
from workbench.temporal.scheduling.loads import FetchCounters
from workbench.temporal.scheduling.scheduler import Scheduler
from workbench.temporal.scheduling.step import SchedulerOutput
from workbench.views import ApplyReport, BlockView, IntegrityView

THRASH_PREEMPTIONS = 3  # so many in the metrics' window are told of
WAIT_FOR_LOADS_S = 0.001  # a step that has only loads to wait for gives its core away for so long


class Engine:
    """A paged engine over one model. One thread uses it; nothing is shared between engines.

    `verify_bytes`: keep a checksum of every hashed row, for tests of late writes.
    `last_event_seq`: the newest event of the engine that this one follows; numbers go on after it.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        *,
        registry: Registry | None = None,
        clock: Clock | None = None,
        on_kv_events: OnKvEvents | None = None,
        verify_bytes: bool = False,
        last_event_seq: int = 0,
    ) -> None:
        self.config = config
        self.byte_guard = ByteGuard() if verify_bytes else None
        self.model = model
        self.clock: Clock = clock or RealClock()
        self.registry = registry or builtin_registry()
        self.device = model.decoder.device  # the cache lies where the weights are
        self.calibration = find_calibration(config, model)
        self.log = EventLog(self.clock, on_kv_events, last_event_seq)
        self.serving = ServingClock(self.clock)  # latencies and rates are of this one
        self.metrics = Metrics(self.serving)
        self.recorder = StepRecorder(self.serving)
        self.misses = MissExplainer()
        self.lifetimes = Lifetimes(self.clock)  # outlives a rebuild, as the tiers do
        self.watchdog = Watchdog()
        self.requests: dict[str, Request] = {}  # unfinished ones
        self.finished: dict[str, Request] = {}  # the newest finished ones, for the list
        self.streams: dict[str, Stream] = {}
        self.shadow: Shadow | None = None
        self.tap: Tap | None = None
        self.config_version = 0
        self.last_apply: ApplyReport | None = None
        self.last_integrity: IntegrityView | None = None
        self.num_steps = 0
        self.recode_ms_per_block = applying.RECODE_MS_PER_BLOCK
        self.fetch_counters = FetchCounters()
        self.placement = make_placement(self.registry, config.tiers.policy)
        self.intake, self.outlet, self.moves = Intake(self), Outlet(self), Moves(self)
        self.retainer = Retainer(self, self.registry.create("retention", config.retention.policy))
        self.scheduler = Scheduler(
            config.scheduling,
            order=self.registry.create("order", config.scheduling.order),
            clock=self.clock,
            tell=self.log.tell,
            max_slots=self.retainer.max_slots,
        )
        self.scheduler.before_admit = self.intake.give_owner
        self.scheduler.on_admit = self.intake.admitted
        self.stack: CacheStack = self._build_stack(config)
        self.hierarchy = self._build_hierarchy()
        self._bind()
        self.frames = FrameBuilder(self)
        self.log.tell("engine", what="started")  # the first event: nothing is cached yet
        self.log.kv.flush()  # what tiers have kept

    def _build_stack(self, config: EngineConfig) -> CacheStack:
        self.model.decoder.reserve_positions(config.model.max_model_len)
        return build_stack(
            config,
            self.model,
            device=self.device,
            clock=self.clock,
            log=self.log,
            before_evict=self.moves.before_evict,
            make_index=functools.partial(self.registry.create, "index", config.cache.index),
            lifetimes=self.lifetimes,
            calibration=self.calibration,
        )

    def _build_hierarchy(self) -> Hierarchy:
        """The tiers below HBM; they outlive a rebuild."""
        row_bytes = sum(spec.page_bytes for spec in self.stack.specs.full)
        make_codec = functools.partial(self.registry.create, "codec")
        pins = CudaPins() if self.stack.store.arena.is_cuda else None
        return Hierarchy(
            self.config.tiers, row_bytes, self.clock, self.moves.below, make_codec, pins
        )

    def replace_stack(self, config: EngineConfig) -> None:
        """A new arena with empty owners (rebuild); nobody may hold blocks of the old one."""
        self.log.on_cleared(self.stack.pool.index.rows())
        self.stack.pool.index.clear()
        if self.stack.values is not None:
            self.stack.values.clear()
        self.config = config
        del self.stack, self.fetcher, self.scheduler.manager, self.scheduler.fetcher
        self.stack = self._build_stack(config)
        self.retainer.restart()
        self._bind()

    def _bind(self) -> None:
        """Connect scheduler and fetcher to the current stack."""
        stack = self.stack
        if stack.manager.roles.joined:
            stack.values = ValuesBelow(stack.pool, self.hierarchy)
            stack.runner.split = SplitReads(stack, stack.values)
        self.fetcher = Fetcher(
            stack.manager, stack.store, self.hierarchy, self.metrics.recompute_s, self.clock.now_s,
            row_slices(stack.geometry, stack.specs.full),
            on_load=self.moves.loaded, counters=self.fetch_counters,
        )  # fmt: skip
        self.scheduler.bind(stack.manager, self.fetcher)
        stack.pool.step = self.num_steps
        bind_settings(self)

    # ---- requests

    def add_request(self, spec: RequestSpec) -> str:
        """Queue a request and return its id; RequestError says in a sentence what is wrong."""
        request = self.intake.accept(spec)
        self.requests[request.request_id] = request
        self.streams[request.request_id] = Stream(self.model.tokenizer, request)
        self.retainer.add(request)
        self.scheduler.add(request)
        ended = self.outlet.end_of(request) if spec.resume_tokens else None
        if ended is not None:  # its stream was complete before the engine was restarted
            self.outlet.finish(request, ended)
        return request.request_id

    def abort(self, request_id: str) -> bool:
        """End a request in any state; False if it is not there (any more)."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        self.outlet.finish(request, RequestStatus.FINISHED_ABORTED)
        return True

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.waiting or self.scheduler.running) or not self.outlet.is_empty

    # ---- one step: schedule, run, update

    def step(self) -> list[RequestOutput]:
        """Advance by one batch; new tokens and ends since the last call."""
        self.num_steps += 1
        self.log.step = self.stack.pool.step = self.num_steps
        self.hierarchy.begin_step(self.num_steps)
        roll_back(self)  # what a step that broke off has left
        self.recorder.start()
        out = self.scheduler.schedule()
        self._after_schedule(out)
        self.recorder.scheduled()
        if out.scheduled:
            batch = make_batch(list(out.scheduled.values()), tapping=self.tap is not None)
            runner, policy = self.stack.runner, self.retainer.policy
            logits, mass = runner.run(
                batch,
                mass=self.retainer.wants_mass(self.num_steps, batch),
                norms=policy.needs_keys,
                reduce=self.config.retention.gqa_reduce,
                see=self.retainer.watch(batch),
                retention=self.config.retention,
                arrive=self.fetcher.layers.arrive,
            )
            self.recorder.ran(runner.timing)
            if not roll_back(self):
                self._update(batch, logits, mass)
            view = self.recorder.finish(self.num_steps, batch)
            self.metrics.observe_step(view.wall_ms, batch, runner.timing.traffic)
        else:  # loads, or answers of a shared tier, are all there is to wait for
            roll_back(self)
            self.hierarchy.wait_io(WAIT_FOR_LOADS_S)
        self.watchdog.observe(self)
        if self.byte_guard is not None:
            self.byte_guard.record(self.stack)
        self.log.kv.flush()
        return self.take_outputs()

    def take_outputs(self) -> list[RequestOutput]:
        """New tokens and ends that nobody has been told of yet (an abort between steps)."""
        return self.outlet.take()

    def _after_schedule(self, out: SchedulerOutput) -> None:
        for request in out.failed:
            self.outlet.fail(request)
        recent = self.metrics.preempted(len(out.preempted))
        if out.preempted and recent >= THRASH_PREEMPTIONS:
            seconds = self.metrics.preemptions.window_s
            self.log.tell("thrash", num_preemptions=recent, seconds=seconds)

    def _update(self, batch: ForwardBatch, logits: torch.Tensor, mass: torch.Tensor | None) -> None:
        if mass is not None:
            self.retainer.observe(batch, mass.numpy())
        if self.stack.runner.key_norms is not None:
            self.retainer.observe_keys(batch, self.stack.runner.key_norms)
        commit(self, batch)
        logits = hand_out(self.tap, batch, logits)
        tokens = sample(logits, batch.logit_requests)
        if self.shadow is not None:
            with self.serving.aside():
                self.shadow.follow(batch, logits, tokens)
        for request, token in zip(batch.logit_requests, tokens, strict=True):
            self.outlet.isolated(request, self.outlet.deliver, request, token)
        for request in batch.requests:
            if not request.status.is_finished:
                self.outlet.isolated(request, self.retainer.retain, request)

    # ---- settings

    def apply(self, changes: dict[str, Any]) -> ApplyReport:
        """Change settings live; SettingError or CapacityError changes nothing."""
        report = applying.apply(self, changes)
        self.log.kv.flush()
        return report

    def preview(self, changes: dict[str, Any]) -> ApplyReport:
        """What `apply` would do."""
        return applying.preview(self, changes)

    # ---- looking in

    def frame(self, seq: int, *, state: str, speed: float = 1.0, detail: str = "") -> bytes:
        """One binary frame for viewers."""
        return self.frames.frame(seq, state=state, speed=speed, detail=detail)

    def snapshot(self) -> Snapshot:
        """The same picture as a structure."""
        state = "running" if self.has_work() else "idle"
        return self.frames.snapshot(0, state=state, speed=1.0, detail="")

    def inspect(self, tier: str, cell: int) -> BlockView:
        """Everything about one cell of the grid."""
        return inspector.inspect(self, tier, cell)

    def events_since(self, seq: int) -> list[Event]:
        """Events after number `seq`."""
        return self.log.since(seq)

    def start_shadow(self, request_id: str) -> None:
        """Compute one running request in full precision too, from its next step on."""
        request = self.requests.get(request_id)
        if request is None:
            raise RequestError(f"request {request_id} is not running: choose one that is")
        self.stop_shadow()
        self.shadow = Shadow(self, request)

    def stop_shadow(self) -> None:
        """End the shadow and give its memory back."""
        self.shadow = None

    def check_integrity(self) -> IntegrityView:
        """Check the invariants now; raises nothing."""
        self.last_integrity = integrity.check(self)
        return self.last_integrity

    def close(self) -> None:
        """End every request and close the tiers; twice is harmless."""
        for request_id in list(self.requests):
            self.abort(request_id)
        self.hierarchy.close()
