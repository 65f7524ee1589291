"""A policy of the user's own in the engine process: loaded, chosen, changed, kept by a restart."""

import os
import signal

import pytest
from process_helpers import LAYERS, finished, prompt, small_config, until

from tests.engine.test_own_policies import POLICY
from workbench.client import EngineClient
from workbench.errors import SettingError


@pytest.fixture
def client():
    config = small_config(tiers__dram_mib=1.0)
    client = EngineClient.start(config, wait=True, random_layers=LAYERS)
    yield client
    client.close()


def test_it_is_chosen_once_it_is_loaded(client: EngineClient) -> None:
    with pytest.raises(SettingError, match="'mine' is no placement policy.*or load yours first"):
        client.apply({"tiers.policy": "mine"})
    assert client.load_policy("file", POLICY.format(worth=1, name="mine")) == [
        ("placement", "mine")
    ]
    assert client.names_of_own("placement") == ["mine"] and client.names_of_own("order") == []
    client.apply({"tiers.policy": "mine"})
    assert client.tiers().placement.policy == "mine"
    assert finished(client, client.submit(prompt("hello", 4))).token_ids

    with pytest.raises(SettingError, match="tiers.policy = 'mine' is no placement policy"):
        client.load_policy("file", POLICY.format(worth=1, name="yours"))  # it is in use
    with pytest.raises(SettingError, match="line 2, ended with NameError"):
        client.load_policy("file", "\nnonsense")
    assert client.names_of_own("placement") == ["mine"]
    assert client.load_policy("file", POLICY.format(worth=2, name="mine")) == [
        ("placement", "mine")
    ]
    client.apply({"tiers.policy": "lru"})
    assert client.load_policy("file", POLICY.format(worth=1, name="yours"))
    client.apply({"tiers.policy": "yours"})


def test_a_restart_keeps_it_and_the_way_out_forgets_it(client: EngineClient) -> None:
    client.load_policy("file", POLICY.format(worth=1, name="mine"))
    client.apply({"tiers.policy": "mine"})
    os.kill(client.pid, signal.SIGKILL)
    until(lambda: client.state == "dead")
    client.restart(wait=True)
    assert client.tiers().placement.policy == "mine"
    client.restart(wait=True, resubmit=False)
    assert client.tiers().placement.policy == client.config.tiers.policy == "lru"
    assert client.names_of_own("placement") == []
    with pytest.raises(SettingError, match="is no placement policy"):
        client.apply({"tiers.policy": "mine"})
