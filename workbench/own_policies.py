"""Policies of the user's own: Python files in one folder, read as text, run once confirmed.

    folder/mine.py ─► read: its text is shown ─► confirmed ─► that same text runs in the engine:
                                                              `register(registry)`

Only text from this folder, or from a file named on the command line, is ever run.
"""

import os
import stat
import sys
from pathlib import Path
from types import ModuleType

from platformdirs import user_config_path

from workbench.errors import SettingError
from workbench.registry import Name, Registry

FOLDER_VARIABLE = "KV_WORKBENCH_POLICIES"
MOST_BYTES = 256 * 1024
MOST_FILES = 50
MODULE_PREFIX = "kv_workbench_own_"


def policies_folder() -> Path:
    """Where policies of one's own lie; the variable KV_WORKBENCH_POLICIES moves it."""
    moved = os.environ.get(FOLDER_VARIABLE)
    return Path(moved).expanduser() if moved else user_config_path("kv-workbench") / "policies"


def policy_files() -> list[Path]:
    """The Python files of the folder by name, at most `MOST_FILES`; none where it is not there."""
    try:
        found = [path for path in policies_folder().glob("*.py") if path.is_file()]
    except OSError:  # not readable: the same as empty to whoever looks for a file
        return []
    return sorted(path for path in found if not path.name.startswith("."))[:MOST_FILES]


def read_policy(path: Path) -> str:
    """A file's text; SettingError where it cannot be read, or others than its owner may write."""
    try:
        told = path.stat()
        text = path.read_bytes()
    except OSError as error:
        raise SettingError(
            f"policy file {path} cannot be read ({error.strerror}): name a file"
        ) from error
    if told.st_mode & stat.S_IWOTH:
        raise SettingError(
            f"policy file {path} can be written by anybody: chmod o-w it, and look at it again"
        )
    if len(text) > MOST_BYTES:
        raise SettingError(
            f"policy file {path.name} has {len(text):,} bytes: keep it below {MOST_BYTES:,}"
        )
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise SettingError(f"policy file {path.name} is no UTF-8 text: save it as UTF-8") from error


def run_policy(name: str, text: str, registry: Registry, before: list[Name]) -> list[Name]:
    """Run a file's text and its `register(registry)`; returns the names that it has registered.

    `before`: what an earlier run of the file registered, which this one replaces. The registry is
    changed only where all went well; SettingError, in one sentence, where it did not.
    """
    trial = registry.without(before)
    module = ModuleType(MODULE_PREFIX + name)
    module.__file__ = f"{name}.py"
    earlier = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look for their module there
    try:
        _run(module, text, trial)
        added = trial.added_to(registry.without(before))
        if not added:
            raise SettingError(
                f"policy file {name}.py registers nothing: call registry.register in its register"
            )
    except SettingError:
        del sys.modules[module.__name__]
        if earlier is not None:
            sys.modules[module.__name__] = earlier
        raise
    registry.adopt(trial)
    return added


def _run(module: ModuleType, text: str, registry: Registry) -> None:
    """Run a file's text as its module, then its `register`; what it raises is a SettingError."""
    file = str(module.__file__)
    try:
        exec(compile(text, file, "exec"), vars(module))
        register = getattr(module, "register", None)
        if not callable(register):
            raise SettingError(
                f"policy file {file} has no function register: give it one, "
                'register(registry), that calls registry.register("placement", "mine", Mine)'
            )
        register(registry)
    except SettingError:
        raise
    except (Exception, SystemExit) as error:
        line = _line_of(error, file)
        raise SettingError(
            f"policy file {file}{line} ended with {type(error).__name__}: {error}: correct it, "
            "and load it again"
        ) from error


def _line_of(error: BaseException, file: str) -> str:
    """The line of the file where it ended, as far as that is known."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f", line {error.lineno},"
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}," if line else ""
