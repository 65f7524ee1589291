"""The page Tiers on a real engine, without a browser: knobs, table, faults."""

from streamlit.testing.v1 import AppTest

from app import engine_owner
from app.text import load_texts
from app.tiers.cost_figures import cost_figure, fetch_seconds
from app.tiers.figures import flow_figure, journey_figure, overlap_figure
from tests.interface.dashboard import ROOT, wait_for
from tests.interface.dashboard_page import checked, turn
from workbench.client import EngineClient
from workbench.request import RequestSpec, SamplingParams
from workbench.tier_views import BlockMove


def opened() -> AppTest:
    """The page Tiers in a session of its own."""
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
    checked(app.run())
    app.session_state["tab_state"].goto = "tiers"
    return checked(app.run())


def words(app: AppTest) -> str:
    return "\n".join(str(item.value) for item in [*app.caption, *app.markdown]).replace("\\", "")


def test_without_tiers_it_says_what_will_stand_here(owner: engine_owner.EngineOwner) -> None:
    app = opened()
    assert "No tier is on: give DRAM or disk some MiB" in words(app)
    assert "Nothing has moved between tiers yet" in words(app)
    assert "No block has left HBM yet" in words(app)
    assert "No request has loaded by layers yet" in words(app)
    assert "Turn a tier on first: there is nothing to damage." in words(app)
    assert app.button(key="fault_corrupt_dram").disabled and app.button(key="fault_slow").disabled


def test_a_tier_turned_on_here_is_measured_at_once(owner: engine_owner.EngineOwner) -> None:
    client = owner.client
    app = turn(opened(), "tiers.dram_mib", 16.0)
    assert client.tiers().tiers[0].enabled
    assert "G2: " in words(app) and "MB/s up" in words(app)
    assert not app.button(key="fault_slow").disabled
    checked(app.button(key="fault_corrupt_dram").click().run())
    assert 'Nothing is there to damage with "flip a bit in DRAM" now.' in words(app)
    checked(app.button(key="fault_slow").click().run())
    assert client.tiers().tiers[0].provenance == "throttled"


def _ask(client: EngineClient, seed: int) -> None:
    tokens = [(seed * 31 + i) % 250 for i in range(900)]
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    request_id = client.submit(RequestSpec(token_ids=tokens, sampling=sampling))
    wait_for(lambda: client.outputs(request_id).is_finished, 30, lambda: "it never ended")


def ask_again(client: EngineClient) -> None:
    """Prompts that push each other out of HBM into DRAM, and one of them once more."""
    client.set_speed(1.0)
    client.apply({"tiers.dram_mib": 16.0, "cache.hbm_budget_mib": 0.6, "tiers.gate": False,
                  "tiers.dram_throttle_mb_s": 0.0})  # fmt: skip
    for seed in (1, 2, 1):
        _ask(client, seed)
    client.set_speed(0.1)


def test_figures_tell_what_was_measured(owner: engine_owner.EngineOwner) -> None:
    client = owner.client
    ask_again(client)
    report = client.tiers()
    dram = report.tiers[0]
    assert dram.fetched_tokens > 0 and dram.stored_bytes > 0
    app = opened()
    (table,) = [frame.value for frame in app.dataframe if "worth" in frame.value]
    shown, later = list(table["tokens used"])[0], client.tiers().tiers[0].fetched_tokens
    assert dram.fetched_tokens <= shown <= later  # others' requests go on meanwhile
    assert str(table["worth"][0]).endswith(("ms saved", "ms lost"))
    texts = load_texts()
    line = cost_figure(texts, report).data[-1]
    assert line.y[0] == fetch_seconds(report, dram, 1) and line.x[0] == report.block_tokens
    flow = flow_figure(texts, report)
    assert flow is not None and sum(flow.data[0].link.value) > 0
    travelled = client.journey()
    moves = client.journey(travelled[0].key)
    picture = journey_figure(texts, moves, [tier.name for tier in client.snapshot().tiers])
    assert sum(len(trace.x) for trace in picture.data[1:]) == len(moves)
    _ask_by_layers(client)
    overlap = client.tiers().overlap
    assert overlap is not None and f"{overlap.wait_ms:,.1f} ms" in words(opened())
    strip = overlap_figure(texts, overlap)
    assert sum(len(trace.x) for trace in strip.data) == len(overlap.spans)


def _ask_by_layers(client: EngineClient) -> None:
    """Prompts that have left HBM, until one of them was worth loading layer by layer."""
    client.set_speed(1.0)
    client.apply({"tiers.load": "layerwise"})
    for seed in (1, 2) * 5:
        if client.tiers().overlap is not None:
            break
        _ask(client, seed)
    client.apply({"tiers.load": "whole"})
    client.set_speed(0.1)


def test_a_block_is_held_and_let_go_by_button(owner: engine_owner.EngineOwner) -> None:
    client = owner.client
    ask_again(client)
    app = checked(opened().button(key="hold_hard").click().run())
    assert "is pinned: fill the cache" in words(app)
    assert client.tiers().tiers[0].num_held == 1
    (table,) = [frame.value for frame in app.dataframe if "held" in frame.value]
    assert table["held"][0] == "1 held, 0 last"
    app = checked(app.button(key="hold_none").click().run())
    assert "has its place in the order of eviction again" in words(app)
    assert client.tiers().tiers[0].num_held == 0


def test_placements_run_from_the_page(owner: engine_owner.EngineOwner) -> None:
    app = opened()
    assert "stands here once it ran" in words(app)
    checked(app.multiselect(key="devices_chosen").set_value([]).run())
    assert app.button(key="devices_run").disabled
    checked(app.multiselect(key="devices_chosen").set_value(["pp2"]).run())
    checked(app.button(key="devices_run").click().run())
    assert "1 placements are compared in processes of their own" in words(app)
    assert app.button(key="devices_run").disabled and app.button(key="devices_cancel")
    wait_for(lambda: not owner.devices.status.running, 90, lambda: owner.devices.status.error)
    app = opened()
    assert "All placements ran" in words(app)
    (table,) = [frame.value for frame in app.dataframe if "KV balance" in frame.value]
    assert list(table["placement"]) == ["pipeline, 2 ranks by layer"]
    assert list(table["equal tokens"]) == ["136/136"]
    assert list(table["bytes moved a token"]) == list(table["by formula"])


def test_a_journey_of_no_moves_draws_an_empty_picture() -> None:
    texts = load_texts()
    moves: list[BlockMove] = []
    assert len(journey_figure(texts, moves, ["G1"]).data) == 1


def test_damage_names_the_block_that_was_hit(owner: engine_owner.EngineOwner) -> None:
    ask_again(owner.client)
    assert owner.client.tiers().tiers[0].num_entries > 0
    app = checked(opened().button(key="fault_corrupt_dram").click().run())
    assert "Done: flip a bit in DRAM (" in words(app)
    typed = checked(app.text_input(key="tiers_hash").set_value("zz").run())
    assert "No block that moved lately has a hash that begins with zz." in words(typed)
