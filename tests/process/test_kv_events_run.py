"""`workbench run` publishes KV events and writes them to a file; bad input is one sentence."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from kv_reader import Reader, known

from tests.model.tiny_folders import tiny_tokenizer, write_case
from workbench.events import AllBlocksCleared, KVEventBatch


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A run of two prompts that share a beginning, on a tiny model."""
    folder = write_case(tmp_path / "model", "llama_gqa_untied")
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    text = [1, 0, 1, 1] * 6
    lines = [{"token_ids": [*text, last], "max_tokens": 6, "ignore_eos": True} for last in (0, 1)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(line) for line in lines))
    return [
        str(Path(sys.executable).parent / "workbench"), "run", str(prompts), "--json",
        "--set", "model.num_threads=1", "--set", f"model.path={folder}",
        "--set", "cache.block_size=4", "--set", "model.weight_format=fp32",
    ]  # fmt: skip


def run(command: list[str], tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"KV_WORKBENCH_CACHE": str(tmp_path / "cache")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def read_file(path: Path) -> Iterator[bytes]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def test_a_run_tells_the_same_on_the_socket_and_in_the_file(
    command: list[str], tmp_path: Path
) -> None:
    context: zmq.Context[Any] = zmq.Context()
    address, path = f"ipc://{tmp_path}/kv", tmp_path / "events.msgpack"
    reader = Reader(context, address)
    done = run([*command, "--kv-events", address, "--kv-events-file", str(path)], tmp_path)
    assert done.returncode == 0, done.stderr
    batches = list(read_file(path))
    heard = reader.take()
    context.destroy(linger=0)
    assert heard and heard[-1][0] == len(batches) - 1
    assert [payload for _, payload in heard] == batches[-len(heard) :]
    first = msgspec.msgpack.decode(batches[0], type=KVEventBatch)
    assert first.events == [AllBlocksCleared()]
    assert len(known(list(enumerate(batches)))["GPU"]) == 8  # 6 they share, one of each


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--kv-events", "tcp://0.0.0.0:5557"], "is open to others: give tcp://127.0.0.1:5557"),
        (["--kv-events", "nowhere"], "give tcp://127.0.0.1:PORT or ipc:///path/of/a/socket"),
        (["--kv-events-replay", "tcp://127.0.0.1:5558"], "--kv-events-replay needs --kv-events"),
        (["--kv-events-file", "/no/such/folder/events"], "there is no folder /no/such/folder"),
        (["--kv-events-file", "/tmp"], "/tmp is a folder: name a file to write"),
    ],
)
def test_bad_input_is_one_sentence(
    command: list[str], options: list[str], sentence: str, tmp_path: Path
) -> None:
    done = run([*command, *options], tmp_path)
    assert done.returncode == 2 and sentence in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_file_on_a_full_disk_is_one_sentence(command: list[str], tmp_path: Path) -> None:
    done = run([*command, "--kv-events-file", "/dev/full"], tmp_path)
    assert done.returncode == 2 and "/dev/full cannot be written (No space left" in done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
