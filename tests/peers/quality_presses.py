"""What kvpress keeps, and its KL; runs in an environment of its own.

Request: {"model": folder, "threads": n, "context": tokens, "step": tokens, "windows": [[ids]],
"presses": [name], "ratios": [share evicted], "out": path of an .npz}.
Answer: {"presses": {name: {ratio: {"kl": [[nats]], "same": [[bool]], "kept": tokens per head,
"newest_dropped": heads}}}}.
The file has, for each window w, `kept/name/ratio/w` bool [L, Hkv, context] packed to bytes along
the last axis, and `scores/name/ratio/w` fp32 [L, Hkv, context].

SnapKVPress and TOVAPress never drop the newest token; ObservedAttentionPress, KnormPress and
ExpectedAttentionPress may.
Here they do not either: its score is raised, and `newest_dropped` says in how many heads that
mattered. AdaKVPress drops nothing but masks: what it left is what it did not mask.
"""

import json
import sys
from typing import Any

import numpy as np
import torch
from kvpress import (
    AdaKVPress,
    ExpectedAttentionPress,
    KnormPress,
    ObservedAttentionPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from quality_common import answer, as_bits, compare, load, log_rows, read_context, tell
from torch import Tensor
from transformers import DynamicCache

PRESSES = {
    "streaming_llm": lambda ratio: StreamingLLMPress(compression_ratio=ratio, n_sink=4),
    "snapkv": lambda ratio: SnapKVPress(compression_ratio=ratio, window_size=64, kernel_size=5),
    "tova": lambda ratio: TOVAPress(compression_ratio=ratio),
    "observed_attention": lambda ratio: ObservedAttentionPress(compression_ratio=ratio),
    "knorm": lambda ratio: KnormPress(compression_ratio=ratio),
    "expected_attention": lambda ratio: ExpectedAttentionPress(compression_ratio=ratio),
    "adakv_snapkv": lambda ratio: AdaKVPress(
        SnapKVPress(compression_ratio=ratio, window_size=64, kernel_size=5), alpha_safeguard=0.0
    ),
}
NEEDS_EAGER = ("observed_attention",)
KEEPS_NEWEST = ("observed_attention", "knorm", "expected_attention")


class Recorder:
    """Stands around a press: the scores it gave and the tokens it left, layer by layer."""

    def __init__(self, press: Any, *, keeps_newest: bool) -> None:
        self.newest_dropped = 0
        self._keeps_newest = keeps_newest
        self.scores: list[Tensor] = []  # fp32 [Hkv, T]
        self.kept: list[Tensor] = []  # bool [Hkv, T]
        self._press = press
        scorer = getattr(press, "press", press)  # AdaKV stands around another
        self._score, self._compress = scorer.score, press.compress
        scorer.score, press.compress = self.score, self.compress

    def score(self, *args: Any, **kwargs: Any) -> Tensor:
        """The press's own scores; the newest token's may be raised above all others."""
        scores = self._score(*args, **kwargs)
        if self._keeps_newest:
            left = int(scores.shape[-1] * (1 - self._press.compression_ratio))
            least = scores.topk(left, dim=-1).values[..., -1]
            self.newest_dropped += int((scores[..., -1] < least).sum())
            scores[..., -1] = scores.max() + 1
        self.scores.append(scores[0].float().clone())
        return scores

    def compress(
        self,
        module: Any,
        hidden: Tensor,
        keys: Tensor,
        values: Tensor,
        attentions: Any,
        kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """The press's own choice, read back from the keys it left."""
        left, left_values = self._compress(module, hidden, keys, values, attentions, kwargs)
        if left is keys:  # AdaKV only masks what it drops
            kept = torch.ones(keys.shape[1:3], dtype=torch.bool)
            _, heads, places = module.masked_key_indices
            kept[heads, places] = False
            self.kept.append(kept)
            return left, left_values
        chosen = self.scores[-1].topk(left.shape[2], dim=-1).indices  # [Hkv, kept]
        expected = keys[0].gather(1, chosen[..., None].expand(-1, -1, keys.shape[-1]))
        assert torch.equal(expected, left[0]), "the press did not keep its best scores"
        kept = torch.zeros(keys.shape[1:3], dtype=torch.bool).scatter_(1, chosen, True)
        self.kept.append(kept)
        return left, left_values


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    context, step = request["context"], request["step"]
    network = load(request["model"], request["threads"], "sdpa")
    found: dict[str, Any] = {name: {} for name in request["presses"]}
    arrays: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for number, ids in enumerate(request["windows"]):
            tell(f"kvpress, window {number + 1}: full cache")
            network.set_attn_implementation("sdpa")
            exact = DynamicCache()
            read_context(network, ids[:context], exact)
            full = log_rows(network, ids[context:], exact, context, step)
            for name in request["presses"]:
                network.set_attn_implementation("eager" if name in NEEDS_EAGER else "sdpa")
                for ratio in request["ratios"]:
                    tell(f"kvpress, window {number + 1}: {name}, {ratio:.0%} evicted")
                    press = PRESSES[name](ratio)
                    recorder = Recorder(press, keeps_newest=name in KEEPS_NEWEST)
                    cache = DynamicCache()
                    with press(network):
                        read_context(network, ids[:context], cache)
                    rows = log_rows(network, ids[context:], cache, context, step)
                    kl, same = compare(full, rows)
                    result = found[name].setdefault(
                        str(ratio), {"kl": [], "same": [], "newest_dropped": 0}
                    )
                    result["kl"].append(kl)
                    result["same"].append(same)
                    result["newest_dropped"] += recorder.newest_dropped
                    result["kept"] = int(recorder.kept[0].sum()) // len(recorder.kept[0])
                    key = f"{name}/{ratio}/{number}"
                    arrays[f"kept/{key}"] = as_bits(torch.stack(recorder.kept).numpy())
                    arrays[f"scores/{key}"] = torch.stack(recorder.scores).numpy()
    np.savez(request["out"], **arrays)
    answer(presses=found)


if __name__ == "__main__":
    main()
