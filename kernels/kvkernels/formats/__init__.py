"""Every page format by name, one file a method."""

from collections.abc import Mapping
from types import MappingProxyType

from kvkernels.formats.base import Encoded, Method, PageFormat
from kvkernels.formats.fp8 import E4M3, E4M3_HEAD, E4M3_TOKEN, E5M2, E5M2_HEAD, E5M2_TOKEN
from kvkernels.formats.integer import INT2, INT3, INT4, INT8
from kvkernels.formats.kivi import KIVI2, KIVI3, KIVI4
from kvkernels.formats.kvquant import KVQUANT2, KVQUANT3, KVQUANT4
from kvkernels.formats.low_rank import LOW_RANK, LOW_RANK_INT4
from kvkernels.formats.nvfp4 import NVFP4
from kvkernels.formats.plain import BF16, FP32
from kvkernels.formats.rotated import INT4_ROTATED
from kvkernels.formats.turbo import TURBO3, TURBO4

__all__ = ["FORMATS", "Encoded", "Method", "PageFormat"]

FORMATS: Mapping[str, PageFormat | Method] = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            BF16, FP32, E4M3, INT8, INT4, E5M2, E4M3_HEAD, E4M3_TOKEN, E5M2_HEAD, E5M2_TOKEN,
            INT4_ROTATED, NVFP4, INT3, INT2, TURBO4, TURBO3, KIVI4, KIVI3, KIVI2,
            KVQUANT4, KVQUANT3, KVQUANT2, LOW_RANK, LOW_RANK_INT4,
        )
    }
)  # fmt: skip
