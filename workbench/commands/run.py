"""`workbench run`: serve a workload without the dashboard, then print its figures."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.bench import JsonOption
from workbench.commands.out_files import writable
from workbench.errors import RequestError, SettingError
from workbench.own_policies import read_policy

if TYPE_CHECKING:
    from workbench.config import EngineConfig
    from workbench.engine.process.protocol import Workload
    from workbench.events import KVEventBatch
    from workbench.lab.headless import Progress


def run(
    workload: Annotated[str, typer.Argument(help="A JSONL file of prompts, or a preset's name.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a setting.")
    ] = None,
    show_text: Annotated[bool, typer.Option("--text", help="Print the answers too.")] = False,
    policies: Annotated[
        list[Path] | None,
        typer.Option("--policy", metavar="FILE", help="Run a policy file of your own first."),
    ] = None,
    kv_events: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Publish KV events as vLLM does, on this machine."),
    ] = "",
    kv_events_replay: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where missed KV events are asked for again.")
    ] = "",
    kv_events_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the batches of KV events here.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose file it is: nobody else hits its cache.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Serve every request of a workload with a progress bar, then print the figures.

    A line of the file is an object with one of prompt, messages, token_ids, and optionally
    max_tokens, temperature, top_k, top_p, seed, sample_index, ignore_eos, priority, label,
    and cache_control: up to 4 breakpoints such as {"at": 512, "ttl": "1h"} (prompt caching).
    """
    config = config_from(changes or [])
    found = find_workload(workload, tenant)
    own = {path.stem: read_policy(path) for path in policies or []}

    from workbench.lab.figures import print_report, report
    from workbench.lab.headless import serve

    with (
        kv_listener(kv_events, kv_events_replay, kv_events_file) as listener,
        ProgressBar(len(found.arrivals)) as progress,
    ):
        result = serve(found, config, progress, own, listener)
    if show_text:
        for answer in result.answers:
            print(f"[{answer.request_id}] {answer.text or answer.error}", file=sys.stderr)
    print_report(report(result.figures), as_json=as_json)


@contextlib.contextmanager
def kv_listener(
    address: str, replay: str, file: Path | None
) -> "Iterator[Callable[[KVEventBatch], None] | None]":
    """What hands batches to a socket, a file or both; None where neither is asked for.

    SettingError or RequestError, in one sentence, before anything is loaded.
    """
    from workbench.engine.process.kv_publisher import KvFile, KvPublisher

    if replay and not address:
        raise SettingError("--kv-events-replay needs --kv-events: say where they are published")
    with contextlib.ExitStack() as opened:
        targets: list[KvFile | KvPublisher] = []
        if file is not None:
            targets.append(KvFile(writable(file) or file))
            opened.callback(targets[-1].close)
        if address:
            targets.append(KvPublisher(address, replay))
            opened.callback(targets[-1].close)

        def tell(batch: "KVEventBatch") -> None:
            for target in targets:
                target(batch)

        yield tell if targets else None


def config_from(changes: list[str]) -> "EngineConfig":
    """The default settings with `path=value` changes; SettingError in one sentence."""
    from workbench.config import EngineConfig, replace_settings

    pairs = {}
    for change in changes:
        path, separator, value = change.partition("=")
        if not separator:
            raise SettingError(f"--set {change}: give path=value, for example cache.k_format=int8")
        pairs[path.strip()] = value.strip()
    return replace_settings(EngineConfig(), pairs)


def find_workload(name: str, tenant: str = "") -> "Workload":
    """A file of prompts, else a preset by its name; a WorkbenchError otherwise."""
    path = Path(name)
    if path.suffix or path.exists():
        return read_file(path, tenant)
    from workbench.lab.workloads import make_workload

    preset = make_workload(name)
    return make_workload(name, forever=False) if preset.repeat else preset


def read_file(path: Path, tenant: str = "") -> "Workload":
    """Every line of the file as a request due at once; a single bad line refuses the file."""
    from workbench.engine.process.protocol import Arrival, Workload
    from workbench.lab.prompts_file import read_prompts

    try:
        specs, problems = read_prompts(path.read_bytes(), tenant)
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read ({error.strerror}): name a JSONL file of prompts or a preset"
        ) from error
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RequestError(f"{path.name}, {problems[0]}{more}")
    if not specs:
        raise RequestError(f'{path.name} is empty: give a line such as {{"prompt": "Hello"}}')
    return Workload(name=path.name, arrivals=[Arrival(0.0, spec) for _, spec in specs])


class ProgressBar:
    """A bar on stderr, or nothing where stderr is no terminal."""

    def __init__(self, num_requests: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._console = Console(stderr=True)
        self._bar = Progress(
            *columns, console=self._console, disable=not self._console.is_terminal, transient=True
        )
        self._task = self._bar.add_task("loading the model", total=num_requests)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self._update

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def _update(self, text: str, num_finished: int) -> None:
        self._bar.update(self._task, description=text, completed=num_finished)
