"""A decoder shared by several ranks: steps, greedy text, and a report of what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.clock import Clock, RealClock
from workbench.errors import CapacityError, RequestError
from workbench.spatial.devices.formulas import expected_bytes, moved, wire_bytes
from workbench.spatial.devices.placement import Placement
from workbench.spatial.devices.protocol import (
    Answer,
    Free,
    Piece,
    Question,
    Reply,
    Setup,
    Step,
    Tell,
    Told,
)
from workbench.spatial.devices.report import DeviceReport
from workbench.spatial.devices.shards import vocab_share
from workbench.spatial.devices.sources import ModelSource
from workbench.spatial.devices.workers import Workers


@dataclass(frozen=True)
class GroupOptions:
    """How a group runs. ValueError on numbers out of range.

    kv_tokens: tokens that fit each rank's pages. micro_batches: of a pipeline's step. delays_s:
    seconds that each rank sleeps before each computation (empty: none), to see a straggler.
    backend: gloo, nccl (a GPU a rank) or auto. start_s, step_s: patience.
    """

    kv_tokens: int = 4096
    block_size: int = 16
    kv_format: str = "fp32"
    micro_batches: int = 2
    delays_s: tuple[float, ...] = ()
    backend: str = "auto"
    start_s: float = 120.0
    step_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "block_size", "micro_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is out of range: 1 or more")
        for name in ("start_s", "step_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)} is out of range: above 0")
        if any(delay < 0 for delay in self.delays_s):
            raise ValueError(f"delays_s = {self.delays_s} is out of range: 0 or more each")
        if self.backend not in ("auto", "gloo", "nccl"):
            raise ValueError(f"backend = {self.backend!r} is unknown: choose auto, gloo or nccl")

    def chosen_backend(self, num_ranks: int) -> str:
        """NCCL where every rank gets a GPU, else gloo; ValueError where that was ruled out."""
        enough = torch.cuda.is_available() and torch.cuda.device_count() >= num_ranks
        if self.backend == "nccl" and not enough:
            found = torch.cuda.device_count() if torch.cuda.is_available() else 0
            raise ValueError(
                f"backend = 'nccl' is not possible: {num_ranks} ranks need a GPU each and there "
                f"are {found}; choose gloo"
            )
        return "nccl" if enough and self.backend != "gloo" else "gloo"


@dataclass(frozen=True)
class StepResult:
    """Best token of each row of a step, and its logits fp32 [rows, vocab] where wanted."""

    tokens: list[int]
    logits: Tensor | None


class DeviceGroup:
    """Ranks in processes of their own that run one decoder; a context manager.

    A failed rank ends the group with a DeviceError; anything refused beforehand (CapacityError,
    RequestError) changes nothing.
    """

    def __init__(
        self, source: ModelSource, placement: Placement, options: GroupOptions | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        options = options or GroupOptions()
        ranks = placement.num_ranks
        if options.delays_s and len(options.delays_s) != ranks:
            raise ValueError(f"delays_s = {options.delays_s} is not allowed: give {ranks}, a rank")
        self.source, self.placement, self.options = source, placement, options
        self.arch = source.known_arch()
        placement.check(self.arch)
        self.backend = options.chosen_backend(ranks)
        self._clock = clock or RealClock()
        self._num_pages = -(-options.kv_tokens // options.block_size)
        self._lens: dict[int, int] = {}
        self._workers = Workers(ranks, self._clock)
        self._ask([self._setup(rank) for rank in range(ranks)], options.start_s, "the start")
        self._begin()

    @property
    def process_ids(self) -> list[int]:
        """Of the ranks, in order."""
        return self._workers.process_ids

    def step(
        self, tokens: Mapping[int, Sequence[int]], *, every_row: bool = False,
        want_logits: bool = False,
    ) -> StepResult:  # fmt: skip
        """The next tokens of some sequences, by number; a new number begins a sequence.

        Rows: the last token of each sequence in the order given, or with `every_row` every token.
        """
        pieces = [
            Piece(sequence, self._lens.get(sequence, 0), list(new))
            for sequence, new in tokens.items()
        ]
        self._check(pieces)
        step = Step(
            pieces=pieces, every_row=every_row, want_logits=want_logits,
            micro_batches=self.options.micro_batches,
        )  # fmt: skip
        begun = self._clock.now_s()
        replies = self._ask_all(step, "a step")
        self._wall_s += self._clock.now_s() - begun
        for piece in pieces:
            self._lens[piece.sequence] = piece.start + len(piece.tokens)
        self._count(pieces, every_row)
        num_rows = sum(len(piece.tokens) if every_row else 1 for piece in pieces)
        return self._join(replies, num_rows, want_logits)

    def generate(self, prompts: Sequence[Sequence[int]], num_new: int) -> list[list[int]]:
        """`num_new` greedy tokens after each prompt, all prompts together; frees them at the end.

        Sequence numbers are taken from above those in use.
        """
        first = max(self._lens, default=-1) + 1
        numbers = range(first, first + len(prompts))
        next_tokens = self.step(dict(zip(numbers, prompts, strict=True))).tokens
        texts = [[token] for token in next_tokens]
        for _ in range(num_new - 1):
            next_tokens = self.step(
                {n: [t] for n, t in zip(numbers, next_tokens, strict=True)}
            ).tokens
            for text, token in zip(texts, next_tokens, strict=True):
                text.append(token)
        self.free(numbers)
        return texts

    def free(self, sequences: Sequence[int]) -> None:
        """Give the pages of some sequences back on every rank."""
        self._ask_all(Free(list(sequences)), "freeing")
        for sequence in sequences:
            self._lens.pop(sequence, None)

    def report(self, *, reset: bool = False) -> DeviceReport:
        """What happened since the start or the last reset."""
        replies = self._ask_all(Tell(reset), "a report")
        ranks = [reply.report for reply in replies if isinstance(reply, Told)]
        tokens = max(self._tokens, 1)
        sums = moved(ranks)
        report = DeviceReport(
            kind=self.placement.kind,
            backend=self.backend,
            num_ranks=self.placement.num_ranks,
            steps=self._steps,
            tokens=self._tokens,
            wall_s=self._wall_s,
            ranks=ranks,
            moved_per_token={kind: total / tokens for kind, total in sums.items()},
            formula_per_token={kind: total / tokens for kind, total in self._expected.items()},
            wire_per_token={
                kind: wire_bytes(kind, total, self.placement.num_ranks) / tokens
                for kind, total in sums.items()
            },
            delayed=any(self.options.delays_s),
        )
        if reset:
            self._begin()
        return report

    def close(self) -> None:
        """End every rank; twice is harmless."""
        self._workers.close()

    def __enter__(self) -> "DeviceGroup":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin(self) -> None:
        self._steps, self._tokens, self._wall_s = 0, 0, 0.0
        self._expected: dict[str, float] = {}

    def _count(self, pieces: list[Piece], every_row: bool) -> None:
        self._steps += 1
        self._tokens += sum(len(piece.tokens) for piece in pieces)
        rows = [(p.sequence, len(p.tokens), len(p.tokens) if every_row else 1) for p in pieces]
        for kind, value in expected_bytes(self.arch, self.source.moe, self.placement, rows).items():
            self._expected[kind] = self._expected.get(kind, 0.0) + value

    def _setup(self, rank: int) -> Setup:
        options = self.options
        return Setup(
            source=self.source,
            placement=self.placement,
            rank=rank,
            backend=self.backend,
            device=f"cuda:{rank}" if self.backend == "nccl" else "cpu",
            store_file=self._workers.store_file,
            timeout_s=options.start_s + options.step_s,
            kv_format=options.kv_format,
            block_size=options.block_size,
            num_pages=self._num_pages,
            delay_s=options.delays_s[rank] if options.delays_s else 0.0,
        )

    def _check(self, pieces: list[Piece]) -> None:
        """Refuse what a rank could not do, before any of them has begun."""
        if not pieces or not all(piece.tokens for piece in pieces):
            raise RequestError("a step needs one token or more of one sequence or more")
        lens = dict(self._lens)
        for piece in pieces:
            lens[piece.sequence] = piece.start + len(piece.tokens)
            wrong = [t for t in piece.tokens if not 0 <= t < self.arch.vocab_size]
            if wrong:
                raise RequestError(
                    f"token {wrong[0]} of sequence {piece.sequence} is out of range: 0 to "
                    f"{self.arch.vocab_size - 1}"
                )
            if lens[piece.sequence] > self.arch.max_position:
                raise RequestError(
                    f"sequence {piece.sequence} would have {lens[piece.sequence]} tokens: the "
                    f"model takes {self.arch.max_position} at most"
                )
        ranks = self.placement.num_ranks if self.placement.kind == "experts" else 1
        for rank in range(ranks):
            held = [length for number, length in lens.items() if number % ranks == rank]
            needed = sum(-(-length // self.options.block_size) for length in held)
            if needed > self._num_pages:
                raise CapacityError(
                    f"this step needs {needed} KV pages and a rank has {self._num_pages}: free a "
                    f"sequence, or give more than kv_tokens = {self.options.kv_tokens}"
                )

    def _join(self, replies: list[Reply], num_rows: int, want_logits: bool) -> StepResult:
        """The best token over the ranks' shares of the vocabulary, row by row."""
        tokens = np.zeros(num_rows, np.int64)
        values = np.full(num_rows, -np.inf)
        logits = torch.zeros(num_rows, self.arch.vocab_size) if want_logits else None
        for rank, reply in enumerate(replies):
            if not isinstance(reply, Answer) or not reply.rows:
                continue
            rows = np.array(reply.rows)
            better = np.array(reply.values) > values[rows]  # of equal ones the lowest token stays
            values[rows[better]] = np.array(reply.values)[better]
            tokens[rows[better]] = np.array(reply.tokens)[better]
            if logits is not None:
                share = vocab_share(self.arch, self.placement, rank)
                part = torch.frombuffer(bytearray(reply.logits), dtype=torch.float32)
                logits[torch.from_numpy(rows), share.start : share.stop] = part.view(len(rows), -1)
        return StepResult(tokens.tolist(), logits)

    def _ask_all(self, question: Question, what: str) -> list[Reply]:
        return self._ask([question] * self.placement.num_ranks, self.options.step_s, what)

    def _ask(self, questions: list[Question], timeout_s: float, what: str) -> list[Reply]:
        return self._workers.ask(questions, timeout_s, what)
