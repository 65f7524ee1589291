"""Calibration: what is measured, what a file must be, and what depends on it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from kvkernels.layout import FORMATS, PageSpec
from safetensors.torch import load_file, save_file

from tests.engine.harness import Runner, build, model, tokens
from tests.kernels.float64_encoders import low_rank, nuq_channels, nuq_tokens
from workbench.config import EngineConfig, replace_settings
from workbench.engine.cache_stack import format_label
from workbench.engine.calibrating import calibrate
from workbench.errors import SettingError
from workbench.layer_plan import parse_ranks, write_ranks
from workbench.settings.formats import CALIBRATED_FORMATS
from workbench.structural.compression.calibration import Calibration, load, mixing, shapes
from workbench.structural.compression.ranks import choose_ranks, kept_share

TEXT = 256


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calibrate(model(), TEXT, tmp_path_factory.mktemp("cal") / "own.safetensors").path


@pytest.fixture(scope="module")
def known(file: Path) -> Calibration:
    return load(file, model().decoder)


def formats(name: str, **more: object) -> dict[str, object]:
    return {"cache.k_format": name, "cache.v_format": name, **more}


def test_measured_twice_is_the_same_file(file: Path, known: Calibration, tmp_path: Path) -> None:
    again = calibrate(model(), TEXT, tmp_path / "again.safetensors")
    assert again.fingerprint == known.fingerprint
    assert {name: tuple(x.shape) for name, x in known.tensors.items()} == shapes(model().decoder)
    assert known.num_tokens == TEXT


def test_the_directions_are_orthonormal_and_the_strongest_first(known: Calibration) -> None:
    for plane in ("k", "v"):
        rows, power = known.tensors[f"{plane}.basis"], known.tensors[f"{plane}.power"]
        same = torch.eye(rows.shape[-1]).expand_as(rows)
        torch.testing.assert_close(rows @ rows.mT, same, atol=1e-5, rtol=0)
        assert (power.diff(dim=-1) <= 1e-6).all()
    turn = mixing(12)
    torch.testing.assert_close(turn @ turn.T, torch.eye(12), atol=1e-6, rtol=0)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_levels_rise_within_the_range_and_fit_better_than_even_ones(
    known: Calibration, bits: int
) -> None:
    for plane in ("k", "v"):
        levels = known.tensors[f"{plane}.levels{bits}"]
        assert levels.shape[-1] == 2**bits and (levels.abs() <= 1).all()
        assert (levels.diff(dim=-1) > 0).all()


@pytest.mark.parametrize("name", CALIBRATED_FORMATS)
def test_a_table_reaches_the_codec_as_the_float64_encoder_has_it(
    known: Calibration, name: str
) -> None:
    """Each layer and head of K and V, with its own channels, levels and directions."""
    spec = PageSpec(2, 2, 16, 16, name, name, rank=12)
    state = known.state(spec, (0, 1), (0, 1), "cpu")
    x = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    for plane, fmt in (("k", spec.k), ("v", spec.v)):
        x_plane = x * 2 if plane == "k" else x
        code = fmt.encode(x_plane, state.page_scale(spec, plane))
        got = fmt.decode(code.data, code.meta, state.page_scale(spec, plane)).double().numpy()
        for layer, head in np.ndindex(2, 2):
            own = {key: value[layer, head].double().numpy() for key, value in known.tensors.items()
                   if "joint" not in key}  # fmt: skip
            given = x_plane[layer, head].double().numpy()
            want = _encoder(own, plane, name, fmt.bits)(given)
            assert (np.abs(got[layer, head] - want) > 1e-3).mean() < 0.02


def _encoder(own: dict[str, np.ndarray], plane: str, name: str, bits: int):
    if name.startswith("lowrank"):
        rows = own[f"{plane}.basis"][:12]
        rows = mixing(12).double().numpy() @ rows if bits == 4 else rows
        return low_rank(bits, own[f"{plane}.mean"], rows)
    levels = own[f"{plane}.levels{bits}"]
    if plane == "v":
        return nuq_tokens(bits, levels)
    low, high = own["k.low"], own["k.high"]
    return nuq_channels(bits, (low + high) / 2, (high - low) / 2, levels)


def test_shared_scales_use_the_whole_type(known: Calibration) -> None:
    scaled = Calibration(known.tensors, known.fingerprint, TEXT, scales=True)
    for name in ("fp8_e4m3", "fp8_e4m3_head", "nvfp4", "fp8_e5m2", "fp8_e5m2_head"):
        spec = PageSpec(2, 2, 16, 16, name, name)
        assert (known.state(spec, (0, 1), (0, 1), "cpu").k_scale == 1).all(), "only where asked"
        state = scaled.state(spec, (0, 1), (0, 1), "cpu")
        by_head = FORMATS[name].key.shared == "head"
        scale = state.v_head_scale if by_head else state.v_scale
        top = known.tensors["v.top"] if by_head else known.tensors["v.top"].amax(1)
        torch.testing.assert_close(scale * FORMATS[name].value.largest, top)


def test_the_fingerprint_is_in_the_tag_and_the_bytes_in_the_ledger(
    file: Path, known: Calibration
) -> None:
    changes = {"cache.calibration": str(file), "cache.sink_tokens": 0}
    runner = Runner(build(formats("kvquant3", **changes)))
    engine = runner.engine
    runner.one(tokens(20), 4)
    label = engine.stack.manager.keys.format_label
    assert label == f"kvquant3@model~pre-rope~cal:{known.fingerprint[:12]}"
    assert label == format_label(engine.config, engine.calibration)
    plain = build(formats("fp32", **{"cache.calibration": str(file)}))
    assert "cal:" not in plain.stack.manager.keys.format_label, "its bytes do not depend on it"
    (state,) = engine.stack.store._states.values()
    rotations = sum(table.nbytes for table in engine.stack.runner.rope_table)
    engine.frame(1, state="idle")
    line = next(x for x in engine.snapshot().ledger if x.name == "calibration")
    assert line.num_bytes == state.num_bytes + rotations > 2 * 2 * (16 * 2 + 8) * 4


def test_heads_in_pages_of_their_own_have_their_own_tables(file: Path) -> None:
    outputs = []
    for grouping in ("model", "layer", "head"):
        outputs.append(Runner(build(formats("lowrank", **{
            "cache.calibration": str(file), "cache.grouping": grouping,
        }))).one(tokens(30), 12))  # fmt: skip
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_full_rank_loses_nothing(file: Path) -> None:
    full = {"cache.rank": 16, "cache.calibration": str(file)}
    want = Runner(build()).one(tokens(30), 12)
    engine = build(formats("lowrank", **full))
    assert Runner(engine).one(tokens(30), 12) == want


def test_formats_change_to_calibrated_ones_and_back_in_the_middle_of_a_stream(file: Path) -> None:
    runner = Runner(build(formats("fp32", **{"cache.calibration": str(file)})))
    request = runner.add(tokens(30), 40)
    runner.step(5)
    for path, value, kind in (
        ("cache.v_format", "kvquant4", "recode"), ("cache.k_format", "kvquant4", "rebuild"),
        ("cache.v_format", "lowrank", "recode"), ("cache.rank", 12, "recode"),
        ("cache.k_format", "fp32", "rebuild"),
    ):  # fmt: skip
        report = runner.engine.apply({path: value})
        assert report.kinds == {path: kind}
        runner.step(4)
    runner.drain()
    assert len(runner.outputs[request]) == 40


@pytest.mark.parametrize(
    "rank, sentence",
    [(32, "cache.rank = 32: k_format = lowrank: rank 32 is above the width 16 of a head"),
     (6, "cache.rank = 6: k_format = lowrank: rank 6 is no multiple of 4")],
)  # fmt: skip
def test_a_rank_that_cannot_be_is_named(rank: int, sentence: str, file: Path) -> None:
    engine = build(formats("lowrank", **{"cache.calibration": str(file)}))
    before = engine.config
    with pytest.raises(SettingError, match=sentence):
        engine.apply({"cache.rank": rank})
    assert engine.config is before


def test_files_that_cannot_serve_are_refused_in_a_sentence(file: Path, tmp_path: Path) -> None:
    cut, foreign, none = (tmp_path / f"{name}.safetensors" for name in ("cut", "foreign", "none"))
    cut.write_bytes(file.read_bytes()[:-100])
    held = load_file(file)
    save_file(held, foreign, metadata={"kind": "something else"})
    meta = {"kind": "kv-workbench calibration 2", "weights": model().decoder.fingerprint}
    wrong, short, wild = (tmp_path / f"{name}.safetensors" for name in ("wrong", "short", "wild"))
    save_file(held, wrong, metadata=meta | {"weights": model(3).decoder.fingerprint})
    save_file(held | {"k.mean": held["k.mean"][:1].clone()}, short, metadata=meta)
    save_file(held | {"k.mean": held["k.mean"] * torch.nan}, wild, metadata=meta)
    engine = build()
    before = engine.config
    for path, sentence in (
        (none, "cannot be read"), (cut, "is damaged or no safetensors file"),
        (foreign, "holds no calibration"), (wrong, "other weights or another weight format"),
        (short, r"k.mean should be fp32 \[2, 2, 16\] and is \[1, 2, 16\]"),
        (wild, "k.mean has numbers that are not finite"), (tmp_path, "cannot be read|damaged"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=sentence):
            engine.apply({"cache.calibration": str(path)})
        assert engine.config is before


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="10 tokens are too few to calibrate: give 64"):
        calibrate(model(), 10, tmp_path / "x.safetensors")


def test_ranks_by_layer_keep_most_for_their_mean(known: Calibration) -> None:
    chosen = choose_ranks(known, 8)
    assert sum(chosen.values()) <= 8 * len(chosen) and set(chosen) == {0, 1}
    best = max(
        ({0: one, 1: 16 - one} for one in (4, 8, 12)), key=lambda ranks: kept_share(known, ranks)
    )
    assert kept_share(known, chosen) == pytest.approx(kept_share(known, best))
    assert kept_share(known, choose_ranks(known, 16)) == pytest.approx(1)
    with pytest.raises(SettingError, match="a mean rank of 17 is out of range: 4 to 16"):
        choose_ranks(known, 17)


def test_ranks_by_layer_make_pages_of_their_own(file: Path) -> None:
    changes = formats("lowrank", **{"cache.calibration": str(file), "cache.grouping": "layer"})
    runner = Runner(build(changes | {"cache.rank": 16}))
    request = runner.add(tokens(30), 24)
    runner.step(4)
    assert runner.engine.apply({"cache.rank_plan": "0=4"}).kinds == {"cache.rank_plan": "recode"}
    runner.step(4)
    assert [spec.rank for spec in runner.engine.stack.specs.full] == [4, 16]
    assert "lowrank@layer~pre-rope/k16[0=4]" in runner.engine.stack.manager.keys.format_label
    with pytest.raises(SettingError, match="cache.rank_plan names layer 2, but the model has 2"):
        runner.engine.apply({"cache.rank_plan": "2=4"})
    with pytest.raises(SettingError, match="cache.rank_plan: k_format = lowrank: rank 20 is above"):
        runner.engine.apply({"cache.rank_plan": "1=20"})
    runner.drain()
    assert len(runner.outputs[request]) == 24


@pytest.mark.parametrize("text", ["0", "a=4", "0=x", "0=0", "3-1=4", "0=4; 0=8"])
def test_a_text_that_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="cache.rank_plan"):
        parse_ranks(text)


def test_ranks_by_layer_need_layers() -> None:
    with pytest.raises(SettingError, match="cache.rank_plan gives layers ranks of their own"):
        replace_settings(EngineConfig(), {"cache.rank_plan": "0=4"})
    assert write_ranks(parse_ranks("0-3=48; 4, 6=8")) == "0-3=48; 4,6=8"


def test_a_file_is_read_once_by_an_engine(file: Path, tmp_path: Path) -> None:
    """Resident pages were written with what it held then."""
    own = tmp_path / "own.safetensors"
    own.write_bytes(file.read_bytes())
    engine = build(formats("lowrank", **{"cache.calibration": str(own)}))
    first = engine.calibration.fingerprint
    calibrate(model(), 128, own)
    engine.apply({"cache.rank": 12})
    assert engine.calibration.fingerprint == first
    other = build(formats("lowrank", **{"cache.calibration": str(own)}))
    assert other.calibration.fingerprint != first
