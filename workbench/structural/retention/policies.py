"""Retention policies: each one is a score per stored token, and the lowest scores go first."""

import numpy as np

from workbench.cache.retention import StoredTokens
from workbench.config import RetentionSettings

SNAPKV_POOL = 5  # width of the average over neighbours
GENERATED_STEP = 1e-12  # below any attention, and still in order of age
LEAST_QUERIES = 64  # that a hit leaves to observe: sums and covariances of fewer say little


def pooled(scores: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Means of the scores [n] at some places and their two neighbours on each side, zeros outside.

    That is torch's avg_pool1d with kernel 5, stride 1 and padding 2, for any n.
    """
    padded = np.pad(scores, SNAPKV_POOL // 2)
    mean: np.ndarray = padded[at[:, None] + np.arange(SNAPKV_POOL)].mean(axis=1, dtype=np.float64)
    return mean


class _Policy:
    """Defaults: nothing has to be observed."""

    needs_mass = False
    needs_keys = False
    needs_queries = False
    min_observed_tokens = 0

    def tail_queries(self, settings: RetentionSettings) -> int:
        """No step of its own for the end of a prompt."""
        return 0


class KeepAll(_Policy):
    """Evicts nothing."""

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Every token is worth the same; the engine does not ask."""
        return np.zeros(len(tokens.positions))


class SinkWindow(_Policy):
    """Keeps the first tokens and the last ones (StreamingLLM, with original positions).

    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks.
    """

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Newer is better."""
        return tokens.positions.astype(np.float64)


class AttentionMass(_Policy):
    """Keeps what is read most, per query that could see it, so that age is no advantage.

    Source: Zhang et al., H2O, with kvpress's age normalisation (ObservedAttention). A prefix that
    others computed is judged by the queries behind it alone.
    """

    needs_mass = True
    min_observed_tokens = LEAST_QUERIES

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Mean attention over the queries that could see the token."""
        return tokens.rate


class HeavyHitters(_Policy):
    """Keeps the tokens with the largest attention summed over all queries so far.

    Source: Zhang et al., H2O: Heavy-Hitter Oracle; old tokens have the advantage of age. A
    prefix that others computed is judged by the queries behind it alone.
    """

    needs_mass = True
    min_observed_tokens = LEAST_QUERIES

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Accumulated attention."""
        return tokens.mass


class SnapKV(_Policy):
    """Keeps what the last queries of the prompt read, smoothed over neighbours.

    Source: Li et al., SnapKV; mean over the window's queries and the group's heads and an average
    pool of 5, as kvpress has it. The scores of the prompt stay as they were at its end; what was
    generated since has none and goes first, oldest first. A request whose prompt was read before
    the policy was chosen is judged by the mean attention observed since.
    """

    needs_mass = True
    min_observed_tokens = 1

    def tail_queries(self, settings: RetentionSettings) -> int:
        """The window is the end of the prompt."""
        return settings.window_tokens

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Attention of the window's queries, averaged over five neighbouring tokens."""
        window = tokens.window
        if window is None:
            return tokens.rate
        positions = tokens.positions
        scores = (positions - tokens.num_tokens) * GENERATED_STEP
        prompt, front = positions < len(window.attention), positions < window.first
        scores[prompt] = window.attention[positions[prompt]]
        scores[front] = pooled(window.attention[: window.first], positions[front])
        return scores


class Tova(_Policy):
    """Keeps what the last query read.

    Source: Oren et al., Transformers are Multi-State RNNs (TOVA).
    """

    needs_mass = True
    min_observed_tokens = 1

    def tail_queries(self, settings: RetentionSettings) -> int:
        """The last token of a prompt is a step of its own, and the first to choose."""
        return 1

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Attention of the newest query."""
        return tokens.recent


class KeyNorm(_Policy):
    """Keeps the tokens whose keys are short: they are read most.

    Source: Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression.
    """

    needs_keys = True

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Short keys are worth more."""
        assert tokens.key_norm is not None, "needs_keys asks for them"
        return -tokens.key_norm


class ExpectedAttention(_Policy):
    """Keeps what queries to come are expected to read, times the length of the value.

    Source: Devoto et al., Expected Attention, as kvpress has it (see `expected`).
    """

    needs_queries = True
    min_observed_tokens = LEAST_QUERIES

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """Expected attention of the next positions' queries."""
        assert tokens.expected is not None, "needs_queries asks for it"
        return tokens.expected


class Random(_Policy):
    """Keeps tokens by chance: what every other policy has to beat."""

    def score(self, tokens: StoredTokens, settings: RetentionSettings) -> np.ndarray:
        """A number that depends on the position alone, so that a choice stays made."""
        mixed = tokens.positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        return (mixed * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(11)).astype(np.float64)
