"""The door: checks a request before it is queued, and counts what it found when admitted."""

from typing import TYPE_CHECKING

from workbench.cache.request_blocks import PrefixHit
from workbench.cache.siblings import common_prefix
from workbench.engine.retainer import slots_needed
from workbench.errors import RequestError
from workbench.request import Request, RequestSpec
from workbench.snapshot import NO_OWNER

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


class Intake:
    """Turns a spec into a request, or refuses it with one sentence."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._num_named = 0

    def accept(self, spec: RequestSpec) -> Request:
        """Tokenize, check the lengths against model and pool, and name the request."""
        engine = self._engine
        try:
            tokens = self._tokens(spec)
            self._check_vocabulary([*tokens, *spec.resume_tokens])
            self._check_length(spec, tokens)
            breakpoints = self._breakpoints(spec, tokens)
        except RequestError as error:
            engine.log.tell("refuse", spec.request_id, error=str(error))
            raise
        request_id = spec.request_id or self._next_name()
        if request_id in engine.requests:
            raise RequestError(f"request {request_id} is running already: choose another id")
        engine.outlet.forget(request_id)  # an ended namesake's end takes nothing from this one
        request = Request(request_id, spec, tokens, engine.serving.now_s())
        request.owner = NO_OWNER  # until it owns blocks
        request.breakpoints = breakpoints
        return request

    def _tokens(self, spec: RequestSpec) -> list[int]:
        tokenizer = self._engine.model.tokenizer
        if spec.token_ids is not None:
            return list(spec.token_ids)
        if spec.messages is not None:
            return tokenizer.chat(spec.messages)
        tokens = tokenizer.encode(spec.prompt or "")
        if not tokens:
            raise RequestError("the prompt is empty: give at least one token of text")
        return tokens

    def _breakpoints(self, spec: RequestSpec, tokens: list[int]) -> list[tuple[int, str]]:
        """Where prefixes to keep end, in tokens, and their lifetimes, in order."""
        found = []
        for point in sorted(spec.cache_control, key=lambda point: point.place):
            end = point.place
            if point.message is not None:
                head = self._engine.model.tokenizer.chat((spec.messages or [])[: end + 1])
                end = common_prefix(head, tokens)
            elif end > len(tokens):
                raise RequestError(
                    f"cache_control at = {end} is beyond the prompt: it has {len(tokens)} tokens"
                )
            found.append((end, point.ttl))
        return found

    def _check_vocabulary(self, tokens: list[int]) -> None:
        size = self._engine.model.arch.vocab_size
        wrong = [token for token in tokens if not 0 <= token < size]
        if wrong:
            raise RequestError(f"token {wrong[0]} is not in the vocabulary: 0 to {size - 1}")

    def _check_length(self, spec: RequestSpec, tokens: list[int]) -> None:
        engine = self._engine
        longest = min(engine.config.model.max_model_len, engine.model.arch.max_position)
        count = len(tokens) + len(spec.resume_tokens)
        if count >= longest:
            raise RequestError(
                f"the prompt has {count} tokens and the model takes {longest - 1}: shorten it"
                " or raise model.max_model_len"
            )
        manager = engine.stack.manager
        end = len(tokens) + spec.sampling.max_tokens
        slots = slots_needed(
            engine.config,
            engine.retainer.policy,
            num_tokens=count + 1,
            prompt=len(tokens),
            longest=end,
        )
        if not manager.fits_ever(slots):
            raise RequestError(
                f"the request needs {manager.num_pages_for(slots)} blocks and the whole pool has "
                f"{manager.capacity_pages}: shorten it, raise {manager.short_of} or choose a "
                "smaller format"
            )

    def _next_name(self) -> str:
        while True:
            self._num_named += 1
            name = str(self._num_named)
            if name not in self._engine.requests and name not in self._engine.finished:
                return name

    def give_owner(self, request: Request) -> None:
        """Give a request that is about to own blocks a slot of its own, which it keeps to its end.

        Where all are taken it gets none, so that no other's name stands for it.
        """
        if request.owner != NO_OWNER:
            return
        taken = {other.owner for other in self._engine.requests.values()}
        taken |= {other.owner for other in list(self._engine.finished.values())[-8:]}
        free = (slot for slot in range(NO_OWNER) if slot not in taken)
        request.owner = next(free, NO_OWNER)

    def admitted(self, request: Request, hit: PrefixHit, num_loaded_pages: int) -> None:
        """Count hits, explain the miss, and tell what is shared."""
        engine = self._engine
        size = engine.config.cache.block_size
        resumed = request.num_preemptions > 0
        known = request.num_computed_tokens
        if resumed:
            request.num_resumed_cached_tokens += known
            engine.metrics.resumed_tokens += request.num_tokens
            engine.metrics.resumed_hit_tokens += known
            engine.retainer.resume(request)
            engine.log.tell(
                "resume", request.request_id, num_cached=known, num_tokens=request.num_tokens
            )
        else:
            request.num_cached_tokens = known
            if engine.fetcher.retrieval.has_holes(request):
                engine.retainer.resume(request)
            request.first_scheduled_s = engine.serving.now_s()
            engine.metrics.prompt_tokens += request.num_tokens
            engine.metrics.hit_tokens += known
            request.miss = engine.misses.explain(
                request,
                hit,
                num_loaded_pages * size,
                engine.stack.manager,
                caching=engine.scheduler.prefix_caching,
                not_fetched=engine.fetcher.why_not_fetched(request),
            )
            engine.log.tell(
                "admit", request.request_id, num_tokens=request.num_tokens, num_cached=known
            )
        if not resumed:
            engine.moves.hit(hit.rows)
        engine.misses.remember(request)
        if hit.rows:
            self._tell_sharing(request, hit)

    def _tell_sharing(self, request: Request, hit: PrefixHit) -> None:
        engine = self._engine
        first = hit.rows[0].blocks[0]
        other = ""
        for request_id, blocks in engine.stack.manager.requests.items():
            if request_id != request.request_id and first in blocks.blocks(0)[:1]:
                other = request_id
                break
        engine.log.tell(
            "share",
            request.request_id,
            other_request_id=other,
            num_blocks=len(hit.rows),
            num_tokens=hit.num_tokens,
        )
