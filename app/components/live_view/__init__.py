"""The live view: three canvas parts of one ES module, fed by the `/live` socket.

Python gives each part its data and receives one trigger, `command`; frames never pass through a
rerun. The same module serves the notebook (`widget.py`) and the offline replay file. Streamlit is
imported only when `live_view` or `read_commands` is, so that a notebook does without it.
"""

from typing import TYPE_CHECKING, Any

from .bundle import default_text, module_source

if TYPE_CHECKING:
    from .component import PARTS, live_view, read_commands

__all__ = ["PARTS", "default_text", "live_view", "module_source", "read_commands"]


def __getattr__(name: str) -> Any:
    """The names of `component.py`, loaded at first use."""
    if name in ("PARTS", "live_view", "read_commands"):
        from . import component

        return getattr(component, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
