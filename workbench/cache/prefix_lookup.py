"""What a request may hit: full rows of one lineage, and the beginning of one block more."""

from workbench.cache.lifetimes import Lifetimes
from workbench.cache.prefix_index import PrefixIndex
from workbench.cache.request_blocks import PrefixHit
from workbench.cache.request_keys import RequestKeys
from workbench.cache_control import BreakpointView
from workbench.request import Request


class PrefixLookup:
    """Asks the index for a request's text, within what a hit may have."""

    def __init__(self, keys: RequestKeys, block_size: int, lifetimes: Lifetimes) -> None:
        self.keys = keys
        self.block_size = block_size
        self.min_new_tokens = 1  # what a hit leaves to compute: logits, and what retention observes
        self.prompt_tail = 0  # last tokens of a prompt that no hit has, whatever followed them
        self.partial_hits = False
        self.lifetimes = lifetimes
        self.explicit = False  # only what was marked, and lives, may be hit

    def most_hit_tokens(self, request: Request) -> int:
        """Tokens a hit may have at most (I12, decision 13; what is kept, if that is asked for)."""
        most = request.num_tokens - self.min_new_tokens
        if self.prompt_tail:
            most = min(most, request.num_prompt_tokens - self.prompt_tail)
        most = max(0, most)
        return min(most, self._kept_tokens(request, most)) if self.explicit else most

    def _kept_tokens(self, request: Request, most: int) -> int:
        """The longest living entry in front of the request's last breakpoint."""
        if not request.breakpoints:
            return 0
        last = min(most, request.breakpoints[-1][0]) // self.block_size
        return self.lifetimes.reach(self.keys.chain(request)[:last]) * self.block_size

    def is_unmarked(self, request: Request, known: int) -> bool:
        """Whether a hit of `known` tokens ended because nobody asked to keep more."""
        return self.explicit and known >= self.most_hit_tokens(request)

    def admitted(self, request: Request, num_tokens: int, num_pages: int) -> None:
        """A request begins with `num_tokens` of the cache, `num_pages` of them full and in HBM."""
        if request.num_settled_tokens is None:
            request.num_settled_tokens = num_tokens
        if not self.lifetimes.is_empty:
            self.lifetimes.use(self.keys.chain(request)[: num_tokens // self.block_size])
        self.published(request, num_pages)

    def published(self, request: Request, num_pages: int) -> None:
        """So many leading blocks of a request can be found now."""
        if request.num_marked < len(request.breakpoints):
            chain = self.keys.chain(request)
            self.lifetimes.reached(request, chain, num_pages, self.block_size)

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

    def breakpoint_views(self, request: Request) -> list[BreakpointView]:
        """A request's breakpoints, and how long what they keep has left."""
        views = []
        for end, ttl in request.breakpoints:
            chain = self.keys.chain(request)[: end // self.block_size]
            left = self.lifetimes.left_s(chain[-1]) if chain else None
            views.append(BreakpointView(at=end, ttl=ttl, left_s=left))
        return views
