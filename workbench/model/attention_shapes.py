"""What a layer's attention keeps of each token, by its shape: GQA is a compression, and so is MLA.

No torch here: the dashboard shows these numbers, and `workbench bench attention-shapes` allocates
what they claim.
"""

from dataclasses import dataclass

ITEM_BYTES = 2  # bf16


@dataclass(frozen=True)
class AttentionShape:
    """One way to keep keys and values: `num_kv_heads` of them, or one latent vector (0 heads).

    latent_dim, rope_dim: numbers of the latent and of its rotated key (MLA).
    """

    name: str
    num_kv_heads: int
    head_dim: int
    latent_dim: int = 0
    rope_dim: int = 0

    @property
    def numbers_per_token(self) -> int:
        """Numbers that one layer keeps of a token."""
        if self.num_kv_heads:
            return 2 * self.num_kv_heads * self.head_dim
        return self.latent_dim + self.rope_dim

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one layer keeps of a token in bf16."""
        return self.numbers_per_token * ITEM_BYTES


def latent_shape(head_dim: int) -> AttentionShape:
    """A latent of DeepSeek-V2's ratio: four heads' numbers, and a rotated key of half a head's."""
    return AttentionShape("MLA", 0, head_dim, 4 * head_dim, head_dim // 2)


def default_shapes(num_heads: int = 9, head_dim: int = 64) -> tuple[AttentionShape, ...]:
    """The default model's layer with 9, 3 and 1 KV heads, and with a latent instead (MLA)."""
    counts = (("MHA", num_heads), ("GQA", num_heads // 3), ("MQA", 1))
    heads = tuple(AttentionShape(name, count, head_dim) for name, count in counts)
    return (*heads, latent_shape(head_dim))
