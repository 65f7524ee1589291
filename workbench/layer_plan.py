"""A plan of page formats by layer, as text: which layers leave the cache's own formats.

0-1,28-29=bf16               the first and the last two layers stay bf16
0=fp8_e4m3/int8; 4-9=int4    K fp8 and V int8 in layer 0, int4 in layers 4 to 9
"""

import re

from workbench.errors import SettingError

_LAYERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
Formats = tuple[str, str]  # of K and of V
EXAMPLE = "0-1,28-29=bf16; 4-9=int8/int4"


def parse_plan(text: str, formats: tuple[str, ...]) -> dict[int, Formats]:
    """Formats of the layers that a plan names; SettingError says what is wrong with it."""
    plan: dict[int, Formats] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        layers, equals, names = (piece.strip() for piece in part.partition("="))
        layers = layers.replace(" ", "")
        if not equals or not _LAYERS.fullmatch(layers):
            raise SettingError(f"cache.layer_plan: {part!r} is no entry: write {EXAMPLE!r}")
        k_format, _, v_format = (piece.strip() for piece in names.partition("/"))
        chosen = (k_format, v_format or k_format)
        for name in chosen:
            if name not in formats:
                raise SettingError(
                    f"cache.layer_plan: {name!r} is no format: choose one of {', '.join(formats)}"
                )
        for layer in _expand(layers):
            if layer in plan:
                raise SettingError(f"cache.layer_plan names layer {layer} twice: leave one out")
            plan[layer] = chosen
    return plan


def parse_ranks(text: str) -> dict[int, int]:
    """Ranks of the layers that a text such as `0-3=48; 4-29=24` names; SettingError if wrong."""
    ranks: dict[int, int] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        layers, _, rank = (piece.strip().replace(" ", "") for piece in part.partition("="))
        if not _LAYERS.fullmatch(layers) or not rank.isdecimal() or int(rank) < 1:
            raise SettingError(f"cache.rank_plan: {part!r} is no entry: write '0-3=48; 4-29=24'")
        for layer in _expand(layers, "cache.rank_plan"):
            if layer in ranks:
                raise SettingError(f"cache.rank_plan names layer {layer} twice: leave one out")
            ranks[layer] = int(rank)
    return ranks


def write_ranks(ranks: dict[int, int]) -> str:
    """The shortest text of ranks, layers of equal ranks together."""
    by_rank: dict[int, list[int]] = {}
    for layer in sorted(ranks):
        by_rank.setdefault(ranks[layer], []).append(layer)
    return "; ".join(f"{_ranges(layers)}={rank}" for rank, layers in by_rank.items())


def write_plan(plan: dict[int, Formats]) -> str:
    """The shortest text of a plan, layers of equal formats together."""
    by_formats: dict[Formats, list[int]] = {}
    for layer in sorted(plan):
        by_formats.setdefault(plan[layer], []).append(layer)
    return "; ".join(
        f"{_ranges(layers)}={k_format if k_format == v_format else f'{k_format}/{v_format}'}"
        for (k_format, v_format), layers in by_formats.items()
    )


def _expand(text: str, path: str = "cache.layer_plan") -> list[int]:
    layers: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        begin, end = int(first), int(last or first)
        if end < begin or end > 9999:
            raise SettingError(f"{path}: {piece!r} is no range of layers: write 0-3")
        layers += range(begin, end + 1)
    return layers


def _ranges(layers: list[int]) -> str:
    pieces: list[list[int]] = []
    for layer in layers:
        if pieces and layer == pieces[-1][-1] + 1:
            pieces[-1].append(layer)
        else:
            pieces.append([layer])
    return ",".join(
        str(piece[0]) if len(piece) == 1 else f"{piece[0]}-{piece[-1]}" for piece in pieces
    )
