"""What computing known text takes, learnt from the steps that mostly did that."""

from dataclasses import dataclass

KEEP = 0.8  # of the running mean of the time per token, by each step
KEEP_FIT = 0.95  # of the sums of the fit
LEAST_SPREAD = 16.0  # tokens by which prefixes must differ to tell what they cost (their deviation)
MOST_SHARE = 0.9  # of the mean time that may be put down to prefixes
DOUBLE_TOKENS = 2048  # a prefix that doubles a token's time, before anything was measured


@dataclass
class PrefillFit:
    """Seconds a token, and how they grow with the tokens before it.

        seconds / num_tokens = a + b * prefix

    Attention reads every earlier token and all else is the same for each, so a straight line. Both
    are fitted by least squares, a step weighing as much as it has tokens, with old steps fading.
    """

    s_per_token: float | None = None
    _weight: float = 0.0
    _prefix: float = 0.0
    _prefix_squared: float = 0.0
    _seconds: float = 0.0
    _product: float = 0.0

    def observe(self, num_tokens: int, seconds: float, prefix: float = 0.0) -> None:
        """A step of so many tokens, with `prefix` tokens before each of them on average."""
        each = seconds / num_tokens
        known = self.s_per_token
        self.s_per_token = each if known is None else KEEP * known + (1 - KEEP) * each
        self._weight = KEEP_FIT * self._weight + num_tokens
        self._prefix = KEEP_FIT * self._prefix + num_tokens * prefix
        self._prefix_squared = KEEP_FIT * self._prefix_squared + num_tokens * prefix**2
        self._seconds = KEEP_FIT * self._seconds + seconds
        self._product = KEEP_FIT * self._product + seconds * prefix

    @property
    def growth(self) -> float:
        """`b / a`: share of a token's time that each token before it adds.

        1 / DOUBLE_TOKENS before steps with prefixes of different lengths were seen.
        """
        if not self._seconds:  # nothing yet, or a clock that stands still
            return 1.0 / DOUBLE_TOKENS
        prefix, seconds = self._prefix / self._weight, self._seconds / self._weight
        variance = self._prefix_squared / self._weight - prefix**2
        if variance < LEAST_SPREAD**2:
            return 1.0 / DOUBLE_TOKENS
        slope = (self._product / self._weight - prefix * seconds) / variance
        slope = min(max(0.0, slope), MOST_SHARE * seconds / prefix)
        return slope / (seconds - slope * prefix)

    def work(self, num_tokens: int, first_token: int) -> float:
        """Time of computing so many tokens behind a prefix: that of so many without one.

        prefill(n | prefix) / a, so that a faster or slower machine, or minute, changes no ratio.
        """
        prefix = first_token + (num_tokens - 1) / 2
        return num_tokens * (1.0 + self.growth * prefix)
