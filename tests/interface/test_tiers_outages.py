"""Unplugging and filling a tier by the buttons of the page Tiers, on a real engine."""

from streamlit.testing.v1 import AppTest

from app import engine_owner
from tests.interface.dashboard_page import checked
from tests.interface.test_tiers_controls import opened, words


def press(app: AppTest, button: str) -> AppTest:
    return checked(app.button(key=button).click().run())


def test_a_disk_is_unplugged_filled_and_put_right_by_button(
    owner: engine_owner.EngineOwner,
) -> None:
    client = owner.client
    app = opened()
    assert not [button for button in app.button if str(button.key).startswith("outage_")]
    client.apply({"tiers.disk_mib": 16.0, "tiers.dram_mib": 4.0})
    app = opened()
    assert [button.label for button in app.button if str(button.key).startswith("outage_")] == [
        "unplug", "full",
    ]  # fmt: skip
    app = press(app, "outage_G3_unplugged")
    assert "G3 is unplugged: ask for a prompt whose blocks lie there" in words(app)
    assert "G3 is unplugged. Reads and writes that failed since: 0." in words(app)
    (disk,) = (tier for tier in client.tiers().tiers if tier.name == "G3")
    assert disk.outage is not None and disk.outage.kind == "unplugged"
    assert not [button for button in app.button if button.key == "outage_G3_full"]
    app = press(opened(), "outage_G3_none")
    assert "G3 works again, and is asked again at once." in words(app)
    app = press(opened(), "outage_G3_full")
    assert "G3 is full: fill the cache" in words(app)
    button = opened().button(key="outage_G3_none")
    assert button.label == "give it room again"
    press(opened(), "outage_G3_none")
    assert client.tiers().tiers[1].outage is not None and not client.tiers().tiers[1].outage.kind


def test_a_tier_at_a_given_address_has_no_plug(
    owner: engine_owner.EngineOwner, tmp_path: object
) -> None:
    owner.client.apply({"tiers.disk_mib": 0.0, "tiers.object_url": str(tmp_path)})
    app = opened()
    assert [button.key for button in app.button if str(button.key).startswith("outage_")] == [
        "outage_G4_full",
    ]  # fmt: skip
    assert "G4 cannot be unplugged from here" in words(app)
