"""The step's parts in words: a GPU's fused ones say so and take no place in the bar."""

import msgspec
import pytest
from playwright.sync_api import Browser

from workbench.snapshot import decode_frame, encode_frame

from .component_browser import opened
from .component_frames import Plan, frame_of

pytestmark = pytest.mark.browser


def gpu_frame(tick: int) -> bytes:
    snapshot, cells, tables = decode_frame(frame_of(Plan(tick=tick)))
    assert snapshot.last_step is not None
    step = msgspec.structs.replace(snapshot.last_step, gather_ms=None, dequant_ms=None)
    changed = msgspec.structs.replace(snapshot, device="cuda", stands_in=False, last_step=step)
    return encode_frame(changed, cells, tables)


@pytest.mark.parametrize("width", [1280, 390])
def test_on_a_gpu_gather_and_dequant_are_told_as_fused(browser: Browser, width: int) -> None:
    with opened(browser, frames=gpu_frame, width=width) as view:
        view.settle()
        labels = view.page.locator("#stage .step-label").locator("visible=true")
        told = labels.all_inner_texts()
        assert told == ["attention 9.30", "linears 24.1", "gather, dequant: fused",
                        "schedule 0.90", "other 3.70"]  # fmt: skip
        assert "inside the attention kernel" in str(labels.nth(2).get_attribute("title"))
        spoken = str(view.page.locator("#stage .step-bar").get_attribute("aria-label"))
        assert "gather and dequant n/a: on a GPU" in spoken and "dequant 0" not in spoken
        last = labels.last.bounding_box()
        box = view.page.locator("#stage .step-labels").bounding_box()
        assert last is not None and box is not None
        assert last["x"] + last["width"] <= box["x"] + box["width"]
        assert last["y"] + last["height"] <= box["y"] + box["height"] + 0.5
