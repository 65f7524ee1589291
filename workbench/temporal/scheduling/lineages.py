"""Under which lineages the tiers keep rows: as they are, and as a lossy codec left them."""

from workbench.cache.codec import CodedRow, RowPart
from workbench.cache.keys import coded_lineage, tagged_key
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.prefix_index import Row
from workbench.cache.request_blocks import PrefixHit
from workbench.cache.tier import KVHierarchy


class Lineages:
    """Names what goes down, and what may be found below a hit."""

    def __init__(self, manager: KVCacheManager, hierarchy: KVHierarchy) -> None:
        self._manager, self._hierarchy = manager, hierarchy

    def coded(self, row: Row) -> CodedRow | None:
        """What the disk's lossy codec may make of a row; its lineage then says so (decision 5)."""
        tag = self._hierarchy.codec_numerics
        if not tag:
            return None
        lineage = coded_lineage(row.lineage, tag)
        self._manager.keys.remember_lineage(lineage)
        parts = tuple(
            RowPart(spec, group.layers[0], group.kv_heads[0])
            for group, (_, spec) in zip(
                self._manager.geometry.groups, self._manager.parts(row.blocks), strict=True
            )
        )
        return CodedRow(tagged_key(row.chain_key, lineage), parts)

    def behind(self, hit: PrefixHit) -> list[str]:
        """Lineages of pages that may follow a hit: its own, and what a lossy codec made of it.

        The tag says that a codec lies somewhere on the way, not that it changed every page.
        """
        keys, tag = self._manager.keys, self._hierarchy.codec_numerics
        if tag:  # an earlier process may have left such rows, or another one in a shared tier
            keys.remember_lineage(coded_lineage(keys.format_label, tag))
        if not hit.rows:
            return keys.lineages
        coded = coded_lineage(hit.lineage, tag) if tag else hit.lineage
        return [hit.lineage, coded] if coded in keys.lineages[1:] else [hit.lineage]
