"""Compression (KVCC): codecs for pages on their way to slower tiers; formats are kvkernels'."""
