"""Faults planted into a real engine process: what ends it, and what ends one request only."""

import subprocess
import sys

import msgspec
import zmq
from process_helpers import LAYERS, prompt

from workbench.engine.process.endpoints import Endpoints, LaunchOptions
from workbench.engine.process.protocol import (
    WELCOME,
    Command,
    OutputBatch,
    Published,
    Submit,
)

PROGRAM = """
import sys
from workbench.engine.process import server
from workbench.engine.engine import Engine
real_step = Engine.step
def step(self):
    if self.num_steps == 3:
        self.num_steps += 1
        {fault}
    return real_step(self)
Engine.step = step
sys.exit(server.main(sys.argv[1:]))
"""
BELONGS_TO_ONE = """
        error = RuntimeError("its logits are not finite")
        error.request_id = "1"
        raise error
"""


def start(folder, fault: str) -> tuple[subprocess.Popen[bytes], Endpoints]:
    endpoints = Endpoints(str(folder))
    options = LaunchOptions(random_layers=LAYERS, changes={"cache.hbm_budget_mib": 1.0})
    endpoints.options_file.write_bytes(msgspec.json.encode(options))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(fault=fault), endpoints.directory],
        stdin=subprocess.PIPE,
    )
    return process, endpoints


def submit_two(endpoints: Endpoints, context: zmq.Context) -> zmq.Socket:
    outputs = context.socket(zmq.SUB)
    outputs.setsockopt(zmq.SUBSCRIBE, b"")
    outputs.setsockopt(zmq.RCVTIMEO, 60_000)
    outputs.connect(endpoints.outputs)
    assert outputs.recv() == WELCOME
    commands = context.socket(zmq.DEALER)
    commands.connect(endpoints.commands)
    for call_id in (1, 2):
        spec = prompt(f"number {call_id}", max_tokens=8)
        commands.send(msgspec.msgpack.encode(Command(call_id, Submit(spec))))
    return outputs


def test_an_error_in_a_step_ends_the_process_with_one_line(tmp_path):
    process, endpoints = start(tmp_path, 'raise RuntimeError("no\\nscratch left")')
    with zmq.Context() as context:
        submit_two(endpoints, context)
        assert process.wait(60) == 70
        context.destroy(linger=0)
    assert endpoints.crash_file.read_text() == "RuntimeError: no scratch left"


def test_an_error_that_belongs_to_one_request_ends_that_request_only(tmp_path):
    process, endpoints = start(tmp_path, BELONGS_TO_ONE.strip())
    with zmq.Context() as context:
        outputs = submit_two(endpoints, context)
        ends: dict[str, tuple[str, str]] = {}
        while len(ends) < 2:
            message = msgspec.msgpack.decode(outputs.recv(), type=Published)
            for output in message.outputs if isinstance(message, OutputBatch) else ():
                if output.status.startswith("finished"):
                    ends.setdefault(output.request_id, (output.status, output.error))
        context.destroy(linger=0)
    assert ends["1"] == ("finished_error", "its logits are not finite")
    assert ends["2"][0] == "finished_length"
    process.stdin.close()  # what the death of its parent does
    assert process.wait(30) == 0
