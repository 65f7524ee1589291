"""The live view in a notebook: the same module, fed by an engine in the same process."""

from typing import Any

import anywidget
import traitlets

from .bundle import default_text, module_source


class LiveWidget(anywidget.AnyWidget):
    """Shows the parts named in `parts`; each assignment of `frame` draws one frame.

    `frame`: bytes of `Engine.frame(...)`. `command`: what the user last asked for, as in the app
    ({"name", "nonce", ...}); observe it with `widget.observe(fn, "command")`.
    """

    _esm = module_source("widget")
    frame = traitlets.Bytes(b"").tag(sync=True)
    data = traitlets.Dict().tag(sync=True)
    parts = traitlets.List(traitlets.Unicode(), ["stage"]).tag(sync=True)
    command = traitlets.Dict().tag(sync=True)

    def __init__(
        self, frame: bytes = b"", parts: tuple[str, ...] = ("stage",), **data: Any
    ) -> None:
        super().__init__(
            frame=frame, parts=list(parts), data={"text": default_text(), "lang": "en", **data}
        )
