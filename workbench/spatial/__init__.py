"""Where a block's bytes lie: memory tiers and devices."""
