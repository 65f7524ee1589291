"""`workbench bench model`: what each weight format costs in KL, and how fast a second start loads.

`python -m workbench.lab.model_bench FORMAT LAYERS` is one start: it prints the seconds of loading.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from workbench.clock import RealClock
from workbench.errors import WorkbenchError
from workbench.lab.bench_runs import bench_model, median
from workbench.lab.chat_texts import QUESTIONS, SYSTEM_PROMPT
from workbench.lab.figures import Figure
from workbench.model.naive import naive_logits

Progress = Callable[[str], None]
EXACT = "fp32"
FORMATS = {"packed": "as_stored", "int8": "int8", "bf16": "bf16"}  # figure's name: setting


@dataclass(frozen=True)
class ModelPlan:
    """Tokens compared and starts timed; `random_layers` > 0 takes a small random model."""

    num_tokens: int = 512
    num_starts: int = 5
    random_layers: int = 0


QUICK = ModelPlan(num_tokens=64, num_starts=1)


def measure(
    progress: Progress, *, quick: bool = False, plan: ModelPlan | None = None
) -> list[Figure]:
    """KL of each format to fp32 on one text, then starts in fresh processes."""
    plan = plan or (QUICK if quick else ModelPlan())
    exact = bench_model(EXACT, plan.random_layers)
    text = "\n".join([SYSTEM_PROMPT, *QUESTIONS])
    token_ids = exact.tokenizer.encode(text)[: plan.num_tokens]
    reference = naive_logits(exact.decoder, token_ids).log_softmax(-1)
    figures = []
    for name, weight_format in FORMATS.items():  # each is loaded once here, so it is converted
        logits = naive_logits(bench_model(weight_format, plan.random_layers).decoder, token_ids)
        kl = (reference.exp() * (reference - logits.log_softmax(-1))).sum(-1).mean()
        figures.append(
            Figure(
                name=f"kl_{name}", value=max(0.0, float(kl)), unit="nats",
                note=f"mean KL to fp32 of {len(token_ids)} tokens, {weight_format} weights",
            )
        )  # fmt: skip
        progress(f"{weight_format} weights: KL {float(kl):.4f} to fp32")
    for name, weight_format in (("second_start_s", "bf16"), ("second_start_packed_s", "as_stored")):
        times = [start(weight_format, plan.random_layers) for _ in range(plan.num_starts)]
        figures.append(
            Figure(
                name=name, value=median(times), unit="s",
                note=f"loading converted {weight_format} weights in a fresh process, median of "
                f"{len(times)}, slowest {max(times):.2f} s; imports not counted",
            )
        )  # fmt: skip
        progress(f"{weight_format}: loaded in {median(times):.2f} s")
    return figures


def start(weight_format: str, random_layers: int) -> float:
    """Seconds a fresh process takes to load a model; WorkbenchError if it ends early."""
    command = [sys.executable, "-m", "workbench.lab.model_bench", weight_format, str(random_layers)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WorkbenchError(f"the model did not load ({last}): run `workbench model fetch`")
    return float(done.stdout)


def main(weight_format: str, random_layers: int) -> None:
    """One start."""
    torch.set_grad_enabled(False)
    clock = RealClock()
    started_s = clock.now_s()
    bench_model(weight_format, random_layers)
    print(clock.now_s() - started_s)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
