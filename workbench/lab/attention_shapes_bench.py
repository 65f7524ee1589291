"""`workbench bench attention-shapes`: bytes that a layer keeps of a token, by allocated pages.

The default model's layer with 9, 3 and 1 KV heads, and a latent (MLA) of DeepSeek-V2's ratio; and
how far absorbed attention over the latent is from the unabsorbed, on a small synthetic decoder.
"""

from collections.abc import Callable

import torch
from kvkernels.layout import PageSpec

from workbench.lab.figures import Figure
from workbench.model.attention_shapes import AttentionShape, default_shapes
from workbench.model.latent_pages import LatentPages, LatentSequence
from workbench.model.mla import MlaDecoder, MlaShape

BLOCK_SIZE, NUM_PAGES = 16, 64
SMALL = MlaShape(num_heads=9, nope_dim=32, rope_dim=16, value_dim=32, latent_dim=64)


def measure(progress: Callable[[str], None], *, quick: bool) -> list[Figure]:
    """All figures; `quick` shortens the text of the comparison."""
    shapes = default_shapes()
    most = allocated_bytes(shapes[0])
    figures = []
    for shape in shapes:
        size = allocated_bytes(shape)
        kept = f"{shape.num_kv_heads} KV heads of {shape.head_dim}, K and V"
        if not shape.num_kv_heads:
            kept = f"a latent of {shape.latent_dim} and a rotated key of {shape.rope_dim}"
        figures.append(
            Figure(name=f"bytes_per_token_{shape.name.lower()}", value=size, unit="B",
                   note=f"one layer, bf16: {kept}; {most / size:.3g} times less than MHA")
        )  # fmt: skip
    progress("absorbed and unabsorbed attention")
    difference = absorbed_difference(32 if quick else 256)
    note = f"largest difference of logits, fp32, {SMALL.num_layers} layers, read from pages"
    return [*figures, Figure(name="mla_absorbed_difference", value=difference, note=note)]


def allocated_bytes(shape: AttentionShape) -> float:
    """Bytes of storage a token takes in real pages of one layer."""
    if shape.num_kv_heads:
        spec = PageSpec(1, shape.num_kv_heads, shape.head_dim, BLOCK_SIZE, "bf16", "bf16")
        arena = torch.empty(NUM_PAGES, spec.page_bytes, dtype=torch.uint8)
        return arena.untyped_storage().nbytes() / (NUM_PAGES * BLOCK_SIZE)
    row = shape.latent_dim + shape.rope_dim
    pages = LatentPages(1, row, num_pages=NUM_PAGES, block_size=BLOCK_SIZE, dtype=torch.bfloat16)
    return pages.bytes_per_token


def absorbed_difference(num_tokens: int) -> float:
    """Largest difference between the two ways to attend, over a forced random text."""
    decoder = MlaDecoder(SMALL)
    text = torch.randint(0, SMALL.vocab_size, (num_tokens,))
    logits = []
    for absorbed in (True, False):
        pages = LatentPages(
            SMALL.num_layers, SMALL.row, num_pages=-(-num_tokens // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
        )  # fmt: skip
        sequence = LatentSequence(pages)
        parts = [decoder.forward(part, sequence, absorbed=absorbed) for part in text.split(16)]
        logits.append(torch.cat(parts))
    return float((logits[0] - logits[1]).abs().max())
