"""The way out: new tokens and ends on their way to readers, and how each request ends."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.request import Request, RequestOutput, RequestStatus

if TYPE_CHECKING:
    from workbench.engine.engine import Engine

NUM_FINISHED = 32  # ended requests that are still known, for the list


class Outlet:
    """Hands each request's tokens to its reader; the last of them says why it ended."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._waiting: list[RequestOutput] = []

    @property
    def is_empty(self) -> bool:
        """Whether everybody has been told of everything."""
        return not self._waiting

    def take(self) -> list[RequestOutput]:
        """New tokens and ends that nobody has been told of yet (an abort between steps)."""
        outputs, self._waiting = self._waiting, []
        return outputs

    def deliver(self, request: Request, token: int) -> None:
        """A sampled token: time it, turn it into text, and end the request if it is the last."""
        engine = self._engine
        now = engine.serving.now_s()
        request.token_ids.append(token)
        if request.first_token_s is None:
            request.first_token_s = now
            engine.metrics.ttft_ms.add((now - request.arrival_s) * 1e3)
        else:
            engine.metrics.itl_ms.add((now - request.last_token_s) * 1e3)
        request.last_token_s = now
        engine.metrics.output_tokens.add(1)
        text = engine.streams[request.request_id].push(token)
        ended = self.end_of(request)
        if ended is not None:
            self.finish(request, ended, [token], text)
            return
        if engine.config.cache.mode == "off":
            if engine.stack.runner.bounds is not None:  # the pages get other tokens in place
                held = engine.stack.manager.requests[request.request_id].all_blocks()
                engine.stack.runner.bounds.forget(held.tolist())
            engine.stack.manager.rewind(request)
            engine.retainer.observers[request.request_id].forget_evictions()
            request.num_computed_tokens = 0
        self._emit(request, [token], text)

    def end_of(self, request: Request) -> RequestStatus | None:
        """Why a request ends with its newest token, if it does."""
        engine, params = self._engine, request.sampling
        longest = min(engine.config.model.max_model_len, engine.model.arch.max_position)
        if request.token_ids[-1] in engine.model.tokenizer.eos_ids and not params.ignore_eos:
            return RequestStatus.FINISHED_STOPPED
        if request.num_output_tokens >= params.max_tokens or request.num_tokens >= longest:
            return RequestStatus.FINISHED_LENGTH
        return None

    def finish(
        self,
        request: Request,
        status: RequestStatus,
        tokens: list[int] | None = None,
        text: str = "",
    ) -> None:
        """End a request that went well, or was aborted; `tokens` and `text` are its last."""
        engine = self._engine
        engine.misses.remember(request)
        engine.scheduler.finish(request, status)
        text += engine.streams[request.request_id].flush()
        self._close(request, tokens or [], text)
        if status is RequestStatus.FINISHED_ABORTED:
            engine.log.tell("abort", request.request_id)
            return
        engine.log.tell(
            "finish",
            request.request_id,
            num_output=request.num_output_tokens,
            status=status.value,
        )

    def fail(self, request: Request) -> None:
        """Tell the end of a request that the scheduler ended with an error."""
        self._close(request, [], "")
        self._engine.log.tell("fail", request.request_id, error=request.error)

    def isolated(self, request: Request, act: Callable[..., None], *args: Any) -> None:
        """Whatever goes wrong for one request (a user's policy, say) ends that request alone."""
        try:
            act(*args)
        except Exception as error:  # the loop must go on for the others
            reason = f"request {request.request_id} failed: {type(error).__name__}: {error}"
            self._engine.scheduler.finish(request, RequestStatus.FINISHED_ERROR, reason)
            self.fail(request)

    def _close(self, request: Request, tokens: list[int], text: str) -> None:
        """Move an ended request to the finished list and tell its reader."""
        engine = self._engine
        self._emit(request, tokens, text)
        engine.requests.pop(request.request_id, None)
        engine.finished[request.request_id] = request
        while len(engine.finished) > NUM_FINISHED:
            self.forget(next(iter(engine.finished)))
        if engine.shadow is not None and engine.shadow.request is request:
            engine.shadow.end()

    def forget(self, request_id: str) -> None:
        """Drop an ended request from the list, with its text and what was observed of it."""
        engine = self._engine
        if engine.finished.pop(request_id, None) is not None:
            engine.streams.pop(request_id, None)
            engine.retainer.observers.pop(request_id, None)

    def _emit(self, request: Request, tokens: list[int], text: str) -> None:
        self._waiting.append(
            RequestOutput(
                request_id=request.request_id,
                new_token_ids=tokens,
                new_text=text,
                status=request.status.value,
                num_output_tokens=request.num_output_tokens,
                error=request.error,
                usage=request.usage() if request.status.is_finished else None,
            )
        )
