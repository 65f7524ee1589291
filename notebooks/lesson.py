"""What the notebooks share: the live grid, and questions that are answered by measuring.

`KVW_FAST=1` shrinks the experiments; `KVW_STILL=1` shows pictures instead of widgets, which is how
the committed files are made (`python notebooks/refresh.py`).
"""

import os
import sys
from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from IPython.display import HTML, Markdown, display

from workbench.engine.engine import Engine
from workbench.lab.notebook_grid import Grid

ROOT = Path(__file__).resolve().parent.parent
FAST = os.environ.get("KVW_FAST") == "1"
STILL = os.environ.get("KVW_STILL") == "1"


def live_grid(engine: Engine, note: str = "") -> Grid:
    """The dashboard's grid over `engine`, shown under this cell; a still picture where asked."""
    if STILL:
        grid = Grid(engine, note=note)
    else:
        if str(ROOT) not in sys.path:  # the notebook's folder is not the repository's root
            sys.path.append(str(ROOT))
        from app.components.live_view.widget import LiveWidget

        grid = Grid(engine, LiveWidget(), note=note)
    grid.show()
    return grid


class Prediction:
    """A question with choices; `reveal` says which one the measurement chose.

    Choice i holds for values from `bounds[i - 1]` up to `bounds[i]`.
    """

    def __init__(self, choices: Sequence[str], bounds: Sequence[float]) -> None:
        if len(bounds) != len(choices) - 1:
            raise ValueError(
                f"{len(choices)} choices need {len(choices) - 1} bounds, not {len(bounds)}"
            )
        self.choices = list(choices)
        self.bounds = list(bounds)
        self._radio: Any = None

    def ask(self) -> None:
        """Show the choices."""
        if STILL:
            items = "".join(f"<li>{escape(choice)}</li>" for choice in self.choices)
            display(HTML(f"<ul style='list-style:circle'>{items}</ul>"))
            return
        from ipywidgets import Layout, RadioButtons

        self._radio = RadioButtons(
            options=self.choices,
            value=None,
            layout=Layout(width="auto"),
        )
        display(self._radio)

    def reveal(self, value: float, measured: str) -> None:
        """Compare the choice with what was measured, in words."""
        right = self.choices[bisect_right(self.bounds, value)]
        guess = self._radio.value if self._radio is not None else None
        said = ""
        if guess is not None:
            said = "You had it right. " if guess == right else f"You said “{guess}”. "
        display(Markdown(f"**{said}Measured: {measured}**, so “{right}”."))
