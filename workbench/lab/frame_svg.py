"""One frame as a still picture (SVG), in the colours and marks of the live grid."""

from html import escape

import numpy as np

from workbench.snapshot import (
    FLAG_SHARED,
    NO_OWNER,
    STATE_CACHED,
    STATE_FREE,
    STATE_OWNED,
    Snapshot,
    TierGrid,
    decode_frame,
)

WIDTH = 760
MARGIN = 16
NUM_NAMES = 8  # of requests in the legend
LINE = 20  # height of a line of text
HEIGHT_OF = {"G1": 168, "G2": 72, "G3": 72, "G3.5": 72, "G4": 72}  # of a tier's cells
PAPER, INK, QUIET, HAIR = "#ffffff", "#1f2430", "#6b7280", "#d5d8de"
# Okabe and Ito's eight, as on the dashboard.
OWNERS = ("#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7", "#f0e442", "#3a3f4a")
NEUTRAL = "#9aa0aa"
FONT = "system-ui,-apple-system,Segoe UI,Roboto,sans-serif"

Box = tuple[float, float, float, float]


def frame_svg(frame: bytes, *, note: str = "") -> str:
    """The picture of a frame as SVG text; raises ValueError for anything but a frame.

    Every cell is one block, its area in proportion to its bytes. Filled: in use, by the colour of
    its request; pale with a line across: cached; outlined: free; double edge: shared.
    """
    snapshot, cells, _ = decode_frame(frame)
    parts: list[str] = []
    y = float(MARGIN)
    for grid, planes in zip(snapshot.grid, cells, strict=True):
        if not grid.num_cells:
            continue
        parts.append(_text(MARGIN, y + 13, _title(snapshot, grid, planes), INK, 13, "600"))
        y += LINE + 4
        height = HEIGHT_OF.get(grid.name, 72)
        boxes = _boxes(snapshot, grid, (MARGIN, y, WIDTH - 2 * MARGIN, height))
        parts += _cells(boxes, planes)
        y += height + 10
    for line in (_legend(snapshot), [("", note)] if note else []):
        if line:
            parts.append(_line(line, y))
            y += LINE
    label = escape(_title(snapshot, snapshot.grid[0], cells[0]), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8:g}" '
        f'width="{WIDTH}" height="{y + 8:g}" role="img" aria-label="{label}" '
        f'font-family="{FONT}">'
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>' + "".join(parts) + "</svg>"
    )


def frame_line(frame: bytes) -> str:
    """The same picture in one line of words; raises ValueError for anything but a frame."""
    snapshot, cells, _ = decode_frame(frame)
    return _title(snapshot, snapshot.grid[0], cells[0])


def _title(snapshot: Snapshot, grid: TierGrid, planes: dict[str, np.ndarray]) -> str:
    state = planes["state"] & 7
    used, cached = int((state == STATE_OWNED).sum()), int((state == STATE_CACHED).sum())
    shared = int(((planes["state"] & FLAG_SHARED) > 0).sum())
    tier = next(tier for tier in snapshot.tiers if tier.name == grid.name)
    formats = sorted({snapshot.classes[slab[0]].label for slab in grid.slabs if slab[0] >= 0})
    if grid.name != "G1":
        return f"{grid.name} · {tier.medium} · {tier.num_entries} blocks stored"
    words = [f"{grid.name} · {tier.medium}", f"{used} of {grid.num_cells} blocks in use"]
    words += [f"{shared} shared"] if shared else []
    words += [f"{cached} cached"] if cached else []
    return " · ".join([*words, ", ".join(formats), f"step {snapshot.step}"])


