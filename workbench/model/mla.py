"""Multi-head latent attention: a small synthetic decoder whose cache is one vector a token.

    x ─► down ─► norm ─► c [latent]  ┐
    x ─► rope key [rope], rotated    ┴─► the cache: c and k_r, nothing else

    unabsorbed:  k_h = [U_k c ; k_r], v_h = U_v c          q_h · k_h,  then sum p v_h
    absorbed:    (U_k' q_h) · c + q_r · k_r                then U_v (sum p c)

Absorbed, no key or value of a head is ever made: the cache is read as one KV head that all query
heads share. Both give the same numbers. Source: DeepSeek-V2 (arXiv 2405.04434).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.errors import ModelError
from workbench.model.decoder import apply_rope, rms_norm
from workbench.model.latent_pages import LatentSequence


@dataclass(frozen=True)
class MlaShape:
    """Sizes in numbers. `nope_dim` and `rope_dim`: of a query head's two parts; ModelError."""

    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    nope_dim: int = 16
    rope_dim: int = 8
    value_dim: int = 16
    latent_dim: int = 32
    vocab_size: int = 128
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "nope_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} = {getattr(self, name)} is not allowed: give 1 or more")
        if self.rope_dim < 2 or self.rope_dim % 2:
            raise ModelError(
                f"rope_dim = {self.rope_dim} is not allowed: rotation needs an even number from 2"
            )
        heads = self.num_heads * (self.nope_dim + self.value_dim)
        if not 1 <= self.latent_dim <= heads:
            raise ModelError(
                f"latent_dim = {self.latent_dim} is out of range: 1 to {heads}, the numbers of all "
                "heads' keys and values that it stands for"
            )

    @property
    def row(self) -> int:
        """Numbers that a layer keeps of a token."""
        return self.latent_dim + self.rope_dim

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float((self.nope_dim + self.rope_dim) ** -0.5)


@dataclass(frozen=True)
class MlaLayer:
    """Weights of one layer; H heads, C latent."""

    norm: Tensor  # [hidden]
    query: Tensor  # [H * (nope + rope), hidden]
    down: Tensor  # [C + rope, hidden]
    latent_norm: Tensor  # [C]
    up_key: Tensor  # [H, nope, C]
    up_value: Tensor  # [H, value, C]
    out: Tensor  # [hidden, H * value]
    mlp_in: Tensor  # [2 * hidden, hidden]
    mlp_out: Tensor  # [hidden, 2 * hidden]


class MlaDecoder:
    """A random decoder, the same for the same shape, seed and dtype."""

    def __init__(self, shape: MlaShape, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self.shape, self.dtype = shape, dtype
        make = torch.Generator().manual_seed(seed)

        def draw(*size: int) -> Tensor:
            return (torch.randn(*size, generator=make) * size[-1] ** -0.5).to(dtype)

        heads, row = shape.num_heads, shape.row
        self._embed = draw(shape.vocab_size, shape.hidden_size)
        self._layers = [
            MlaLayer(
                torch.ones(shape.hidden_size, dtype=dtype),
                draw(heads * (shape.nope_dim + shape.rope_dim), shape.hidden_size),
                draw(row, shape.hidden_size),
                torch.ones(shape.latent_dim, dtype=dtype),
                draw(heads, shape.nope_dim, shape.latent_dim),
                draw(heads, shape.value_dim, shape.latent_dim),
                draw(shape.hidden_size, heads * shape.value_dim),
                draw(2 * shape.hidden_size, shape.hidden_size),
                draw(shape.hidden_size, 2 * shape.hidden_size),
            )
            for _ in range(shape.num_layers)
        ]
        self._eps = torch.tensor(1e-5)

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, sequence: LatentSequence, *, absorbed: bool = True
    ) -> Tensor:
        """Logits fp32 [N, vocab] of the next N tokens of a sequence, which it then holds.

        CapacityError where the sequence gets no page; nothing is stored then.
        """
        start = sequence.num_tokens
        sequence.extend(len(token_ids))
        rotation = self._rotation(torch.arange(start, start + len(token_ids)))
        x = self._embed[token_ids]  # [N, hidden]
        for index, layer in enumerate(self._layers):
            query, rows = self._project(layer, x, rotation)
            sequence.write(index, start, rows)
            held = sequence.read(index)  # [T, C + rope]
            attend = attend_absorbed if absorbed else attend_unabsorbed
            mixed = attend(self.shape, layer, query, held, start)
            x = x + mixed.flatten(1) @ layer.out.T
            inner = rms_norm(x, layer.norm, self._eps) @ layer.mlp_in.T
            x = x + torch.nn.functional.silu(inner) @ layer.mlp_out.T
        return (rms_norm(x, torch.ones_like(x[0]), self._eps) @ self._embed.T).float()

    def _project(
        self, layer: MlaLayer, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Queries [N, H, nope + rope] and what the cache keeps, [N, C + rope]; both rotated."""
        shape = self.shape
        h = rms_norm(x, layer.norm, self._eps)
        query = (h @ layer.query.T).view(len(x), shape.num_heads, -1)
        plain, turned = query.split([shape.nope_dim, shape.rope_dim], -1)
        latent, key = (h @ layer.down.T).split([shape.latent_dim, shape.rope_dim], -1)
        latent = rms_norm(latent, layer.latent_norm, self._eps)
        query = torch.cat([plain, apply_rope(turned, *rotation)], -1)
        return query, torch.cat([latent, apply_rope(key[:, None], *rotation)[:, 0]], -1)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.shape.rope_dim, 2) / self.shape.rope_dim
        angles = positions[:, None, None] * self.shape.rope_theta**-half
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([cos, cos], -1).to(self.dtype), torch.cat([-sin, sin], -1).to(self.dtype)


def attend_unabsorbed(
    shape: MlaShape, layer: MlaLayer, query: Tensor, held: Tensor, start: int
) -> Tensor:
    """Attention [N, H, value] with every head's keys and values made from the latents held."""
    latent, turned = held.split([shape.latent_dim, shape.rope_dim], -1)
    keys = torch.einsum("hdc,tc->thd", layer.up_key, latent)
    values = torch.einsum("hdc,tc->thd", layer.up_value, latent)
    keys = torch.cat([keys, turned[:, None].expand(-1, shape.num_heads, -1)], -1)
    scores = torch.einsum("nhd,thd->hnt", query, keys) * shape.scale
    return torch.einsum("hnt,thd->nhd", _weights(scores, start), values)


def attend_absorbed(
    shape: MlaShape, layer: MlaLayer, query: Tensor, held: Tensor, start: int
) -> Tensor:
    """The same with the up-projections moved to query and result: one KV head is read."""
    plain, turned = query.split([shape.nope_dim, shape.rope_dim], -1)
    inside = torch.einsum("nhd,hdc->nhc", plain, layer.up_key)
    scores = torch.einsum("nhr,tr->hnt", torch.cat([inside, turned], -1), held) * shape.scale
    mixed = torch.einsum("hnt,tc->nhc", _weights(scores, start), held[:, : shape.latent_dim])
    return torch.einsum("nhc,hdc->nhd", mixed, layer.up_value)


def _weights(scores: Tensor, start: int) -> Tensor:
    """Causal softmax of scores [H, N, T]; query i is token `start` + i."""
    queries = torch.arange(start, start + scores.shape[1])
    later = torch.arange(scores.shape[2]) > queries[:, None]
    return torch.softmax(scores.float().masked_fill(later, -torch.inf), -1).to(scores.dtype)
