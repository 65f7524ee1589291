"""A GGUF with `rope_freqs.weight`, which Llama 3.1 and 3.2 carry: frequencies divided by a table.

The table is written as llama.cpp's converter computes it from a llama3 configuration, in fp32;
llama.cpp divides each frequency by it. Truth is the llama3 rule computed from the configuration.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from model_files import write_gguf
from tiny_folders import TOKENS, write_case

from workbench.errors import ModelError
from workbench.model.arch import ModelArch, RopeScaling
from workbench.model.assemble import assemble
from workbench.model.convert import convert
from workbench.model.gguf_loader import GgufSource
from workbench.model.hf_loader import HfSource
from workbench.model.naive import naive_logits
from workbench.model.source import WeightSource
from workbench.model.store import StoredWeights

LLAMA_3_2_1B = dict(
    name="llama", num_layers=16, hidden_size=2048, num_heads=32, num_kv_heads=8, head_dim=64,
    intermediate_size=8192, vocab_size=128256, rope_theta=500000.0, max_position=131072,
)  # fmt: skip
ITS_SCALING = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)


def converters_table(arch: ModelArch) -> np.ndarray:
    """Factors as the converter writes them: by wavelength 1, the factor, or a blend of both."""
    scaling, half = arch.rope_scaling, arch.head_dim // 2
    wavelengths = 2 * math.pi * arch.rope_theta ** (np.arange(half) / half)
    turns = scaling.original_max_position / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (turns - low) / (high - low)
    blend = 1 / ((1 - smooth) / scaling.factor + smooth)
    factors = np.where(turns > high, 1.0, np.where(turns < low, scaling.factor, blend))
    return factors.astype(np.float32)


def logits(source: WeightSource) -> torch.Tensor:
    made = convert(source, "fp32")
    stored = StoredWeights(made.tensors, made.kinds, ())
    decoder = assemble(
        source.arch, stored, weight_format="fp32", identity=source.identity, device="cpu"
    )
    decoder.reserve_positions(64)
    return naive_logits(decoder, TOKENS)


def test_a_table_gives_the_frequencies_of_llama3() -> None:
    wanted = ModelArch(**LLAMA_3_2_1B, rope_scaling=ITS_SCALING)
    table = converters_table(wanted)
    assert {1.0, 32.0} < set(table.tolist()), "some stay, some are divided, some are between"
    scaling = RopeScaling("table", factors=tuple(table.astype(float).tolist()))
    arch = ModelArch(**LLAMA_3_2_1B, rope_scaling=scaling)
    assert arch.inverse_frequencies() == pytest.approx(wanted.inverse_frequencies(), rel=1e-6)
    assert ModelArch.from_json(arch.to_json()) == arch


def test_a_gguf_with_a_table_answers_as_its_folder(tmp_path: Path) -> None:
    folder = HfSource(write_case(tmp_path / "model", "llama_llama3"))
    table = converters_table(folder.arch)
    path = write_gguf(tmp_path / "tiny.gguf", folder, {"rope_freqs.weight": table})
    file = GgufSource(path)
    assert file.arch.rope_scaling.kind == "table"
    frequencies = folder.arch.inverse_frequencies()
    assert file.arch.inverse_frequencies() == pytest.approx(frequencies, rel=1e-6)
    torch.testing.assert_close(logits(file), logits(folder), atol=1e-4, rtol=1e-4)

    plain = GgufSource(write_gguf(tmp_path / "plain.gguf", folder))
    assert plain.arch.rope_scaling.kind == "none"
    assert (logits(plain) - logits(folder)).abs().max() > 1e-2, "the table matters"


def test_other_tables_are_other_keys() -> None:
    one, other = (RopeScaling("table", factors=(1.0, last)) for last in (2.0, 3.0))
    assert str(one) != str(other), "the text is part of every cached block's identity"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (np.ones(3), "table has 3 numbers and head_dim = 8 needs 4"),
        (np.array([1.0, 0.0, 1.0, 1.0]), "table holds 0.0, and each factor must be > 0"),
        (np.array([1.0, 1.0, 1.0, np.inf]), "table holds inf, and each factor must be > 0"),
        (np.array([1.0, 1.0, np.nan, 1.0]), "table holds nan, and each factor must be > 0"),
    ],
)
def test_a_broken_table_is_refused(table: np.ndarray, sentence: str, tmp_path: Path) -> None:
    folder = HfSource(write_case(tmp_path / "model", "llama_gqa_untied"))
    more = {"rope_freqs.weight": table.astype(np.float32)}
    path = write_gguf(tmp_path / "tiny.gguf", folder, more)
    with pytest.raises(ModelError, match=sentence):
        GgufSource(path)