def _boxes(snapshot: Snapshot, grid: TierGrid, area: Box) -> list[Box]:
    """One box (x, y, w, h) a cell: slabs side by side, a slab keeps its place when it is recut."""
    x0, y0, width, height = area
    columns = min(len(grid.slabs), max(1, round(width / height)))
    rows = -(-len(grid.slabs) // columns)
    tall, wide = height / rows, width / columns
    boxes: list[Box] = []
    for at, (_, count) in enumerate(grid.slabs):
        x, y = x0 + at % columns * wide, y0 + at // columns * tall
        inner = (wide - (4 if columns > 1 else 0), tall - (4 if rows > 1 else 0))
        if count:
            boxes += _slab(x, y, *inner, count)
    return boxes


def _slab(x: float, y: float, wide: float, tall: float, count: int) -> list[Box]:
    """`count` equal cells that fill a slab as squarely as possible."""
    across = min(
        range(1, count + 1),
        key=lambda n: abs(np.log((wide / n) / (tall / -(-count // n)))) + (-count % n) / count,
    )
    down = -(-count // across)
    w, h = wide / across, tall / down
    return [(x + i % across * w, y + i // across * h, w - 2, h - 2) for i in range(count)]


def _cells(boxes: list[Box], planes: dict[str, np.ndarray]) -> list[str]:
    """Cells of one look share one path, so that the text stays short."""
    filled: dict[tuple[str, str], list[str]] = {}
    edges: list[str] = []
    for box, state, owner in zip(boxes, planes["state"], planes["owner"], strict=True):
        kind = int(state) & 7
        colour = NEUTRAL if owner == NO_OWNER else OWNERS[int(owner) % len(OWNERS)]
        if kind == STATE_FREE:
            filled.setdefault(("free", ""), []).append(_rect(box, 0.5))
        elif kind == STATE_CACHED:
            filled.setdefault(("cached", colour), []).append(_rect(box))
            filled.setdefault(("slash", colour), []).append(_slash(box))
        else:
            filled.setdefault(("owned", colour), []).append(_rect(box))
        if state & FLAG_SHARED:
            edges.append(_rect(box, 0.75))
            edges.append(_rect(box, 3))
    order = ("free", "cached", "slash", "owned")
    looks = sorted(filled, key=lambda look: (order.index(look[0]), look[1]))
    paths = [_path("".join(filled[look]), *look) for look in looks]
    return [*paths, f'<path d="{"".join(edges)}" fill="none" stroke="{INK}"/>' if edges else ""]


def _path(d: str, kind: str, colour: str) -> str:
    look = {
        "free": f'fill="none" stroke="{HAIR}"',
        "cached": f'fill="{colour}" fill-opacity=".28"',
        "slash": f'stroke="{colour}"',
        "owned": f'fill="{colour}"',
    }[kind]
    return f'<path d="{d}" {look}/>'


def _rect(box: Box, inset: float = 0.0) -> str:
    x, y, w, h = box
    w, h = max(0.5, w - 2 * inset), max(0.5, h - 2 * inset)
    return f"M{_n(x + inset)} {_n(y + inset)}h{_n(w)}v{_n(h)}h{_n(-w)}z"


def _slash(box: Box) -> str:
    x, y, w, h = box
    return f"M{_n(x)} {_n(y + h)}l{_n(w)} {_n(-h)}"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _legend(snapshot: Snapshot) -> list[tuple[str, str]]:
    """(colour, name) of every request that holds blocks, as far as one line goes."""
    holders = [view for view in snapshot.requests if view.num_pages and view.owner != NO_OWNER]
    names = [
        (OWNERS[view.owner % len(OWNERS)], view.label or f"request {view.request_id}")
        for view in holders
    ]
    more = [("", f"and {len(names) - NUM_NAMES} more")] if len(names) > NUM_NAMES else []
    return names[:NUM_NAMES] + more


def _line(items: list[tuple[str, str]], y: float) -> str:
    parts, x = [], float(MARGIN)
    for colour, text in items:
        if colour:
            parts.append(f'<rect x="{x:g}" y="{y + 3:g}" width="10" height="10" fill="{colour}"/>')
            x += 15
        parts.append(_text(x, y + 12, text, QUIET, 12))
        x += 6.6 * len(text) + 14
    return "".join(parts)


def _text(x: float, y: float, text: str, colour: str, size: int, weight: str = "400") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
