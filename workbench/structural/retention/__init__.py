"""Retention (KVRM): which tokens of a running request stay in the cache."""
