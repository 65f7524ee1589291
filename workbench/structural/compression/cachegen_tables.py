"""Probability tables that all blobs of CacheGen share: found once, fingerprinted, their bytes told.

CacheGen's own tables lie in every chunk, one a layer and channel, and at 256 tokens a chunk cost 2
bits a number. Here a table serves a layer, a plane and a *class* of channels, those whose symbols
spread alike, and is found from the first rows that are coded.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import constriction
import numpy as np

NUM_CLASSES = 8
ANCHOR_LEVELS = 127  # an anchor's symbols reach from -127 to 127
SMOOTH_SHARE = 12  # of the range, on each side, that a symbol's frequency is taken from


@dataclass(frozen=True)
class Symbols:
    """Quantised rows: `anchors` and `deltas` int8 [2, L, tokens, C] around 0, K and V first."""

    anchors: np.ndarray
    deltas: np.ndarray


@dataclass(frozen=True, eq=False)
class Tables:
    """Weights of symbols, uint8: `anchors` [2, L, classes, 255], `deltas` [2, L, classes, levels].

    classes: uint8 [2, L, C], the class of each channel.
    """

    classes: np.ndarray
    anchors: np.ndarray
    deltas: np.ndarray

    @staticmethod
    def neutral(levels: np.ndarray, num_channels: int) -> "Tables":
        """Before any row was seen: small symbols are likelier, all channels alike.

        `levels` int [2, L]: the largest symbol of each plane and layer.
        """
        classes = np.zeros((*levels.shape, num_channels), np.uint8)
        anchors = np.broadcast_to(_falling(ANCHOR_LEVELS, ANCHOR_LEVELS), (*levels.shape, 1, 255))
        top = int(levels.max())
        deltas = np.stack([[_falling(most, top) for most in line] for line in levels.tolist()])
        return Tables(classes, anchors.copy(), deltas[:, :, None])

    @staticmethod
    def fit(rows: list[Symbols], levels: np.ndarray) -> "Tables":
        """Classes by the channels' mean symbol, and weights from how often symbols came."""
        anchors = np.concatenate([row.anchors for row in rows], 2).astype(np.int16)
        deltas = np.concatenate([row.deltas for row in rows], 2).astype(np.int16)
        spread = np.abs(deltas).mean(2) + np.abs(anchors).mean(2) / 16  # [2, L, C]
        rank = spread.argsort(-1).argsort(-1)
        classes = (rank * NUM_CLASSES // spread.shape[-1]).astype(np.uint8)
        top = int(levels.max())
        return Tables(
            classes, _weights(anchors, classes, ANCHOR_LEVELS), _weights(deltas, classes, top)
        )

    @cached_property
    def fingerprint(self) -> int:
        """64 bits that name these tables in a blob."""
        digest = hashlib.sha256(str(self.deltas.shape).encode())
        for table in (self.classes, self.anchors, self.deltas):
            digest.update(table.tobytes())
        return int.from_bytes(digest.digest()[:8], "little")

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return self.classes.nbytes + self.anchors.nbytes + self.deltas.nbytes

    @cached_property
    def members(self) -> list[tuple[int, int, int, np.ndarray]]:
        """(plane, layer, class, its channels), in the order of coding."""
        found = []
        for plane, layer in np.ndindex(self.classes.shape[:2]):
            for number in range(self.anchors.shape[2]):
                channels = np.flatnonzero(self.classes[plane, layer] == number)
                if len(channels):
                    found.append((plane, layer, number, channels))
        return found

    @cached_property
    def models(self) -> list[tuple[Any, Any]]:
        """Of each of `members`: the entropy models of anchors and of deltas."""
        return [
            (_model(self.anchors[at]), _model(self.deltas[at]))
            for at in ((plane, layer, number) for plane, layer, number, _ in self.members)
        ]


def _model(weights: np.ndarray) -> Any:
    chances = weights.astype(np.float32) + np.float32(1e-4)
    return constriction.stream.model.Categorical(chances, perfect=False)


def _falling(most: int, top: int) -> np.ndarray:
    """uint8 [2 * top + 1]: weights that halve with every eighth of the range."""
    size = np.abs(np.arange(-top, top + 1))
    weights = np.maximum(1, np.rint(255 * 0.5 ** (size * 8 / most)))
    return np.where(size <= most, weights, 0).astype(np.uint8)


def _weights(symbols: np.ndarray, classes: np.ndarray, top: int) -> np.ndarray:
    """uint8 [2, L, classes, 2 * top + 1]: how often each symbol came, scaled to 255."""
    found = np.zeros((*classes.shape[:2], NUM_CLASSES, 2 * top + 1), np.float64)
    for plane, layer in np.ndindex(classes.shape[:2]):
        tokens = symbols.shape[2]
        kind = np.broadcast_to(classes[plane, layer], (tokens, classes.shape[-1]))
        np.add.at(found[plane, layer], (kind, symbols[plane, layer] + top), 1.0)
    found = _smooth(found + 0.25, top // SMOOTH_SHARE)
    return np.maximum(1, np.rint(255 * found / found.max(-1, keepdims=True))).astype(np.uint8)


def _smooth(counts: np.ndarray, reach: int) -> np.ndarray:
    """Mean with `reach` neighbours on each side: 255 symbols are never all seen often enough."""
    total = np.cumsum(np.pad(counts, [(0, 0)] * (counts.ndim - 1) + [(reach + 1, reach)]), -1)
    sums: np.ndarray = total[..., 2 * reach + 1 :] - total[..., : -2 * reach - 1]
    return sums
