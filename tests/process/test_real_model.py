"""The default model behind the process: the first seconds of the dashboard."""

import os
import signal

import pytest
from process_helpers import finished, prompt, small_config, until

from workbench.client import EngineClient
from workbench.snapshot import Snapshot, decode_frame

pytestmark = pytest.mark.long


def test_the_first_frames_tell_of_loading_and_the_first_requests_share_their_prompt():
    client = EngineClient.start(small_config(cache__hbm_budget_mib=64.0))
    try:
        seen: list[Snapshot] = []
        client.subscribe(lambda frame: seen.append(decode_frame(frame)[0]))
        client.start_workload_soon("shared_chat")
        client.wait_ready()
        assert seen[0].state == "loading" and seen[0].model_name.startswith("SmolLM2-135M")
        until(lambda: len([e for e in client.events_since(0) if e.kind == "share"]) >= 3, 120)
        shared = [e.data["num_tokens"] for e in client.events_since(0) if e.kind == "share"]
        assert 170 <= max(shared) <= 260
        until(lambda: len(client.snapshot().requests) >= 6)
        assert client.check().ok
    finally:
        client.close()


def test_killed_mid_step_the_real_model_goes_on_too():
    client = EngineClient.start(
        small_config(cache__hbm_budget_mib=32.0, model__weight_format="fp32"), wait=True
    )
    try:
        spec = prompt("The library is", max_tokens=48)
        alone = finished(client, client.submit(spec)).token_ids
        request_id = client.submit(spec)
        until(lambda: len(client.outputs(request_id).token_ids) > 8)
        os.kill(client.pid, signal.SIGKILL)
        until(lambda: client.state == "dead")
        client.restart()
        assert finished(client, request_id).token_ids == alone
    finally:
        client.close()
