"""What a request may hit: full rows of one lineage, and the beginning of one block more."""

from workbench.cache.prefix_index import PrefixIndex
from workbench.cache.request_blocks import PrefixHit
from workbench.cache.request_keys import RequestKeys
from workbench.request import Request


class PrefixLookup:
    """Asks the index for a request's text, within what a hit may have."""

    def __init__(self, keys: RequestKeys, block_size: int) -> None:
        self.keys = keys
        self.block_size = block_size
        self.min_new_tokens = 1  # what a hit leaves to compute: logits, and what retention observes
        self.partial_hits = False

    def most_hit_tokens(self, request: Request) -> int:
        """Tokens a hit may have at most (I12, decision 13)."""
        return max(0, request.num_tokens - self.min_new_tokens)

    def find(self, index: PrefixIndex, request: Request, *, partial: bool) -> PrefixHit:
        """Longest run of rows in HBM, all of one lineage, that leaves `min_new_tokens`.

        `partial`: whether a page can be gone on with in the middle.
        """
        most = self.most_hit_tokens(request)
        text = self.keys.text(request)
        best = PrefixHit((), self.keys.format_label, 0)
        for lineage in self.keys.lineages:
            rows = index.match(text, lineage, most // self.block_size)
            hit = PrefixHit(tuple(rows), lineage, len(rows) * self.block_size)
            if partial and self.partial_hits:
                hit = self._with_beginning(index, request, hit, most)
            if hit.num_tokens > best.num_tokens:
                best = hit
        return best

    def _with_beginning(
        self, index: PrefixIndex, request: Request, hit: PrefixHit, most: int
    ) -> PrefixHit:
        """The hit with the common beginning of the cached block that comes closest."""
        known = hit.num_tokens
        wanted = request.token_ids[known : min(most, known + self.block_size)]
        after = hit.rows[-1].key if hit.rows else self.keys.link_key(request, hit.lineage)
        found = index.closest(after, wanted) if wanted else None
        if found is None:
            return hit
        row, common = found
        return PrefixHit(hit.rows, hit.lineage, known + common, row, common)
