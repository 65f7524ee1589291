"""The cached default model: found, verified, and thrown away when it is not what it says."""

from pathlib import Path

import pytest

from workbench.errors import ModelError
from workbench.model.fetch import GGUF_BYTES, GGUF_NAME, TOTAL_BYTES, cache_dir, cached_path, fetch


def test_cached_file_is_not_downloaded_again(gguf_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert fetch(lambda done, total: seen.append((done, total))) == gguf_path == cached_path()
    assert seen == [(TOTAL_BYTES, TOTAL_BYTES)]


def test_cached_file_with_other_bytes_is_deleted(empty_cache: Path) -> None:
    empty_cache.mkdir()
    path = empty_cache / GGUF_NAME
    with path.open("wb") as file:
        file.truncate(GGUF_BYTES)
    with pytest.raises(ModelError, match="wrong checksum .*was deleted: run `workbench model"):
        fetch()
    assert not path.exists()


def test_half_a_file_is_not_taken(empty_cache: Path) -> None:
    empty_cache.mkdir()
    (empty_cache / GGUF_NAME).write_bytes(b"GGUF")
    assert cached_path() is None and cache_dir() == empty_cache
