"""Paged KV-cache kernels, each twice with one signature: torch reference and Triton."""
