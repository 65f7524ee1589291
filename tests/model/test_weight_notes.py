"""What `auto` does to the answers is said wherever weights are named, and is part of every key."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_folders import tiny_tokenizer, write_case

from app.text import load_texts
from app.text.sentences import weight_notes
from workbench.commands.model_info import describe
from workbench.config import EngineConfig, replace_settings
from workbench.engine.cache_stack import make_root_key
from workbench.engine.engine import Engine
from workbench.lab.headless import engine_figures
from workbench.model.assemble import assemble_auto
from workbench.model.convert import convert
from workbench.model.hf_loader import HfSource
from workbench.model.load import LoadedModel, load_model
from workbench.model.store import StoredWeights
from workbench.request import Request, RequestSpec
from workbench.views import WeightNote

TOLD = "so tokens depend on the schedule"
CONFIG = replace_settings(
    EngineConfig(),
    {"cache.hbm_budget_mib": 1.0, "model.max_model_len": 64, "cache.block_size": 4},
)


@pytest.fixture
def folder(tmp_path: Path, empty_cache: Path) -> Path:
    """A tiny model stored in bf16: what is stored in fp32 stays fp32, whatever the schedule."""
    folder = write_case(tmp_path / "model", "llama_gqa_untied")
    path = folder / "model.safetensors"
    save_file({name: x.bfloat16() for name, x in load_file(path).items()}, path, {"format": "pt"})
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    return folder


def with_threshold(model: LoadedModel, folder: Path, threshold: int) -> LoadedModel:
    source = HfSource(folder)
    few, many = (
        StoredWeights(made.tensors, made.kinds, ())
        for made in (convert(source, name) for name in ("int8", "bf16"))
    )
    decoder, chosen = assemble_auto(
        source.arch, few, many, identity=source.identity, device="cpu", threshold=threshold
    )
    assert chosen == threshold and decoder.schedule_dependent
    return LoadedModel(
        decoder, model.tokenizer, model.arch, model.name, model.path, model.identity, ()
    )


def test_another_threshold_is_another_key(folder: Path) -> None:
    model = load_model(str(folder), "bf16", "cpu")
    request = Request("a", RequestSpec(token_ids=[1, 2]), [1, 2], 0.0)
    roots = [
        make_root_key(CONFIG, with_threshold(model, folder, threshold))(request)
        for threshold in (0, 4, 16, 4)
    ]
    assert len(set(roots)) == 3 and roots[1] == roots[3]


def test_the_picture_tells_of_the_schedule(folder: Path) -> None:
    for weights, kinds in (("auto", ["auto"]), ("bf16", [])):
        model = load_model(str(folder), weights, "cpu")
        assert model.decoder.schedule_dependent == bool(kinds)
        engine = Engine(CONFIG, model)
        snapshot = engine.snapshot()
        engine.close()
        assert [note.kind for note in snapshot.weight_notes] == kinds
        told = weight_notes(load_texts(), snapshot.weight_notes)
        assert [TOLD in sentence for sentence in told] == [True] * len(kinds)
        assert told == [note.plain() for note in snapshot.weight_notes]
        (figure,) = (f for f in engine_figures(snapshot) if f.name == "weight_bytes")
        assert figure.value == model.decoder.weight_bytes
        assert figure.note.startswith(weights) and (TOLD in figure.note) == bool(kinds)


def test_info_tells_what_loading_makes_of_them(folder: Path) -> None:
    assert "weights" not in describe(folder)
    facts = describe(folder, "auto")
    assert facts["weights"] == "auto" and facts["schedule_dependent"] is True
    assert TOLD in facts["weight_notes"][0]
    assert describe(folder, "int8")["weight_notes"] == ["BF16 weights kept as int8"]


def test_run_tells_it(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"token_ids": [1, 0, 1], "max_tokens": 2, "ignore_eos": True}))
    command = [
        str(Path(sys.executable).parent / "workbench"), "run", str(prompts), "--json",
        "--set", "model.num_threads=1", "--set", f"model.path={folder}",
        "--set", "model.weight_format=auto", "--set", "cache.block_size=4",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (figure,) = (f for f in json.loads(done.stdout)["figures"] if f["name"] == "weight_bytes")
    assert TOLD in figure["note"] and figure["unit"] == "bytes"


@pytest.mark.skipif(torch.cuda.is_available(), reason="names a device that is not there")
def test_every_kind_has_one_sentence() -> None:
    values = {"stored": "Q8_0", "format": "int8", "device": "cuda", "rows": 4}
    for kind in ("kept", "moved", "auto"):
        note = WeightNote(kind=kind, values=values)  # type: ignore[arg-type]
        assert weight_notes(load_texts(), [note]) == [note.plain()]
        assert "{" not in note.plain()
