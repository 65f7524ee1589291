"""Loads the model in a thread, so that the process answers and shows progress meanwhile."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.clock import Clock
from workbench.config import EngineConfig
from workbench.engine.process.endpoints import LaunchOptions
from workbench.engine.process.protocol import detail
from workbench.errors import ModelError, WorkbenchError
from workbench.model.fetch import cached_path, fetch

if TYPE_CHECKING:
    from workbench.model.load import LoadedModel

Report = Callable[[str, float], None]
_FETCH_SHARE = 0.6  # of the progress bar, where the model has to be downloaded
_IMPORT_SHARE = 0.2


class Loader:
    """One attempt to load the model of a config; `progress` and `state_detail` tell how far it is.

    After `done`, either `model` or `error` (one sentence) is set.
    """

    def __init__(self, config: EngineConfig, options: LaunchOptions, clock: Clock) -> None:
        self.config = config
        self.model: LoadedModel | None = None
        self.error: WorkbenchError | None = None
        self.progress = 0.0
        self.state_detail = detail("start")
        self._options = options
        self._clock = clock
        self._started_s = clock.now_s()
        self._downloads = False  # a cached model is all there at the first report
        self._thread = threading.Thread(target=self._run, name="model loader", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the attempt has ended."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.model = self._load()
        except WorkbenchError as error:
            self.error = error
        except Exception as error:  # a thread's exception would be lost
            kind = type(error).__name__
            self.error = WorkbenchError(
                f"the model could not be loaded ({kind}: {error}): check model.path and the log"
            )

    def _load(self) -> "LoadedModel":
        if self._options.random_layers:
            from workbench.model.random_launch import random_model

            return random_model(self._options.random_layers, self._options.random_seed)
        start, path = 0.0, self.config.model.path
        if path and not Path(path).expanduser().exists():  # known before torch is imported
            raise ModelError(
                f"model path {path} does not exist: give a .gguf file or a model folder"
            )
        if not path and cached_path() is None:
            fetch(self._fetched)
            start = self.progress
        self.progress, self.state_detail = start + _IMPORT_SHARE * (1 - start), detail("load")
        # torch takes seconds to import: only now, after the first frames are out.
        from workbench.model.load import load_model

        start = self.progress
        settings = self.config.model

        def converted(done: int, total: int) -> None:
            self.progress = start + (1 - start) * done / max(1, total)

        return load_model(settings.path, settings.weight_format, progress=converted)

    def _fetched(self, done: int, total: int) -> None:
        elapsed_s = self._clock.now_s() - self._started_s
        remaining_s = elapsed_s * (total - done) / done if done else 0.0
        self._downloads = self._downloads or done < total
        self.progress = _FETCH_SHARE * done / total if self._downloads else 0.0
        self.state_detail = detail(
            "fetch", num_bytes=done, total_bytes=total, remaining_s=round(remaining_s)
        )
