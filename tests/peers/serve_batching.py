"""transformers' continuous batching as a contender."""

from typing import Any

import torch
import transformers
from serve import Generate, Progress, serve
from serve_transformers import load_network
from transformers import ContinuousBatchingConfig, GenerationConfig

PAGE_TOKENS = 64


def load(options: dict[str, Any]) -> tuple[str, str, Generate]:
    """The model and its `generate_batch`, with a cache that holds the whole batch."""
    network = load_network(options)

    def generate(prompts: list[list[int]], num_new: int, record: Progress) -> list[list[int]]:
        pages = 2 + (len(prompts[0]) + num_new) // PAGE_TOKENS
        settings = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS, num_blocks=pages * len(prompts), max_batch_tokens=2048,
            max_requests_per_batch=len(prompts), allow_block_sharing=False, use_cuda_graph=False,
            use_async_batching=False,
        )  # fmt: skip
        config = GenerationConfig(
            max_new_tokens=num_new, min_new_tokens=num_new, do_sample=False, eos_token_id=-1,
            pad_token_id=0,
        )  # fmt: skip
        with torch.inference_mode():
            done = network.generate_batch(
                prompts, generation_config=config, continuous_batching_config=settings,
                record_timestamps=True, progress_bar=False,
            )  # fmt: skip
        outputs = sorted(done.values(), key=lambda output: int(output.request_id.split("_")[-1]))
        replay(outputs, record)
        return [list(output.generated_tokens) for output in outputs]

    return "transformers continuous batching", transformers.__version__, generate


def replay(outputs: list[Any], record: Progress) -> None:
    """Tell the recorded time stamps (of time.perf_counter) as if they came now.

    Making and ending the manager at each call is left out of the whole time: a server does it once.
    """
    stamps = sorted((at, row) for row, out in enumerate(outputs) for at in out.timestamps or [])
    counts = [0] * len(outputs)
    for at, row in stamps:
        counts[row] += 1
        record.times.append((at, list(counts)))
    if stamps:
        record.span = min(output.created_time for output in outputs), stamps[-1][0]


if __name__ == "__main__":
    serve(load)
