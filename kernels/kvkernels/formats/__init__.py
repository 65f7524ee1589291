"""Every page format by name, one file a method."""

from collections.abc import Mapping
from types import MappingProxyType

from kvkernels.formats.base import Encoded, PageFormat
from kvkernels.formats.fp8 import E4M3
from kvkernels.formats.integer import INT4, INT8
from kvkernels.formats.plain import BF16, FP32

__all__ = ["FORMATS", "Encoded", "PageFormat"]

FORMATS: Mapping[str, PageFormat] = MappingProxyType(
    {fmt.name: fmt for fmt in (BF16, FP32, E4M3, INT8, INT4)}
)
