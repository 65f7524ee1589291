"""Each mistake of a user ends in one sentence that names the thing and what to do."""

import pytest

from tests.engine.harness import Runner, build, pages, spec, tokens
from workbench.config import EngineConfig, replace_settings
from workbench.errors import CapacityError, RequestError, SettingError, TierError
from workbench.request import RequestSpec, RequestStatus, SamplingParams


def says(error: pytest.ExceptionInfo[Exception], *parts: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


def test_prompt_longer_than_the_model() -> None:
    engine = build({"model.max_model_len": 64})
    with pytest.raises(RequestError) as error:
        engine.add_request(spec(tokens(64)))
    says(error, "the prompt has 64 tokens and the model takes 63", "raise model.max_model_len")
    assert not engine.has_work()


def test_prompt_longer_than_the_pool() -> None:
    engine = build({"cache.hbm_budget_mib": pages(32)})
    with pytest.raises(RequestError) as error:
        engine.add_request(spec(tokens(140)))
    says(
        error, "the request needs 36 blocks and the whole pool has 32", "raise cache.hbm_budget_mib"
    )


def test_empty_prompt() -> None:
    with pytest.raises(RequestError) as error:
        RequestSpec(token_ids=[])
    says(error, "token_ids is empty: give at least one token of text")
    with pytest.raises(RequestError) as error:
        RequestSpec(prompt="")
    says(error, "prompt is empty")
    with pytest.raises(RequestError) as error:
        RequestSpec()
    says(error, "give exactly one of prompt, messages, token_ids (given: none of them)")


@pytest.mark.parametrize("where", ["token_ids", "resume_tokens"])
@pytest.mark.parametrize("token", [-1, 257])
def test_token_outside_the_vocabulary(where: str, token: int) -> None:
    engine = build()
    given = {"token_ids": [1, 2, 3]} | {where: [5, token]}
    with pytest.raises(RequestError) as error:
        engine.add_request(RequestSpec(**given))
    says(error, f"token {token} is not in the vocabulary: 0 to 256")


def test_same_id_twice() -> None:
    engine = build()
    engine.add_request(spec(tokens(5), request_id="a"))
    with pytest.raises(RequestError) as error:
        engine.add_request(spec(tokens(5), request_id="a"))
    says(error, "request a is running already: choose another id")


def test_unknown_setting() -> None:
    engine = build()
    with pytest.raises(SettingError) as error:
        engine.apply({"cache.k_fmt": "int8"})
    says(error, "unknown setting 'cache.k_fmt'", "`workbench settings` lists them all")
    with pytest.raises(SettingError) as error:
        engine.apply({"k_format": "int8"})
    says(error, "did you mean cache.k_format?")


def test_budget_smaller_than_one_block() -> None:
    with pytest.raises(SettingError) as error:
        build({"cache.hbm_budget_mib": 0.001})
    says(error, "cache.hbm_budget_mib = 0.001 is out of range: 0.0625 to 65536 MiB")
    with pytest.raises(CapacityError) as error:
        build({"cache.hbm_budget_mib": 0.0625, "cache.block_size": 64}, num_layers=8)
    says(
        error,
        "cache.hbm_budget_mib = 0.0625 MiB is smaller than one block (0.12 MiB)",
        "raise the budget",
    )


def test_budget_smaller_than_a_running_request_changes_nothing() -> None:
    runner = Runner(build())
    request_id = runner.add(tokens(150), 8)
    runner.step(3)
    before = runner.engine.config
    with pytest.raises(CapacityError) as error:
        runner.engine.apply({"cache.hbm_budget_mib": 0.0625})
    says(
        error,
        "cache.hbm_budget_mib = 0.0625 MiB is too small for request 1 (150 tokens)",
        "abort it or choose more",
    )
    assert runner.engine.config is before
    runner.drain()
    assert runner.status[request_id] == RequestStatus.FINISHED_LENGTH


def test_model_length_shorter_than_a_request() -> None:
    engine = build()
    engine.add_request(spec(tokens(50)))
    with pytest.raises(SettingError) as error:
        engine.apply({"model.max_model_len": 40})
    says(error, "model.max_model_len = 40 is shorter than request 1 (50 tokens)")


def test_block_size_not_allowed() -> None:
    with pytest.raises(SettingError) as error:
        replace_settings(EngineConfig(), {"cache.block_size": 7})
    says(error, "cache.block_size = 7 is not allowed: choose one of 4, 8, 16, 32, 64")


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({"temperature": -1.0}, "temperature = -1.0 is out of range: 0 to 100"),
        ({"temperature": float("nan")}, "temperature = nan is out of range: 0 to 100"),
        ({"top_k": -1}, "top_k = -1 is out of range: 0 (all) or more"),
        ({"top_p": 0.0}, "top_p = 0.0 is out of range: above 0, up to 1"),
        ({"top_p": 1.5}, "top_p = 1.5 is out of range: above 0, up to 1"),
        ({"max_tokens": 0}, "max_tokens = 0 is out of range: 1 or more"),
        ({"sample_index": -1}, "sample_index = -1 is out of range: 0 to 2^64 - 1"),
        ({"sample_index": 2**64}, "sample_index = 18446744073709551616 is out of range"),
    ],
)
def test_bad_sampling(values: dict[str, float], sentence: str) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(**values)
    says(error, sentence)


def test_format_that_does_not_fit_a_slab() -> None:
    small = {"cache.k_format": "int4", "cache.v_format": "int4"}
    engine = build(small | {"cache.hbm_budget_mib": 0.0625, "cache.block_size": 64}, num_layers=8)
    with pytest.raises(CapacityError) as error:
        engine.apply({"cache.k_format": "fp32", "cache.v_format": "fp32"})
    says(
        error,
        "cache.k_format = fp32 makes a page of 0.12 MiB, larger than a slab",
        "raise cache.hbm_budget_mib",
    )


def test_weights_cannot_be_changed_live() -> None:
    engine = build()
    with pytest.raises(SettingError) as error:
        engine.apply({"model.weight_format": "int8"})
    says(error, "model.weight_format needs the weights loaded again: build a new engine")


def test_tier_smaller_than_a_page_leaves_everything() -> None:
    engine = build()
    with pytest.raises(TierError) as error:
        engine.apply({"tiers.dram_mib": 0.0001, "scheduling.order": "priority"})
    says(error, "tiers.dram_mib = 0.0001 MiB holds no page of", "or 0 to switch DRAM off")
    assert engine.config.scheduling.order == "fcfs"


def test_shadow_of_a_request_that_is_gone() -> None:
    with pytest.raises(RequestError) as error:
        build().start_shadow("7")
    says(error, "request 7 is not running: choose one that is")


def test_contiguous_request_that_can_never_fit() -> None:
    engine = build({"cache.allocation": "contiguous", "cache.hbm_budget_mib": pages(32)})
    with pytest.raises(RequestError) as error:
        engine.add_request(spec(tokens(20), 120))
    says(error, "the request needs 35 blocks and the whole pool has 32")
