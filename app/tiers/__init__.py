"""Figures of the page *Tiers*: what a fetch costs, what moved, and where a block has been."""
