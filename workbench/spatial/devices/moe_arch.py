"""The shape of a decoder with experts; no tensors here."""

from dataclasses import dataclass

from workbench.model.arch import ModelArch


@dataclass(frozen=True)
class MoeArch:
    """A decoder's shape and that of its experts; `base.intermediate_size` is an expert's.

    Raises ValueError where `num_experts` < 1 or `top_k` is not 1 to `num_experts`.
    """

    base: ModelArch
    num_experts: int = 8
    top_k: int = 2

    def __post_init__(self) -> None:
        if self.num_experts < 1:
            raise ValueError(f"num_experts = {self.num_experts} is out of range: 1 or more")
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"top_k = {self.top_k} is out of range: 1 to {self.num_experts}")
