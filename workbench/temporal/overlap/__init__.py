"""What runs while something else runs: loads under compute (OVLP)."""
