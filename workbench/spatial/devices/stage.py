"""A run of a decoder's layers on one rank: from tokens or another rank's activations, onwards."""

import torch
from torch import Tensor

from workbench.model.decoder import Decoder, rms_norm
from workbench.spatial.devices.moe import MoeBlock
from workbench.spatial.devices.rank_cache import LocalAttend


class Stage(Decoder):
    """Some layers of a decoder; `first` embeds tokens, `last` gives logits.

    Unlike the whole decoder it goes through every layer's linears with no rows too, for they may
    hold a collective that the other ranks are waiting in.
    """

    first = True
    last = True

    def embed(self, token_ids: Tensor) -> Tensor:
        """[N, hidden] of token_ids int64 [N]."""
        return self._weights.embed(token_ids)

    @torch.inference_mode()
    def run(self, x: Tensor, positions: Tensor, attend: LocalAttend, logit_rows: Tensor) -> Tensor:
        """Activations [N, hidden] through all layers; of the last stage logits fp32 [M, vocab].

        positions int64 [N]; logit_rows int64 [M], which rows the last stage goes on with after its
        last attention. `attend` counts this stage's layers from 0.
        """
        rotation = self._rotation(positions)
        final = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            q, k, v = self._project(layer, x, rotation)
            mixed = attend(index, q, k, v).contiguous()
            if self.last and index == final:
                mixed, x = mixed.index_select(0, logit_rows), x.index_select(0, logit_rows)
            x = layer.o(mixed, x)
            h = rms_norm(x, layer.mlp_norm, self._eps)
            x = layer.down(layer.gate_up(h), x)
        if not self.last:
            return x
        return self._weights.head(rms_norm(x, self._weights.final_norm, self._eps)).float()

    def expert_load(self) -> list[int]:
        """Rows that each expert held here has computed, over all layers; empty without any."""
        loads = [block.experts.load for block in self._blocks()]
        return torch.stack(loads).sum(0).tolist() if loads else []

    def reset_load(self) -> None:
        """Count the experts' rows from zero again."""
        for block in self._blocks():
            block.experts.load.zero_()

    def _blocks(self) -> list[MoeBlock]:
        return [layer.down for layer in self._weights.layers if isinstance(layer.down, MoeBlock)]
