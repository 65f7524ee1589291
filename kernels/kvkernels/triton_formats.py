"""Which page formats have Triton kernels."""

from kvkernels.layout import PageSpec

TWINS = ("bf16", "fp32", "fp8_e4m3", "int8", "int4")


def check_twins(spec: PageSpec) -> None:
    """Raise ValueError for a page class that the Triton kernels cannot read."""
    for plane, name in (("k_format", spec.k_format), ("v_format", spec.v_format)):
        if name not in TWINS:
            raise ValueError(
                f"{plane} = {name} has no Triton kernel: choose one of {list(TWINS)}, or a CPU"
            )
