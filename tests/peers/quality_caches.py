"""KL and real bytes of transformers' quantized caches; runs in an environment of its own.

Request: {"model": folder, "threads": n, "context": tokens, "step": tokens, "windows": [[ids]],
"caches": [{"name", "backend": "quanto" | "hqq", "nbits", "axis_key", "axis_value"}]}.
Answer: {"caches": {name: {"kl": [[nats]], "same": [[bool]], "bits": bits per number after the
context, "bits_later": after the last step, with its full-precision tokens}}}.
"""

import json
import sys
import time
from typing import Any

import torch
from quality_common import answer, compare, load, log_rows, read_context, tell
from torch import Tensor
from transformers import DynamicCache, QuantizedCache

GROUP, RESIDUAL = 64, 128  # the caches' own defaults


def tensors_of(value: Any) -> list[Tensor]:
    """The plain tensors that something holds: codes, scales, zeros."""
    if isinstance(value, Tensor):
        if type(value) is Tensor:
            return [value]
        # a tensor that is made of others names them
        return [found for name in value.__tensor_flatten__()[0]
                for found in tensors_of(getattr(value, name))]  # fmt: skip
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in tensors_of(item)]
    return []


def held_bytes(cache: QuantizedCache) -> int:
    """Bytes of all storages behind a cache, each counted once."""
    found: dict[int, int] = {}
    for layer in cache.layers:
        held = [layer._quantized_keys, layer._quantized_values, layer.keys, layer.values]
        for tensor in tensors_of(held):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes() if tensor.numel() else 0
    return sum(found.values())


def new_cache(network: Any, options: dict[str, Any]) -> QuantizedCache:
    """An empty quantized cache."""
    chosen = {key: options[key] for key in ("backend", "nbits", "axis_key", "axis_value")}
    return QuantizedCache(
        config=network.config, q_group_size=GROUP, residual_length=RESIDUAL, **chosen
    )


def filled(network: Any, options: dict[str, Any], full: DynamicCache) -> QuantizedCache:
    """A quantized cache after the context.

    Its first update returns what it was given, so reading the context is exact, and the full
    cache's K and V are what it would have got.
    """
    cache = new_cache(network, options)
    for index, layer in enumerate(full.layers):
        cache.update(layer.keys.clone(), layer.values.clone(), index)
    return cache


def warm_up(network: Any, caches: list[dict[str, Any]]) -> None:
    """quanto compiles C++ when it first unpacks codes."""
    tell("quanto compiles its C++ at its first use: that can take minutes")
    started = time.perf_counter()
    states = torch.randn(1, 3, 64, 64)
    for options in caches:
        cache = new_cache(network, options)
        for _ in range(2):
            cache.update(states, states, 0)
    tell(f"warmed up in {time.perf_counter() - started:.0f} s")


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    context, step, caches = request["context"], request["step"], request["caches"]
    network = load(request["model"], request["threads"], "sdpa")
    found: dict[str, Any] = {item["name"]: {"kl": [], "same": []} for item in caches}
    config = network.config
    width = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    with torch.inference_mode():
        warm_up(network, caches)
        for number, ids in enumerate(request["windows"]):
            tell(f"window {number + 1}: full cache")
            exact = DynamicCache()
            read_context(network, ids[:context], exact)
            rest = ids[context:]
            coded = {item["name"]: filled(network, item, exact) for item in caches}
            full = log_rows(network, rest, exact, context, step)
            for name, cache in coded.items():
                tell(f"window {number + 1}: {name}")
                result = found[name]
                result["bits"] = held_bytes(cache) * 8 / (width * context)
                kl, same = compare(full, log_rows(network, rest, cache, context, step))
                result["bits_later"] = held_bytes(cache) * 8 / (width * len(ids))
                result["kl"].append(kl)
                result["same"].append(same)
    answer(caches=found)


if __name__ == "__main__":
    main()
