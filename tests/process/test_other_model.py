"""A model with another vocabulary is loaded while requests run."""

import json
from pathlib import Path

import pytest
from process_helpers import until

from tests.model.tiny_folders import tiny_tokenizer, write_case
from workbench.client import EngineClient
from workbench.config import EngineConfig, ModelSettings
from workbench.request import RequestSpec, SamplingParams

LONG = SamplingParams(max_tokens=200, ignore_eos=True)


def write_model(folder: Path, swapped: bool) -> str:
    """A tiny model; `swapped`: two words of its vocabulary have each other's number."""
    write_case(folder, "llama_gqa_untied")
    tokenizer = json.loads(tiny_tokenizer())
    if swapped:
        vocabulary = tokenizer["model"]["vocab"]
        one, two = list(vocabulary)[-2:]
        vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


@pytest.mark.parametrize("swapped", [False, True], ids=["same words", "other words"])
def test_text_runs_on_and_token_ids_only_where_they_mean_the_same(
    swapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path / "cache"))
    first, other = (write_model(tmp_path / name, swapped and name == "b") for name in "ab")
    config = EngineConfig(model=ModelSettings(path=first, max_model_len=256, num_threads=1))
    client = EngineClient.start(config, wait=True)
    try:
        client.set_speed(0.1)
        text = client.submit(RequestSpec(prompt="a b", sampling=LONG))
        ids = client.submit(RequestSpec(token_ids=[3, 4, 5], sampling=LONG))
        until(lambda: len(client.outputs(ids).token_ids) > 3)
        client.apply({"model.path": other})
        client.set_speed(1.0)
        until(lambda: client.outputs(text).is_finished and client.outputs(ids).is_finished)
        assert client.outputs(text).status == "finished_length"
        assert len(client.outputs(text).token_ids) == 200
        ended = client.outputs(ids)
        assert (ended.status == "finished_error") == swapped
        if swapped:
            assert ended.error == (
                "this request was given as token ids, which mean other text in the model loaded "
                "now: submit it again as text"
            )
    finally:
        client.close()
