"""Linear layers of each kind, the converted store, and what a second start reads."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_folders import TOKENS, tiny_tokenizer, write_case

from workbench.errors import ModelError
from workbench.model.arch import ModelArch
from workbench.model.load import LoadedModel, load_model
from workbench.model.naive import naive_logits
from workbench.model.quantize import can_pack_int4, int4_groups, int8_rows
from workbench.model.source import Group4Bit
from workbench.model.store import write_aligned
from workbench.model.weights import (
    DenseLinear,
    FusedGatedLinear,
    Int4Linear,
    Int8Linear,
    PrepackedGatedLinear,
    PrepackedLinear,
)
from workbench.views import WeightNote


def unaligned(rows: int, columns: int) -> torch.Tensor:
    """A bf16 matrix that starts 2 bytes after a multiple of 64."""
    return torch.randn(rows * columns + 1).bfloat16()[1:].view(rows, columns)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 70), out=st.integers(1, 5), inner=st.integers(1, 5), bias=st.booleans())
def test_kinds_agree_with_a_plain_product(rows: int, out: int, inner: int, bias: bool) -> None:
    torch.manual_seed(rows)
    out_features, in_features = out * 16, inner * 32
    codes = torch.randint(0, 16, (out_features, in_features), dtype=torch.uint8)
    scale = (torch.rand(out_features, inner) / 8).bfloat16().float()
    groups = Group4Bit(codes, scale, -8 * scale)
    weight = (codes - 8.0) * scale.repeat_interleave(32, 1)
    x, residual = unaligned(rows, in_features), torch.randn(rows, out_features).bfloat16()
    offset = torch.randn(out_features).bfloat16() if bias else None
    exact = x.float() @ weight.T + residual.float() + (offset.float() if bias else 0)
    four, eight = int4_groups(groups), int8_rows(weight)
    linears = [
        DenseLinear(weight.bfloat16(), offset),
        PrepackedLinear(weight.bfloat16(), offset),
        Int4Linear(four.codes, four.scale, offset),
        Int8Linear(eight.codes, eight.scale, offset),
    ]
    before = residual.clone()
    for linear in linears:
        got = linear(x, residual).float()
        assert (got - exact).norm() <= 0.02 * exact.norm(), linear.kind
        assert (linear.in_features, linear.out_features) == (in_features, out_features)
    assert torch.equal(residual, before)


def test_gated_layers_agree() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(64, 32).bfloat16(), torch.randn(5, 32).bfloat16()
    gate, up = (x.float() @ weight.float().T).chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    for gated in (PrepackedGatedLinear(weight), FusedGatedLinear(DenseLinear(weight))):
        assert (gated(x).float() - exact).norm() <= 0.02 * exact.norm()
        assert (gated.out_features, gated.weight_bytes) == (32, weight.nbytes)


def test_int4_shapes() -> None:
    assert can_pack_int4(960, 576) and not can_pack_int4(24, 576) and not can_pack_int4(32, 40)


def test_written_files_start_large_tensors_at_64_bytes(tmp_path: Path) -> None:
    from safetensors import safe_open

    tensors = {"b": torch.ones(3), "a": torch.arange(64).to(torch.int8).view(2, 32)}
    write_aligned(tmp_path / "x.safetensors", tensors, {"note": "é"})
    with safe_open(str(tmp_path / "x.safetensors"), framework="pt") as file:
        assert file.metadata() == {"note": "é"}
        assert file.get_tensor("a").data_ptr() % 64 == 0
        assert all(torch.equal(file.get_tensor(key), tensors[key]) for key in tensors)


@pytest.fixture
def folder(tmp_path: Path, empty_cache: Path) -> Path:
    folder = write_case(tmp_path / "model", "qwen2_bias_tied", shards=2)
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    return folder


def test_second_load_needs_no_source_and_is_equal(folder: Path, empty_cache: Path) -> None:
    first = load_model(str(folder), "fp32")
    steps: list[int] = []
    second = load_model(str(folder), "fp32", progress=lambda done, total: steps.append(done))
    assert steps == sorted(steps) and steps[-1] == 3
    assert first.decoder.fingerprint == second.decoder.fingerprint
    logits = [naive_logits(model.decoder, TOKENS) for model in (first, second)]
    assert torch.equal(*logits)
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint
    assert len(list((empty_cache / "converted").glob("*/fp32-*.safetensors"))) == 1


def test_changed_source_is_converted_again(folder: Path) -> None:
    before = load_model(str(folder), "fp32")
    write_case(folder, "qwen3_norm")
    for path in folder.glob("model-0*"):
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    after = load_model(str(folder), "fp32")
    assert before.decoder.fingerprint != after.decoder.fingerprint
    assert after.arch.qk_norm


def test_half_a_converted_file_is_written_again(folder: Path, empty_cache: Path) -> None:
    expected = naive_logits(load_model(str(folder), "fp32").decoder, TOKENS)
    (path,) = (empty_cache / "converted").glob("*/fp32-*.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    assert torch.equal(naive_logits(load_model(str(folder), "fp32").decoder, TOKENS), expected)
    (empty_cache / "converted" / "sources.json").write_text("[")
    assert torch.equal(naive_logits(load_model(str(folder), "fp32").decoder, TOKENS), expected)


@pytest.mark.parametrize("name, content", [
    ("sources.json", '{"PATH": 3}'), ("sources.json", "[1]"), ("*/about.json", '{"layout": 2}'),
    ("*/about.json", '{"layout": 2, "arch": {}, "name": 1}'), ("*/tokenizer.json", '{"model":'),
])  # fmt: skip
def test_what_is_remembered_of_a_model_is_damaged(
    folder: Path, empty_cache: Path, name: str, content: str
) -> None:
    expected = load_model(str(folder), "fp32")
    (path,) = (empty_cache / "converted").glob(name)
    path.write_text(content.replace("PATH", str(folder.resolve())))
    again = load_model(str(folder), "fp32")
    assert again.decoder.fingerprint == expected.decoder.fingerprint
    assert again.tokenizer.fingerprint == expected.tokenizer.fingerprint
    assert path.read_text() != content, "it was written anew"


def test_cache_folder_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="not writable .*point KV_WORKBENCH_CACHE elsewhere"):
        load_model(str(folder), "fp32")


def test_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real file system of 64 KiB, where one can be mounted."""
    small = folder.parent / "small"
    small.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=64k none {small} 2>/dev/null"):
        pytest.skip("mounting a small file system needs root")
    try:
        monkeypatch.setenv("KV_WORKBENCH_CACHE", str(small))
        with pytest.raises(ModelError, match="is full: .* MB .* KV_WORKBENCH_CACHE elsewhere"):
            load_model(str(folder), "fp32")
        assert not list(small.rglob("*.safetensors"))
    finally:
        os.system(f"umount {small}")


def test_fingerprints_differ_by_format(folder: Path) -> None:
    formats = ("fp32", "bf16", "int8")
    prints = {load_model(str(folder), name).decoder.fingerprint for name in formats}
    assert len(prints) == 3


def test_real_formats_say_what_they_are(real_model: Callable[[str], LoadedModel]) -> None:
    stored, auto = real_model("as_stored"), real_model("auto")
    kept = WeightNote(kind="kept", values={"stored": "Q8_0", "format": "int8"})
    assert stored.notes == (kept,) and kept.plain() == "Q8_0 weights kept as int8"
    assert stored.decoder.weight_bytes < 96_000_000 < real_model("bf16").decoder.weight_bytes
    assert auto.decoder.schedule_dependent and not stored.decoder.schedule_dependent
    assert [note.kind for note in auto.notes] == ["kept", "auto"]
    assert "so tokens depend on the schedule" in auto.notes[1].plain()
    assert stored.decoder.compute_dtype == torch.bfloat16


def test_arch_survives_json() -> None:
    arch = ModelArch(
        name="x",
        num_layers=1,
        hidden_size=8,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        intermediate_size=8,
        vocab_size=8,
        eos_ids=(1, 2),
    )
    assert ModelArch.from_json(arch.to_json()) == arch
