"""transformers `generate` as a contender: one static batch, its default cache, sdpa."""

from typing import Any

import torch
import transformers
from serve import Generate, Progress, serve
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def load_network(options: dict[str, Any]) -> Any:
    """The model of a local folder in bf16 or fp32, without an end token."""
    torch.set_num_threads(options["threads"])
    network = AutoModelForCausalLM.from_pretrained(
        options["model"], dtype=DTYPES[options["dtype"]], local_files_only=True,
        attn_implementation="sdpa",
    )  # fmt: skip
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    return network.eval()


class Recorder(StoppingCriteria):
    """Never stops; tells after each step how many tokens there are."""

    def __init__(self, record: Progress, prompt_tokens: int) -> None:
        self._record = record
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """One step is done."""
        count = input_ids.shape[1] - self._prompt_tokens
        self._record([count] * input_ids.shape[0])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def load(options: dict[str, Any]) -> tuple[str, str, Generate]:
    """The model and its `generate`."""
    network = load_network(options)

    def generate(prompts: list[list[int]], num_new: int, record: Progress) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = network.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False,
                min_new_tokens=num_new, max_new_tokens=num_new,
                stopping_criteria=StoppingCriteriaList([Recorder(record, ids.shape[1])]),
            )  # fmt: skip
        tokens: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return tokens

    return "transformers generate", transformers.__version__, generate


if __name__ == "__main__":
    serve(load)
