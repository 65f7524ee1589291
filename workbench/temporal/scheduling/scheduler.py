"""One scheduling rule (vLLM V1): `num_computed_tokens` chases `num_tokens` under a token budget.

There is no prefill or decode phase. Running requests go first, then waiting ones unless something
was preempted; chunked prefill, prefix hits and resumption fall out of the rule.
"""

from collections.abc import Callable

from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.request_blocks import PrefixHit
from workbench.clock import Clock
from workbench.config import SchedulingSettings
from workbench.request import Request, RequestStatus
from workbench.temporal.scheduling.fetcher import Fetcher
from workbench.temporal.scheduling.loads import Fetch, Found
from workbench.temporal.scheduling.order import OrderPolicy, must_wait
from workbench.temporal.scheduling.step import SchedulerOutput, StepBudget

Tell = Callable[..., None]  # tell(kind, request_id="", **data): an event for people


class Scheduler:
    """Alone changes a request's status.

    `max_slots(request)`: slots it needs at most at its length (retention may cap it).
    """

    def __init__(
        self,
        settings: SchedulingSettings,
        *,
        order: OrderPolicy,
        clock: Clock,
        tell: Tell,
        max_slots: Callable[[Request], int],
    ) -> None:
        self.settings = settings
        self.order = order
        self.clock = clock
        self.max_slots = max_slots
        self.prefix_caching = True
        self.tail_tokens: int | None = None
        self.before_admit: Callable[[Request], None] = lambda request: None
        self.on_admit: Callable[[Request, PrefixHit, int], None] = lambda request, hit, loaded: None
        self._tell = tell
        self._num_arrived = 0
        self.serving = ""  # id of the request that room is being made for
        self.waiting: list[Request] = []  # waiting, loading and preempted
        self.running: list[Request] = []  # in order of admission

    def bind(self, manager: KVCacheManager, fetcher: Fetcher) -> None:
        """Use this cache from now on (again after a rebuild)."""
        self.manager = manager
        self.fetcher = fetcher

    # ---- coming and going

    def add(self, request: Request) -> None:
        """Queue a request; it keeps its turn for ever."""
        request.sequence_number = self._num_arrived
        self._num_arrived += 1
        request.status = RequestStatus.WAITING
        self.waiting.append(request)

    def finish(self, request: Request, status: RequestStatus, error: str = "") -> None:
        """The one way out of the scheduler, in any state."""
        self.manager.free(request)
        self.fetcher.release(request, finished=True)
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        request.status = status
        request.error = error

    def preempt(self, request: Request, reason: str, *, damaged: bool = False) -> None:
        """Take a running request's blocks away; it waits and keeps its turn.

        What is `damaged` is not swapped out.
        """
        self.running.remove(request)
        swaps = self.settings.preemption == "swap" and not damaged
        moved = self.fetcher.swap_out(request) if swaps else 0
        num_blocks = self.manager.blocks_held(request)
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.waiting.append(request)
        how = "swap" if moved else "recompute"
        self._tell("preempt", request.request_id, reason=reason, num_blocks=num_blocks, how=how)

    def preempt_all(self, reason: str) -> int:
        """Send every running request back to the queue (rebuild); returns how many."""
        victims = list(self.running)
        for request in victims:
            self.preempt(request, reason)
        self.drop_fetches()
        return len(victims)

    def drop_fetches(self) -> None:
        """Forget what waiting requests have below HBM: loads on the way, swapped pages."""
        for request in self.waiting:
            self.fetcher.release(request, finished=True)
            if request.status is RequestStatus.LOADING:
                request.status = _idle_status(request)

    # ---- one step

    def schedule(self) -> SchedulerOutput:
        """Choose the next batch. Completions are drained first, never inside the queue walk."""
        out = SchedulerOutput()
        for request in self.fetcher.poll():
            if request.status is RequestStatus.LOADING:
                request.status = _idle_status(request)
        budget = StepBudget(self.settings.token_budget, self.settings.max_num_seqs)
        self._schedule_running(out, budget)
        if not out.preempted:
            self._schedule_waiting(out, budget)
        if self._shares_prefixes and self.fetcher.enabled:
            self.fetcher.prestage.lift(self.waiting)
        return out

    def _schedule_running(self, out: SchedulerOutput, budget: StepBudget) -> None:
        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for an earlier one in this walk
            count = self._num_new_tokens(request, budget)
            if count > 0 and self._make_room(request, count, out, budget):
                out.scheduled[request.request_id] = (request, count)
                budget.take(count)

    def _num_new_tokens(self, request: Request, budget: StepBudget) -> int:
        if budget.num_seqs <= 0:
            return 0
        return self._chunk(request, request.num_computed_tokens, budget)

    def _chunk(self, request: Request, num_known: int, budget: StepBudget) -> int:
        """Tokens to compute now of those behind the first `num_known`.

        The last `tail_tokens` of a prompt (if not None) are computed apart from what is in front
        of them and from what follows.
        """
        count = request.num_tokens - num_known
        if count > 1:
            count = min(count, self.settings.chunk_tokens)
        if self.tail_tokens is not None:
            end = request.num_prompt_tokens - num_known
            for boundary in (end, end - self.tail_tokens):
                if 0 < boundary < count:
                    count = boundary
        return min(count, budget.num_tokens)

    def _make_room(
        self, request: Request, count: int, out: SchedulerOutput, budget: StepBudget
    ) -> bool:
        """Grow a running request's tables, preempting the last in order until it fits."""
        self.serving = request.request_id
        while not self.manager.grow(request, count):
            victim = max(self.running, key=lambda other: self.order.key(other, 0))
            if victim is request and len(self.running) == 1:
                if self.manager.pool.drop_idle_rows():
                    continue
                if not self.manager.fits_ever(self.max_slots(request)):
                    self._fail_too_large(request, out)
                    return False
            self.preempt(victim, reason="no_blocks")
            victim.num_displaced += 1
            out.preempted.append(victim)
            taken = out.scheduled.pop(victim.request_id, None)
            if taken is not None:
                budget.give_back(taken[1])
            if victim is request:
                return False
        return True

    def _fail_too_large(self, request: Request, out: SchedulerOutput) -> None:
        needed = self.manager.num_pages_for(request.num_tokens)
        error = (
            f"request {request.request_id} needs {needed} blocks for {request.num_tokens} tokens, "
            f"and the whole pool has {self.manager.capacity_pages}: raise {self.manager.short_of} "
            "or choose a smaller format"
        )
        self.finish(request, RequestStatus.FINISHED_ERROR, error)
        out.failed.append(request)

    def _schedule_waiting(self, out: SchedulerOutput, budget: StepBudget) -> None:
        for request in self._queue():
            full = len(self.running) >= self.settings.max_num_seqs
            if full or budget.num_tokens <= 0 or budget.num_seqs <= 0:
                return
            if request.status is RequestStatus.LOADING:
                continue
            hit = self.find_hit(request)
            alone = not self.running and not out.scheduled
            fetch = self.fetcher.consider(
                request,
                hit,
                prefixes=self._shares_prefixes,
                step_tokens=None if alone else min(self.settings.chunk_tokens, budget.num_tokens),
            )
            if fetch is Fetch.LOADING:
                request.status = RequestStatus.LOADING
            if fetch is not Fetch.ADMIT:
                continue
            count = self._admit(request, hit, budget)
            if count is None:
                if self.fetcher.park(request):
                    request.status = RequestStatus.LOADING
                if self.running or out.scheduled or self.fetcher.num_pending:
                    return  # the head does not fit yet: nobody overtakes it
                if self.manager.pool.drop_idle_rows():
                    return  # cached rows held slabs of another class: it fits at the next step
                self._fail_too_large(request, out)
            elif count > 0:
                out.scheduled[request.request_id] = (request, count)
                budget.take(count)

    def _queue(self) -> list[Request]:
        """Waiting requests in the order of the policy."""
        hits = {}
        if self.order.needs_hits:
            hits = {id(request): self.find_hit(request).num_tokens for request in self.waiting}
        return sorted(
            self.waiting, key=lambda request: self.order.key(request, hits.get(id(request), 0))
        )

    @property
    def _shares_prefixes(self) -> bool:
        """Whether rows may be hit, in HBM or below; a contiguous cache shares nothing."""
        return self.prefix_caching and not self.manager.contiguous

    def find_hit(self, request: Request) -> PrefixHit:
        """The request's prefix in HBM, if prefixes may be used at all."""
        if self._shares_prefixes:
            return self.manager.find_prefix(request)
        return PrefixHit((), self.manager.keys.format_label, 0)

    def _admit(self, request: Request, hit: PrefixHit, budget: StepBudget) -> int | None:
        """Give a waiting request tables; tokens it computes now, or None if it does not fit."""
        self.serving = request.request_id
        if must_wait(request, self.running, self.order):
            return None
        self.before_admit(request)
        record = self.fetcher.swap_record(request)
        if record is not None:
            if not self.fetcher.restore(request, record):
                return None
            request.num_computed_tokens = record.num_computed_tokens
            return self._start(request, hit, len(record.keys), budget, resumed_by_swap=True)
        found = self.fetcher.usable_pages(request, hit)
        if not self._shares_prefixes:  # switched off while they were on their way
            found = Found(hit.lineage)
        hit = hit.full if found.num_pages else hit  # they hold more than the beginning of one
        num_loaded = found.num_pages * self.manager.block_size
        known = hit.num_tokens + num_loaded
        count = self._chunk(request, known, budget)
        reserve = promised = 0
        if self.manager.contiguous:
            longest = request.num_prompt_tokens + request.sampling.max_tokens
            reserve = min(longest, self.manager.max_model_len) - count
        elif self.settings.admit_whole_prompt:
            reserve = self.max_slots(request) - known - count
            promised = self._num_promised_pages()
        watermark = self.settings.watermark if self.running else 0.0
        settled = request.num_settled_tokens
        admitted = self.manager.admit(
            request,
            hit,
            num_loaded + count,
            num_loaded_tokens=num_loaded,
            reserve_tokens=max(0, reserve),
            reserve_pages=promised,
            watermark_blocks=int(watermark * self.manager.capacity_pages),
            lineage=found.lineage,
        )
        if not admitted:
            return None
        if found.num_pages:
            if not self.fetcher.place(request, len(hit.rows), found):
                self.manager.free(request)
                request.num_settled_tokens = settled
                return self._admit(request, self.find_hit(request), budget)  # with fewer pages
            self.manager.commit(request, num_loaded)
            if found.coming is None:  # what comes by layers is published when the step has ended
                self.manager.publish(request, known)
        request.num_computed_tokens = known
        return self._start(request, hit, found.num_pages, budget, resumed_by_swap=False)

    def _num_promised_pages(self) -> int:
        """Pages that admitted requests have not taken yet for the prompts they were admitted with.

        Without them, several prompts are admitted into the same room and preempt each other.
        """
        return sum(
            self.manager.pages_needed(request, self.max_slots(request)) for request in self.running
        )

    def _start(
        self,
        request: Request,
        hit: PrefixHit,
        num_loaded_pages: int,
        budget: StepBudget,
        *,
        resumed_by_swap: bool,
    ) -> int:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        self.on_admit(request, hit, num_loaded_pages)
        self.fetcher.release(request, finished=False)
        count = self._num_new_tokens(request, budget)
        if resumed_by_swap and not self.manager.grow(request, count):
            return 0  # it runs on at the next step, which may preempt for it
        return count


def _idle_status(request: Request) -> RequestStatus:
    return RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
