"""`workbench bench codecs`: bits per value and KL of what comes back, of each codec on real pages.

The context is read, every full page of it goes through the codec and back, and the text behind it
is scored beside the full cache: what fetching a prefix from a coded tier would cost.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from workbench.cache.codec import Codec, RowPart, from_blob, to_blob
from workbench.clock import Clock, RealClock
from workbench.engine.builtin import builtin_registry
from workbench.engine.engine import Engine
from workbench.lab.figures import Figure
from workbench.model.load import LoadedModel, load_model
from workbench.model.random_launch import random_model
from workbench.quality.engines import full_changes, lab_engine
from workbench.quality.hooks import AttendHook, hooked
from workbench.quality.plan import QualityPlan
from workbench.quality.results import figure_name
from workbench.quality.run import Build, Contender, compare
from workbench.quality.texts import text_windows

Tell = Callable[[str], None]

PLAN = QualityPlan(context=1024, scored=512, num_windows=4)
QUICK_PLAN = QualityPlan(context=256, scored=64, num_windows=1)
CODECS = ("planes+zstd", "cachegen")


@dataclass
class Coded:
    """What a codec made of all pages so far."""

    num_values: int = 0
    page_bytes: int = 0
    blob_bytes: int = 0
    num_pages: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0


def measure(progress: Tell, *, quick: bool) -> list[Figure]:
    """All figures; `quick` runs a small random model for a look at whether it works."""
    plan = QUICK_PLAN if quick else PLAN
    model = random_model(2) if quick else load_model(weight_format=plan.weight_format)
    registry, clock = builtin_registry(), RealClock()
    counts = {name: Coded() for name in CODECS}
    codecs: dict[str, Codec] = {name: registry.create("codec", name) for name in CODECS}
    contenders = [
        Contender(name, _through(model, codecs[name], counts[name], plan.context, clock))
        for name in CODECS
    ]
    full = Contender("full cache", lambda size: lab_engine(model, full_changes(model), size))
    windows = text_windows(model.tokenizer, plan)

    def tell(share: float, text: str) -> None:
        progress(f"{100 * share:3.0f} %  {text}")

    compare(full, contenders, windows, [], plan, tell, lambda: False)
    figures = []
    for contender in contenders:
        name = contender.name
        kl = float(np.concatenate([scores.kl for scores in contender.windows]).mean())
        figures += _figures(figure_name(name), codecs[name], counts[name], kl)
    return figures


def _figures(name: str, codec: Codec, coded: Coded, kl: float) -> list[Figure]:
    """Of one codec."""
    bits = 8 * coded.blob_bytes / coded.num_values
    page_bits = 8 * coded.page_bytes / coded.num_values
    tables = 8 * codec.shared_bytes / coded.num_values
    pages = f"{coded.num_pages} pages of {page_bits:.2f} bits a value"
    return [
        Figure(name=f"bits_per_value_{name}", value=bits, unit="bits",
               note=f"headers included; {pages}; shared tables add {tables:.3f} over them"),
        Figure(name=f"table_bytes_{name}", value=codec.shared_bytes, unit="B",
               note="probability tables that all pages share"),
        Figure(name=f"kl_{name}", value=kl, unit="nats/token",
               note="the context's pages came back from the codec"),
        Figure(name=f"encode_mb_s_{name}", value=coded.page_bytes / 1e6 / coded.encode_s,
               unit="MB/s", note="of page bytes, one thread"),
        Figure(name=f"decode_mb_s_{name}", value=coded.page_bytes / 1e6 / coded.decode_s,
               unit="MB/s", note="of page bytes, one thread"),
    ]  # fmt: skip


def _through(model: LoadedModel, codec: Codec, coded: Coded, context: int, clock: Clock) -> Build:
    @contextmanager
    def build(num_tokens: int) -> Iterator[Engine]:
        with (
            lab_engine(model, full_changes(model), num_tokens) as engine,
            hooked(engine, _PagesComeBack(engine, codec, coded, context, clock)),
        ):
            yield engine

    return build


class _PagesComeBack(AttendHook):
    """Sends every full page of the context through the codec before the next step reads it."""

    def __init__(
        self, engine: Engine, codec: Codec, coded: Coded, context: int, clock: Clock
    ) -> None:
        self._engine, self._codec, self._coded, self._clock = engine, codec, coded, clock
        self._context = context
        self._done = False

    def begin(self, positions: Tensor) -> None:
        if self._done or int(positions[0]) < self._context:
            return
        self._done = True
        stack = self._engine.stack
        (blocks,) = stack.manager.requests.values()
        parts = tuple(
            RowPart(spec, group.layers[0], group.kv_heads[0])
            for group, spec in zip(stack.geometry.groups, stack.specs.full, strict=True)
        )
        for page in range(self._context // blocks.block_size):
            where = stack.manager.parts(blocks.row_at(page))
            row = stack.store.read_row(where).copy()
            stack.store.write_row(where, self._back(row, parts))

    def _back(self, row: np.ndarray, parts: tuple[RowPart, ...]) -> np.ndarray:
        coded, now_s = self._coded, self._clock.now_s
        started_s = now_s()
        blob = to_blob(self._codec, row, parts)
        encoded_s = now_s()
        back = np.empty_like(row)
        from_blob(self._codec, memoryview(blob), back)
        coded.decode_s += now_s() - encoded_s
        coded.encode_s += encoded_s - started_s
        coded.num_pages += 1
        coded.page_bytes += row.nbytes
        coded.blob_bytes += len(blob)
        for spec in (part.spec for part in parts):
            slots = spec.num_layers * spec.num_kv_heads * spec.block_size
            coded.num_values += 2 * slots * spec.head_dim
        return back
