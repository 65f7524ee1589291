"""A text of the user's on the page Quality, and what a tier loses, without a browser."""

import pytest
from streamlit.testing.v1 import AppTest

from app import engine_owner
from app.quality.settings import CURRENT
from tests.interface.test_quality_controls import checked, ended, opened, press, words

BOOK = ("A page holds the keys and values of a few neighbouring tokens. " * 200).encode()


def give(app: AppTest, name: str, data: bytes) -> AppTest:
    app.file_uploader(key="quality_text").upload(name, data)
    return checked(app.run())


def test_a_text_is_measured_on(owner: engine_owner.EngineOwner) -> None:
    app = give(opened(), "bad.txt", b"\xff\xfe")
    assert "Bad.txt is no UTF-8 text (byte 0): save it as UTF-8" in words(app)
    app = press(app, "quality_measure")
    assert not owner.quality.status.running and owner.quality.result(CURRENT) is None
    app = give(app, "book.txt", BOOK)
    assert "12,600 characters. Measurements read it from now on." in words(app)
    app = ended(press(app, "quality_measure"), owner)
    result = owner.quality.result(CURRENT)
    assert result is not None and result.text.startswith("book.txt (")
    assert f"Text: {result.text}." in words(app)
    app = ended(press(app, "quality_inside"), owner)
    again = owner.quality.result(CURRENT)
    assert again is not None and again.probes is not None and again.text == result.text


@pytest.mark.parametrize("changes, told", [
    ({"tiers.disk_mib": 64.0, "tiers.disk_codec": "cachegen"}, "`workbench bench codecs`"),
    ({"tiers.dram_mib": 64.0, "tiers.retrieval": "late"}, "`workbench bench tiers`"),
])  # fmt: skip
def test_the_card_names_what_it_does_not_measure(
    owner: engine_owner.EngineOwner, changes: dict[str, object], told: str
) -> None:
    from app.panels.engine import get_engine

    assert "Not in these figures" not in words(opened())
    history = get_engine().history
    history.apply(changes, history.version)
    shown = words(opened())
    assert "Not in these figures" in shown and f"{told} tells what that costs." in shown
    history.undo()
    assert "Not in these figures" not in words(opened())
