"""A quality job in a process of its own: `python -m workbench.quality.job`.

Reads a `JobPlan` as one line of JSON on standard input and writes one line of JSON for each step of
progress and each report, as they come. It ends when all is measured, on SIGTERM, and when its
standard input closes (also by the starter's death): then it reports what it has and stops.
"""

import sys

import torch

from workbench.lab.child_job import Cancel, end_with_starter, serve, write
from workbench.model.load import LoadedModel, load_model
from workbench.model.random_launch import random_model
from workbench.quality import job_protocol as protocol
from workbench.quality.engines import (
    check_changes,
    full_changes,
    lab_engine,
)
from workbench.quality.needle import needle_windows
from workbench.quality.probes import probe
from workbench.quality.run import Contender, Doing, compare, make_contender, report_of
from workbench.quality.texts import text_windows

FULL, PROBES_SHARE = "full cache", 0.2


class Job:
    """One plan on one model; `run` writes the lines."""

    def __init__(self, job: protocol.JobPlan, model: LoadedModel, cancel: Cancel) -> None:
        self._job = job
        self._model = model
        self._cancel = cancel
        self._settings = job.settings
        self._contenders: list[Contender] = []
        self._sent: dict[str, tuple[int, int]] = {}  # windows and needles a report was sent for
        self._share = 1.0 - PROBES_SHARE if job.probes else 1.0

    def run(self) -> None:
        """Measure; raises WorkbenchError before anything runs for what cannot be measured."""
        plan, model = self._job.plan, self._model
        for setting in self._settings:
            check_changes(setting.changes)
        plan.held_bytes(model.arch.vocab_size)
        self._contenders = [make_contender(model, item, plan) for item in self._settings]
        windows = text_windows(model.tokenizer, plan)
        needles = needle_windows(model.tokenizer, plan) if plan.needle else []
        full = Contender(FULL, lambda size: lab_engine(model, full_changes(model), size))
        compare(full, self._contenders, windows, needles, plan, self._progress, self._cancel)
        self._send_reports()
        if self._job.probes:
            self._run_probes()

    def _progress(self, share: float, doing: Doing) -> None:
        self._send_reports()
        write(
            protocol.ProgressLine(
                share=share * self._share,
                kind=doing.kind,
                number=doing.number,
                setting="" if doing.setting == FULL else doing.setting,
            )
        )

    def _send_reports(self) -> None:
        """A report for each setting that has a new window or needle since its last one."""
        for setting, contender in zip(self._settings, self._contenders, strict=True):
            have = (len(contender.windows), len(contender.needle))
            if not have[0] or self._sent.get(setting.name) == have:
                continue
            self._sent[setting.name] = have
            report = report_of(self._model, setting, contender, self._job.plan, have[0])
            write(protocol.ReportLine(report=report))

    def _run_probes(self) -> None:
        for number, setting in enumerate(self._settings):
            if self._cancel():
                return
            done = self._share + PROBES_SHARE * number / len(self._settings)
            write(protocol.ProgressLine(share=done, kind="probe", setting=setting.name))
            found = probe(self._model, setting, self._job.plan)
            write(
                protocol.ProbesLine(
                    name=setting.name,
                    num_positions=found.num_positions,
                    output_error=found.output_error.tolist(),
                    kept_mass=found.kept_mass.tolist(),
                    k_snr_db=found.k_snr_db.tolist(),
                    v_snr_db=found.v_snr_db.tolist(),
                )
            )


def _load(job: protocol.JobPlan) -> LoadedModel:
    write(protocol.ProgressLine(share=0.0, kind="loading"))
    if job.random_layers:
        return random_model(job.random_layers)
    return load_model(job.model_path, job.plan.weight_format)


def main() -> int:
    """Run the job that standard input describes; returns the exit code."""
    return serve(_work, protocol.MAX_PLAN_BYTES)


def _work(line: bytes, cancel: Cancel) -> None:
    job = protocol.decode_plan(line)
    end_with_starter(cancel)
    cancel.limit(job.time_limit_s)
    torch.set_num_threads(max(1, job.num_threads))
    model = _load(job)
    arch = model.arch
    write(
        protocol.ModelLine(
            name=model.name,
            weight_format="fp32" if job.random_layers else job.plan.weight_format,
            num_layers=arch.num_layers,
            num_heads=arch.num_heads,
            num_kv_heads=arch.num_kv_heads,
            head_dim=arch.head_dim,
        )
    )
    Job(job, model, cancel).run()


if __name__ == "__main__":
    sys.exit(main())
