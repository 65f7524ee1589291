"""Requests: what a user asks for, and where one stands."""

from enum import Enum

import msgspec

from workbench.cache_control import LIFETIMES_S, CacheBreakpoint, CacheUsage, check_breakpoints
from workbench.errors import RequestError


class RequestStatus(str, Enum):
    """Where a request stands; the scheduler alone changes it."""

    WAITING = "waiting"
    LOADING = "loading"  # blocks are on their way up from a slower tier
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "finished_stopped"  # an end-of-text token
    FINISHED_LENGTH = "finished_length"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_ERROR = "finished_error"

    @property
    def is_finished(self) -> bool:
        """True once nothing more will be computed."""
        return self.value.startswith("finished")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen.

    `temperature` 0 is greedy. Random numbers are keyed by (seed, sample index, position), so that a
    stream goes on where it was after preemption, migration or restart.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    seed: int = 0
    sample_index: int = 0
    max_tokens: int = 64
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise RequestError(f"temperature = {self.temperature} is out of range: 0 to 100")
        if self.top_k < 0:
            raise RequestError(f"top_k = {self.top_k} is out of range: 0 (all) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p = {self.top_p} is out of range: above 0, up to 1")
        for name in ("seed", "sample_index"):
            value, low = getattr(self, name), 0 if name == "sample_index" else -(2**63)
            if not low <= value < 2**64:
                text = "0" if low == 0 else "-2^63"
                raise RequestError(f"{name} = {value} is out of range: {text} to 2^64 - 1")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens = {self.max_tokens} is out of range: 1 or more")


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request as submitted: text, chat messages or token ids (exactly one of them).

    `resume_tokens` are tokens received before the engine was restarted; they count against
    `max_tokens` and are not sampled again. `salt` keeps tenants' caches apart: whoever owns the
    engine sets it, never what a request says of itself. `cache_control`: breakpoints up to which
    the prompt is kept (prompt caching). `logits_from`: hand
    the logits of known tokens from this position on to the engine's tap, too (vLLM's
    prompt_logprobs).
    """

    prompt: str | None = None
    messages: list[dict[str, str]] | None = None
    token_ids: list[int] | None = None
    sampling: SamplingParams = SamplingParams()
    priority: int = 0  # smaller runs first
    salt: str = ""
    label: str = ""
    request_id: str = ""  # empty: the engine names it
    resume_tokens: list[int] = []
    logits_from: int | None = None
    cache_control: list[CacheBreakpoint] = []

    def __post_init__(self) -> None:
        given = [
            name for name in ("prompt", "messages", "token_ids") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            what = " and ".join(given) or "none of them"
            raise RequestError(f"give exactly one of prompt, messages, token_ids (given: {what})")
        if not getattr(self, given[0]):
            raise RequestError(f"{given[0]} is empty: give at least one token of text")
        if self.logits_from is not None and self.logits_from < 0:
            raise RequestError(f"logits_from = {self.logits_from} is out of range: 0 or more")
        if self.cache_control:
            num_messages = None if self.messages is None else len(self.messages)
            check_breakpoints(self.cache_control, num_messages)


class MissReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request's prefix hit ended where it did.

    `kind`: `first` (nothing like it was cached), `differs` (first differing token at
    `token_index`), `evicted` (at step `step`), `tag` (another salt, format or weights), `short`
    (shorter than a block), `off` (prefix caching is off), `gate` (fetching was slower than
    recomputing), `late` (the rest of a fetch did not come in time), `full` (all but the last block
    hit), `unmarked` and `expired` (prompt caching is explicit, and nobody asked to keep this text,
    or its lifetime is over).
    """

    kind: str
    token_index: int = 0
    step: int = 0
    detail: str = ""


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request after a step; `usage` comes with the last ones."""

    request_id: str
    new_token_ids: list[int]
    new_text: str
    status: str
    num_output_tokens: int
    error: str = ""
    usage: CacheUsage | None = None


class Request:
    """A request inside the engine: its tokens, counters and times.

    `num_computed_tokens` chases `num_tokens`; both only the scheduler and the engine change.
    """

    def __init__(
        self, request_id: str, spec: RequestSpec, prompt_token_ids: list[int], arrival_s: float
    ) -> None:
        self.request_id = request_id
        self.spec = spec
        self.sampling = spec.sampling
        self.token_ids = prompt_token_ids + list(spec.resume_tokens)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.chain_keys: list[bytes] = []  # prefix keys of full blocks, by the cache manager
        self.arrival_s = arrival_s
        self.sequence_number = 0  # order of arrival, set by the scheduler
        self.owner = 0  # owner slot on the dashboard
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0  # prefix hits when first admitted
        self.num_resumed_cached_tokens = 0  # prefix hits after a preemption
        self.num_recomputed_tokens = 0
        self.max_computed_tokens = 0  # high-water mark, to tell recomputation from first work
        self.num_preemptions = 0
        self.num_displaced = 0  # preemptions for lack of blocks
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s = arrival_s
        self.miss: MissReason | None = None
        self.breakpoints: list[tuple[int, str]] = []  # (tokens, lifetime), in order
        self.num_marked = 0  # breakpoints that were reached
        self.num_settled_tokens: int | None = None  # read when first admitted, or written since
        self.num_created_tokens: dict[str, int] = {}  # written to be kept, by lifetime
        self.error = ""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens after the prompt, resumed ones included."""
        return len(self.token_ids) - self.num_prompt_tokens

    def usage(self) -> CacheUsage:
        """Where the prompt's tokens came from so far."""
        created = {
            f"ephemeral_{ttl}_input_tokens": self.num_created_tokens.get(ttl, 0)
            for ttl in LIFETIMES_S
        }
        written, read = sum(created.values()), min(self.num_cached_tokens, self.num_prompt_tokens)
        return CacheUsage(
            input_tokens=self.num_prompt_tokens - read - written,
            cache_read_input_tokens=read,
            cache_creation_input_tokens=written,
            cache_creation=created,
        )

    @property
    def num_known_tokens(self) -> int:
        """Tokens it came with: the prompt, and what an earlier engine had sampled."""
        return self.num_prompt_tokens + len(self.spec.resume_tokens)

    @property
    def is_prefill(self) -> bool:
        """True while tokens that are known already have to be computed."""
        return self.num_computed_tokens < self.num_tokens - 1
