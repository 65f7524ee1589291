"""The process of one rank: answers its parent's questions until the pipe ends.

Started as `python -m workbench.spatial.devices.rank_worker FD FOLDER` by `workers`.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec
import torch
from kvkernels.layout import PageSpec
from torch import Tensor

from workbench.clock import RealClock
from workbench.spatial.devices.links import Links
from workbench.spatial.devices.placement import shares
from workbench.spatial.devices.protocol import (
    Answer,
    Done,
    Failed,
    Free,
    Piece,
    Question,
    Reply,
    Setup,
    Step,
    Tell,
    Told,
)
from workbench.spatial.devices.rank_cache import RankCache
from workbench.spatial.devices.report import RankReport
from workbench.spatial.devices.shards import rank_stage, vocab_share

_MAX_SPANS = 2048


@dataclass(frozen=True)
class Chunk:
    """Some pieces of a step: P pieces, N tokens, M rows whose logits are wanted."""

    sequences: list[int]  # [P]
    q_lens: list[int]  # [P]
    token_ids: Tensor  # int64 [N]
    positions: Tensor  # int64 [N]
    logit_rows: Tensor  # int64 [M], among the N
    numbers: list[int]  # [M], among all rows of the step


class RankWorker:
    """One rank's decoder, cache and links."""

    def __init__(self, setup: Setup) -> None:
        placement, rank = setup.placement, setup.rank
        self._setup = setup
        self._clock = RealClock()
        self._links = Links(
            rank, placement.num_ranks, self._clock, device=setup.device, delay_s=setup.delay_s
        )
        self._links.open(setup.backend, setup.store_file, setup.timeout_s)
        self._stage = rank_stage(setup.source, placement, self._links)
        arch = self._stage.arch
        if setup.device != "cpu":  # there the tables of the rotation cannot grow in a step
            self._stage.reserve_positions(arch.max_position)
        self._vocab_start = vocab_share(setup.source.known_arch(), placement, rank).start
        spec = PageSpec(
            arch.num_layers, arch.num_kv_heads, arch.head_dim, setup.block_size,
            setup.kv_format, setup.kv_format,
        )  # fmt: skip
        self._cache = RankCache(spec, setup.num_pages, setup.device)
        self._compute_s, self._num_rows, self._kv_bytes = 0.0, 0, 0
        self._spans: list[tuple[float, float]] = []

    def answer(self, question: Question) -> Reply:
        """Do what is asked."""
        match question:
            case Step():
                return self._step(question)
            case Free(sequences):
                for sequence in sequences:
                    self._cache.free(sequence)
                return Done()
            case Tell(reset):
                told = Told(self._report())
                if reset:
                    self._reset()
                return told
            case _:
                raise ValueError(f"a rank was asked {type(question).__name__} after its setup")

    def close(self) -> None:
        """Leave the other ranks."""
        self._links.close()

    @torch.inference_mode()
    def _step(self, step: Step) -> Reply:
        stage, links = self._stage, self._links
        chunks = self._chunks(step)
        rank, hidden = links.rank, stage.arch.hidden_size
        inputs: list[Tensor] = []
        arriving = []
        if not stage.first:  # all are awaited at once, so that a sender never waits for us
            inputs = [
                torch.empty(len(chunk.token_ids), hidden, device=links.device) for chunk in chunks
            ]
            arriving = [links.receive(x, rank - 1) for x in inputs]
        sent, logits = [], []
        for number, chunk in enumerate(chunks):
            time.sleep(links.delay_s)
            if stage.first:
                x = stage.embed(chunk.token_ids)
            else:
                links.wait(arriving[number])
                x = inputs[number]
            out = self._compute(chunk, x)
            if stage.last:
                logits.append(out)
            else:
                sent.append((links.send(out, rank + 1), out))  # kept until it is sent
        for work, _ in sent:
            links.wait(work)
        if not stage.last:
            return Answer([], [], [], b"")
        return self._rows(chunks, torch.cat(logits), step.want_logits)

    def _compute(self, chunk: Chunk, x: Tensor) -> Tensor:
        for sequence, count in zip(chunk.sequences, chunk.q_lens, strict=True):
            self._cache.extend(sequence, count)
        attend = self._cache.attention(chunk.sequences, chunk.q_lens)
        self._kv_bytes = max(self._kv_bytes, self._cache.used_bytes)
        begun, in_links = self._clock.now_s(), self._links.seconds
        out = self._stage.run(x, chunk.positions, attend, chunk.logit_rows)
        if self._links.device != "cpu":
            torch.cuda.synchronize()
        ended = self._clock.now_s()
        self._compute_s += ended - begun - (self._links.seconds - in_links)
        self._num_rows += len(x)
        if len(self._spans) < _MAX_SPANS:
            self._spans.append((begun, ended))
        return out

    def _rows(self, chunks: list[Chunk], logits: Tensor, want_logits: bool) -> Answer:
        numbers = [number for chunk in chunks for number in chunk.numbers]
        best = logits.max(-1)
        raw = logits.cpu().numpy().tobytes() if want_logits else b""
        tokens = (best.indices + self._vocab_start).tolist()
        return Answer(numbers, tokens, best.values.tolist(), raw)

    def _chunks(self, step: Step) -> list[Chunk]:
        """This rank's pieces, in a pipeline in micro-batches; every rank makes equally many."""
        numbered, number = [], 0
        for piece in step.pieces:
            rows = len(piece.tokens) if step.every_row else 1
            numbered.append((piece, range(number, number + rows)))
            number += rows
        kind = self._setup.placement.kind
        if kind == "experts":
            ranks, rank = self._links.num_ranks, self._links.rank
            numbered = [pair for pair in numbered if pair[0].sequence % ranks == rank]
        if kind != "pipeline":
            return [self._chunk(numbered)]
        count = min(step.micro_batches, len(numbered))
        return [self._chunk(numbered[a.start : a.stop]) for a in shares(len(numbered), count)]

    def _chunk(self, numbered: Iterable[tuple[Piece, range]]) -> Chunk:
        pairs = list(numbered)
        token_ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        for piece, rows in pairs:
            token_ids += piece.tokens
            positions += range(piece.start, piece.start + len(piece.tokens))
            logit_rows += range(len(token_ids) - len(rows), len(token_ids))

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._links.device)

        return Chunk(
            [piece.sequence for piece, _ in pairs],
            [len(piece.tokens) for piece, _ in pairs],
            tensor(token_ids),
            tensor(positions),
            tensor(logit_rows),
            [number for _, rows in pairs for number in rows],
        )

    def _reset(self) -> None:
        self._links.reset()
        self._compute_s, self._num_rows, self._kv_bytes = 0.0, 0, self._cache.used_bytes
        self._spans = []
        self._stage.reset_load()

    def _report(self) -> RankReport:
        placement, rank = self._setup.placement, self._links.rank
        return RankReport(
            rank=rank,
            process=os.getpid(),
            kv_heads=list(placement.kv_heads[rank]),
            layers=list(placement.layers[rank]),
            experts=list(placement.experts[rank]) if placement.experts else [],
            weight_bytes=self._stage.weight_bytes,
            kv_bytes=self._kv_bytes,
            kv_bytes_per_token=self._cache.bytes_per_token,
            rows=self._num_rows,
            expert_load=self._stage.expert_load(),
            traffic=self._links.traffic,
            compute_s=self._compute_s,
            comm_s=self._links.seconds,
            spans=self._spans,
        )


def main(descriptor: int, folder: str) -> int:
    """Serve the parent on an inherited pipe; the exit status. `folder` is the parent's."""
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    torch.set_num_threads(1)
    pipe = Connection(descriptor)
    decoder = msgspec.msgpack.Decoder(Question)
    worker: RankWorker | None = None
    try:
        while True:
            question = decoder.decode(pipe.recv_bytes())
            if isinstance(question, Setup):
                worker = RankWorker(question)
                reply: Reply = Done()
            elif worker is None:
                raise ValueError("a rank was asked something before its setup")
            else:
                reply = worker.answer(question)
            pipe.send_bytes(msgspec.msgpack.encode(reply))
    except EOFError:  # the parent has closed the pipe: the ordinary end
        if worker is not None:
            worker.close()
        return 0
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        failed = Failed(text, by_link=isinstance(error, RuntimeError))
        pipe.send_bytes(msgspec.msgpack.encode(failed))
        raise


def _end_with_parent(folder: str) -> None:
    """Standard input is a pipe that ends with the parent, even when this rank waits for others."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(3)


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2]))  # torch's own way out takes a second
