"""Where a setting does its damage: attention output, kept mass and K/V noise, layer by layer.

One window runs in the real engine. Beside it, each layer's K and V are kept exactly as they came,
and the same queries attend to those too: what differs is what this layer's cache did, without what
earlier layers passed on.
"""

from dataclasses import dataclass

import numpy as np
import torch
from kvkernels.common import rotate
from torch import Tensor

from workbench.engine.engine import Engine
from workbench.model.load import LoadedModel
from workbench.quality.engines import (
    check_changes,
    lab_engine,
    observed_tail,
    run_window,
    schedule,
)
from workbench.quality.hooks import AttendHook, hooked
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting
from workbench.quality.stored import stored_kv, stored_slots
from workbench.quality.texts import text_windows
from workbench.request import Request

EXACT_DB = 200.0  # shown for entries that are stored bit for bit


@dataclass(frozen=True)
class Probes:
    """Figures of one window; L layers, Hq query heads, Hkv KV heads, C channels.

    output_error: float64 [L, Hq], ||o - o_full|| / ||o_full|| over the scored positions.
    kept_mass: float64 [L, Hkv], share of the full cache's attention that the stored entries have,
        averaged over scored positions and the query heads of a KV head.
    k_snr_db, v_snr_db: float64 [L], signal to noise of the stored entries (EXACT_DB = no noise).
    k_channel_max: float64 [L, Hkv, D], largest |k| of each channel, which shows outlier channels.
    """

    name: str
    num_positions: int
    output_error: np.ndarray
    kept_mass: np.ndarray
    k_snr_db: np.ndarray
    v_snr_db: np.ndarray
    k_channel_max: np.ndarray


def probe(model: LoadedModel, setting: Setting, plan: QualityPlan) -> Probes:
    """Probe the plan's first window under a setting; raises as `measure` does."""
    check_changes(setting.changes)
    window = text_windows(model.tokenizer, plan)[0]
    size = len(window.token_ids)
    steps = schedule(window, plan, observed_tail(model, setting.changes, plan))
    twin = _Twin(model, size, window.score_from)
    noise: list[tuple[np.ndarray, np.ndarray]] = []

    def look(engine: Engine, request: Request, positions: np.ndarray, logits: Tensor) -> None:
        if request.num_computed_tokens == size:
            noise.append(_noise(engine, request, twin))

    with lab_engine(model, setting.changes, size) as engine:
        twin.engine = engine
        with hooked(engine, twin):
            run_window(engine, window, steps, look)
    k_snr, v_snr = noise[0]
    return Probes(
        setting.name,
        twin.num_positions,
        (twin.error.sqrt() / twin.norm.sqrt()).numpy(),
        (twin.mass / twin.num_positions).numpy(),
        k_snr,
        v_snr,
        twin.k.abs().amax(1).double().cpu().numpy(),
    )


class _Twin(AttendHook):
    """Exact K and V of a window, and attention over them for the queries that are scored."""

    engine: Engine

    def __init__(self, model: LoadedModel, num_tokens: int, first: int) -> None:
        arch = model.arch
        shape = (arch.num_layers, num_tokens, arch.num_kv_heads, arch.head_dim)
        device = model.decoder.device
        self.k, self.v = (torch.zeros(shape, device=device) for _ in range(2))  # fp32
        self.error = torch.zeros(arch.num_layers, arch.num_heads, dtype=torch.float64)
        self.norm = torch.zeros_like(self.error)
        self.mass = torch.zeros(arch.num_layers, arch.num_kv_heads, dtype=torch.float64)
        self.num_positions = 0
        self._first = first

    def begin(self, positions: Tensor) -> None:
        self._positions = positions
        self._rows = positions >= self._first
        self._scores = bool(self._rows.any())
        self.num_positions += int(self._rows.sum())
        self._stored: Tensor | None = None

    def after(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.k[layer, self._positions] = k.float()
        self.v[layer, self._positions] = v.float()
        if not self._scores:
            return
        positions, length = self._positions[self._rows], int(self._positions[-1]) + 1
        heads = self.k.shape[2]
        queries, keys = q[self._rows].float(), self.k[layer, :length]
        table = self.engine.stack.runner.rope_table
        if table is not None:  # both came as projected; the full cache has each at its place
            cos, sin = (part[:length, None] for part in table)
            queries, keys = rotate(queries, cos[positions], sin[positions]), rotate(keys, cos, sin)
        queries = queries.unflatten(1, (heads, -1))  # [n, Hkv, G, D]
        scores = torch.einsum("nhgd,thd->hgnt", queries, keys)
        scores *= q.shape[-1] ** -0.5
        seen = torch.arange(length, device=q.device) <= positions[:, None]  # [n, t]
        probs = scores.masked_fill_(~seen, -torch.inf).softmax(-1)
        exact = torch.einsum("hgnt,thd->nhgd", probs, self.v[layer, :length]).flatten(1, 2)
        ours = out[self._rows].float().view_as(exact)  # [n, Hq, D]
        self.error[layer] += (ours - exact).double().square().sum((0, 2)).cpu()
        self.norm[layer] += exact.double().square().sum((0, 2)).cpu()
        if self._stored is None:
            new = self._positions.cpu().numpy()
            stored = stored_slots(self.engine, length, new)  # [L, Hkv, t]
            self._stored = torch.from_numpy(stored).to(q.device)
        kept = probs.mean(1).sum(1) * self._stored[layer]  # [Hkv, t]
        self.mass[layer] += kept.double().sum(-1).cpu()


def _noise(engine: Engine, request: Request, twin: _Twin) -> tuple[np.ndarray, np.ndarray]:
    """SNR in dB of stored K and V against what was written, [L] each."""
    result = []
    stored = stored_slots(engine, twin.k.shape[1], np.empty(0, np.int64))
    here = torch.from_numpy(stored).permute(0, 2, 1)[..., None].to(twin.k.device)  # [L, t, Hkv, 1]
    for exact, ours in zip((twin.k, twin.v), stored_kv(engine, request), strict=True):
        signal = (exact * here).double().square().sum((1, 2, 3))
        noise = ((exact - ours[:, : exact.shape[1]]) * here).double().square().sum((1, 2, 3))
        ratio = (signal / noise.clamp(min=1e-300)).log10() * 10
        result.append(ratio.clamp(max=EXACT_DB).cpu().numpy())
    return result[0], result[1]
