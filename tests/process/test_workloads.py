import json

import pytest

from workbench.errors import RequestError, SettingError
from workbench.lab import prompts_file
from workbench.lab.prompts_file import read_prompts
from workbench.lab.traces import TraceScale, read_trace
from workbench.lab.workloads import PRESETS, make_workload


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_for_the_same_seed_and_bounded(name):
    first, again, other = (make_workload(name, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert 1 <= len(first.arrivals) <= 1000
    times = [arrival.at_s for arrival in first.arrivals]
    assert times == sorted(times)


def test_shared_chat_is_one_system_prompt_and_keeps_six_running():
    plan = make_workload("shared_chat")
    assert plan.max_in_flight == 6 and plan.repeat
    assert len({arrival.spec.messages[0]["content"] for arrival in plan.arrivals}) == 1
    assert len({arrival.spec.sampling.seed for arrival in plan.arrivals}) > 200


def test_later_turns_follow_the_turn_before_them():
    plan = make_workload("multi_turn", num_chats=3, num_turns=3)
    assert [arrival.follows for arrival in plan.arrivals] == [-1, -1, -1, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("nothing", {}, "unknown workload 'nothing': choose one of shared_chat, long_document"),
        ("thrash", {"size": 1}, "workload 'thrash' has no option 'size': it takes num_requests"),
        ("thrash", {"num_requests": 10**9}, "num_requests = 1000000000 is out of range: 1 to 1000"),
        ("thrash", {"num_requests": "x"}, "num_requests = 'x' is not allowed: give a number"),
    ],
)
def test_bad_workload_options_are_named(name, options, sentence):
    with pytest.raises(SettingError) as caught:
        make_workload(name, **options)
    assert str(caught.value).startswith(sentence)


GOOD = {"prompt": "a", "max_tokens": 3, "temperature": 0.5, "seed": 4}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x", 'line 2: is not JSON: write {"prompt": "..."}'),
        ("[" * 100_000, 'line 2: is not JSON: write {"prompt": "..."}'),
        ("[1]", 'line 2: is a list, not an object: write {"prompt": "..."}'),
        ('{"prompt": ""}', "line 2: prompt is empty: give at least one token of text"),
        ('{"max_tokens": 1}', "line 2: give exactly one of prompt, messages, token_ids"),
        ('{"prompt": 3}', "line 2: Expected str | null, got int"),
        ('{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens = 0 is out of range: 1 or more"),
        ('{"prompt": "a", "foo": 1}', "line 2: has an unknown field 'foo': use prompt, messages"),
        ('{"prompt": "a", "request_id": "1"}', "line 2: has an unknown field 'request_id'"),
        (
            '{"prompt": "a", "salt": "x"}',
            "line 2: has a salt: whoever owns the engine names the tenant, not the request",
        ),
        (
            '{"prompt": "a", "cache_control": [{"at": 1, "ttl": "2h"}]}',
            "line 2: cache_control ttl = '2h' is no lifetime: give 5m or 1h",
        ),
        (
            '{"token_ids": [1], "cache_control": ['
            + ", ".join(f'{{"at": {at}}}' for at in range(1, 6))
            + "]}",
            "line 2: cache_control has 5 breakpoints: at most 4 are allowed",
        ),
        ('{"prompt": "' + "a" * 200_001 + '"}', "line 2: has 200015 characters; at most 200000"),
    ],
)
def test_each_bad_line_is_named_and_the_others_are_used(line, sentence):
    text = f"{json.dumps(GOOD)}\n{line}\n\n" + '{"messages": [{"role": "user", "content": "b"}]}'
    specs, problems = read_prompts(text.encode())
    assert [number for number, _ in specs] == [1, 4]
    assert specs[0][1].sampling.max_tokens == 3 and specs[0][1].sampling.seed == 4
    assert len(problems) == 1 and problems[0].startswith(sentence)


def test_the_tenant_of_a_file_is_named_by_whoever_reads_it():
    line = b'{"prompt": "a", "cache_control": [{"at": 1}, {"at": 2, "ttl": "5m"}]}'
    ((_, spec),) = read_prompts(line, "tenant")[0]
    assert spec.salt == "tenant" and [point.at for point in spec.cache_control] == [1, 2]
    assert read_prompts(line)[0][0][1].salt == ""


def test_a_file_that_is_too_large_or_no_text_is_refused():
    with pytest.raises(RequestError, match=r"the file has 4\.0 MiB: at most 4 MiB are read"):
        read_prompts(b"x" * (prompts_file.MAX_FILE_BYTES + 1))
    with pytest.raises(RequestError, match=r"the file is larger than 4 MiB: split it"):
        read_prompts(["x" * 100_000] * 50)
    with pytest.raises(RequestError, match=r"not UTF-8 text \(byte 0\)"):
        read_prompts(b"\xff\xfe")


def test_only_so_many_lines_and_problems_are_kept():
    specs, problems = read_prompts(((json.dumps(GOOD) + "\n") * 1001).encode())
    assert len(specs) == 1000 and problems == ["line 1001: only the first 1000 requests are used"]
    specs, problems = read_prompts(b"x\n" * 500)
    assert specs == [] and len(problems) == 51


def test_mooncake_requests_share_what_the_trace_shares(tmp_path):
    rows = [
        {"timestamp": 3000, "input_length": 1100, "output_length": 64, "hash_ids": [5, 6, 8]},
        {"timestamp": 1000, "input_length": 1100, "output_length": 640, "hash_ids": [5, 6, 7]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    scale = TraceScale(length=1 / 16, time=0.5, vocab_size=300)
    plan = read_trace(path, scale)
    assert [arrival.at_s for arrival in plan.arrivals] == [0.0, 1.0]
    first, second = (arrival.spec for arrival in plan.arrivals)
    assert len(first.token_ids) == len(second.token_ids) == 69
    assert first.token_ids[:64] == second.token_ids[:64]
    assert first.token_ids[64:] != second.token_ids[64:]
    assert max(first.token_ids) < 300
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (40, 4)
    assert read_trace(path, scale) == plan


def test_azure_requests_arrive_as_written(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    plan = read_trace(path, TraceScale(length=0.5))
    assert [len(arrival.spec.token_ids) for arrival in plan.arrivals] == [187, 198]
    assert plan.arrivals[1].at_s == pytest.approx(4.314579)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.jsonl", '{"timestamp": 1}', "a.jsonl, line 1: not a Mooncake request"),
        ("a.jsonl", "7", "a.jsonl, line 1: not a Mooncake request"),
        ("a.jsonl", "", "holds no requests"),
        ("a.csv", "TIMESTAMP,ContextTokens\n1,2", "a.csv, line 2: not an Azure request"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01,-4,1", "line 2: not an"),
        ("a.txt", "", "is neither .jsonl (Mooncake) nor .csv (Azure)"),
    ],
)
def test_a_foreign_trace_is_named(tmp_path, name, text, sentence):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(RequestError) as caught:
        read_trace(path)
    assert sentence in str(caught.value)


def test_a_missing_trace_is_named(tmp_path):
    with pytest.raises(RequestError, match=r"trace .*none\.csv cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_a_scale_must_be_positive():
    with pytest.raises(RequestError, match=r"trace scale length = 0 must be above 0"):
        TraceScale(length=0)
