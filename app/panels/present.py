"""*Present*: three acts on the running engine, with real applies and without knobs.

The picture draws the act's words and buttons; here each act is played on the engine.
"""

from app.panels.act import apply_changes, undo
from app.panels.page import Page
from app.panels.quick import QUICK_DRAM_MIB
from app.panels.work import start_preset

ACTS = ("sharing", "pressure", "relief")


def go_to(page: Page, act: int) -> None:
    """Show act 1, 2 or 3, or leave with 0.

    Going forward plays the act on the engine, going back takes it back; leaving keeps what the
    acts did, each still undoable.
    """
    state = page.state
    before, state.present_act = state.present_act, act
    if act == 0:
        state.present_undo = 0
    elif act < before:
        if state.present_undo and undo(page):
            state.present_undo -= 1
    elif act > before and play_act(page, act):
        state.present_undo += 1


def play_act(page: Page, act: int) -> bool:
    """Do on the engine what the act tells; True if it changed something."""
    if act < 3:
        running = page.snapshot is not None and page.snapshot.num_running > 0
        if act == 1 and running:
            return False  # what runs already shows it
        return start_preset(page, "shared_chat" if act == 1 else "thrash")
    relief: dict[str, object] = {"cache.k_format": "int8", "cache.v_format": "int8"}
    if not page.engine.history.config.tiers.dram_mib:
        relief["tiers.dram_mib"] = QUICK_DRAM_MIB
    return apply_changes(page, relief)
