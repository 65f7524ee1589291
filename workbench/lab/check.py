"""`workbench check`: a random workload, every invariant after each step, planted faults caught."""

from collections import Counter
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch

from workbench.engine.engine import Engine
from workbench.lab.figures import Figure
from workbench.lab.planted import PLANTED, catch
from workbench.lab.random_changes import start_config
from workbench.lab.random_load import ABORT_STATES, RandomLoad
from workbench.model.load import LoadedModel
from workbench.model.naive import naive_logits
from workbench.model.random_launch import random_model

NEAR_TIE = 1e-3  # I9: two correct programs may choose differently below this margin
MAX_DRAIN_STEPS = 20_000
NUM_LAYERS = 3  # halves of one and two layers: two page classes
NOTED = 3  # violations whose text goes into the figure's note


class Check:
    """One random run; `violations` has a sentence for each invariant that did not hold."""

    def __init__(self, model: LoadedModel, seed: int) -> None:
        self.engine = Engine(start_config(), model, verify_bytes=True)
        self._folder = TemporaryDirectory(prefix="kv-workbench-check-")
        self.load = RandomLoad(self.engine, seed, folder=self._folder.name)
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self._model = model
        self._evicted = 0

    def run(self, num_steps: int, progress: Callable[[str], None]) -> None:
        """`num_steps` random steps, then until nothing is left; stops at an exception."""
        try:
            for step in range(num_steps):
                self.load.turn()
                self._after_step(step)
                if (step + 1) % 1000 == 0:
                    progress(f"{step + 1} steps, {len(self.violations)} violations")
            self._drain()
        except Exception as error:  # whatever it is, the engine must not raise: it is a finding
            self.violations.append(f"step {self.engine.num_steps}: {type(error).__name__}: {error}")
        finally:
            self.engine.hierarchy.close()
            self._folder.cleanup()

    def _drain(self) -> None:
        for step in range(MAX_DRAIN_STEPS):
            if not self.engine.has_work():
                break
            self.load.step()
            self._after_step(step)
        else:
            self.violations.append(f"I8: {len(self.engine.requests)} requests never ended")
        held = int((self.engine.stack.pool.ref_cnt > 0).sum())
        if held:
            self.violations.append(f"I2: {held} blocks are held although nothing runs")

    def _after_step(self, step: int) -> None:
        evicted = self.engine.stack.pool.num_evicted_rows
        # a rebuild starts counting anew
        self.counts["evictions"] += evicted - (self._evicted if evicted >= self._evicted else 0)
        self._evicted = evicted
        view = self.engine.check_integrity()
        if not view.ok:
            self.violations.append(f"step {view.step}: {view.message}")
        if step % 16 == 0:
            self.engine.frame(step, state="running")
        for request_id in self.load.ended:
            if request_id not in self.load.lossy:
                self._compare(request_id)
        self.load.ended.clear()

    def _compare(self, request_id: str) -> None:
        """I9: the tokens of an exact greedy request are the naive loop's."""
        self.counts["compared"] += 1
        prompt, output = self.load.prompts[request_id], self.load.outputs[request_id]
        logits = naive_logits(self._model.decoder, prompt + output[:-1])[len(prompt) - 1 :]
        for at, (row, token) in enumerate(zip(logits, output, strict=True)):
            best = row.topk(2)
            if int(best.indices[0]) == token:
                continue
            if float(best.values[0] - best.values[1]) < NEAR_TIE:
                self.counts["near_ties"] += 1
                return  # from here on the texts differ
            self.violations.append(f"I9: request {request_id} differs from the naive loop at {at}")
            return


def measure(progress: Callable[[str], None], *, steps: int, seed: int) -> list[Figure]:
    """Run `steps` random steps and plant the faults; returns the figures."""
    torch.set_num_threads(1)  # the model is tiny: more threads would wait for each other
    model = random_model(NUM_LAYERS)
    check = Check(model, seed)
    check.run(steps, progress)
    caught = {name: catch(name, model) for name in PLANTED}
    return [*_figures(check, steps, seed), _planted_figure(caught)]


def _planted_figure(caught: dict[str, str]) -> Figure:
    missed = [name for name, message in caught.items() if not message]
    return Figure(
        name="planted_caught",
        value=len(caught) - len(missed),
        note="missed: " + ", ".join(missed) if missed else "; ".join(caught.values()),
    )


def _figures(check: Check, steps: int, seed: int) -> list[Figure]:
    engine, done = check.engine, check.load.counts
    aborts = {state: done[f"abort_{state}"] for state in ABORT_STATES}
    totals = engine.log.totals
    values: list[tuple[str, int, str]] = [
        ("check_steps", steps, f"seed {seed}, {totals['admit']} admissions"),
        ("check_violations", len(check.violations), "; ".join(check.violations[:NOTED])),
        ("check_preemptions", totals["preempt"], ""),
        ("check_evictions", check.counts["evictions"], "rows"),
        ("check_tier_faults", totals["tier_fault"], f"{done['injected_faults']} injected"),
        (
            "check_aborts_by_state",
            min(aborts.values()),
            "fewest of " + ", ".join(f"{state} {count}" for state, count in aborts.items()),
        ),
        (
            "check_naive_compared",
            check.counts["compared"],
            f"{check.counts['near_ties']} near ties",
        ),
    ]
    for kind in ("hot", "recode", "rebuild"):
        values.append((f"check_applies_{kind}", done[f"apply_{kind}"], ""))
    return [Figure(name=name, value=value, note=note) for name, value, note in values]
