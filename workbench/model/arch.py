"""The shape of a Llama-family decoder, read from a model file; no tensors here."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.errors import ModelError

ScalingKind = Literal["none", "linear", "llama3", "table"]


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE frequencies are stretched beyond the trained length.

    `linear` divides every frequency by `factor` (position interpolation, arXiv 2306.15595);
    `llama3` divides only long wavelengths and blends between the two bounds (Llama 3.1); `table`
    divides each frequency by its own of `factors` [head_dim / 2] and all by `factor`: how llama.cpp
    stores Llama 3.1's scaling (`rope_freqs.weight`).
    """

    kind: ScalingKind = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("none", "linear", "llama3", "table"):
            raise ModelError(
                f"RoPE scaling {self.kind!r} is not supported: choose a model with none, linear "
                "or llama3 scaling"
            )
        if self.factor <= 0:
            raise ModelError(f"RoPE scaling factor {self.factor} is not allowed: it must be > 0")
        wrong = [factor for factor in self.factors if not 0 < factor < math.inf]
        if wrong:
            raise ModelError(
                f"the RoPE factor table holds {wrong[0]}, and each factor must be > 0 and finite: "
                "the model file is broken, download it again"
            )


@dataclass(frozen=True)
class ModelArch:
    """Everything about a decoder that is not a weight.

    Sizes are in elements. `head_dim` may differ from `hidden_size / num_heads` (Qwen3). Raises
    ModelError when the numbers cannot belong together.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    rms_eps: float = 1e-5
    tie_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    max_position: int = 2048
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_position",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ModelError(
                    f"model {self.name!r}: {name} = {value!r} is not allowed: it must be 1 or more"
                )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"model {self.name!r}: {self.num_heads} query heads cannot share "
                f"{self.num_kv_heads} KV heads evenly"
            )
        if self.head_dim % 2:
            raise ModelError(
                f"model {self.name!r}: head_dim = {self.head_dim} is not allowed: RoPE needs an "
                "even number"
            )
        scaling = self.rope_scaling
        if scaling.kind == "table" and len(scaling.factors) != self.head_dim // 2:
            raise ModelError(
                f"model {self.name!r}: the RoPE factor table has {len(scaling.factors)} numbers "
                f"and head_dim = {self.head_dim} needs {self.head_dim // 2}: the file is broken, "
                "download it again"
            )

    @property
    def q_size(self) -> int:
        """Elements of all query heads of one token."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of all key heads (or value heads) of one token in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        """Weights of the decoder, embedding counted once when tied."""
        attention = self.hidden_size * (2 * self.q_size + 2 * self.kv_size)
        mlp = 3 * self.hidden_size * self.intermediate_size
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        norms = self.hidden_size * (2 * self.num_layers + 1)
        return self.num_layers * (attention + mlp) + tables + norms

    def inverse_frequencies(self) -> list[float]:
        """RoPE angular frequencies in radians per position, `head_dim / 2` of them."""
        half = self.head_dim // 2
        plain = [self.rope_theta ** (-i / half) for i in range(half)]
        scaling = self.rope_scaling
        if scaling.kind == "linear":
            return [f / scaling.factor for f in plain]
        if scaling.kind == "llama3":
            return [_llama3_frequency(f, scaling) for f in plain]
        if scaling.kind == "table":
            pairs = zip(plain, scaling.factors, strict=True)
            return [f / own / scaling.factor for f, own in pairs]
        return plain

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file; `from_json` reads them back."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["rope_scaling"] = dict(vars(self.rope_scaling))
        values["eos_ids"] = list(self.eos_ids)
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ModelArch":
        """Inverse of `to_json`."""
        given = values["rope_scaling"]
        scaling = RopeScaling(**{**given, "factors": tuple(given.get("factors", ()))})
        return cls(**{**values, "rope_scaling": scaling, "eos_ids": tuple(values["eos_ids"])})


def _llama3_frequency(frequency: float, scaling: RopeScaling) -> float:
    wavelength = 2 * math.pi / frequency
    trained = scaling.original_max_position
    if wavelength < trained / scaling.high_freq_factor:
        return frequency
    if wavelength > trained / scaling.low_freq_factor:
        return frequency / scaling.factor
    span = scaling.high_freq_factor - scaling.low_freq_factor
    blend = (trained / wavelength - scaling.low_freq_factor) / span
    return (1 - blend) * frequency / scaling.factor + blend * frequency
