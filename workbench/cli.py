"""The `workbench` command; each subcommand is one small file in `workbench/commands/`."""

import sys

import typer

from workbench.commands import bench, calibrate, check, model, quality, run, settings, store
from workbench.errors import WorkbenchError

USER_ERROR = 2


def build_app() -> typer.Typer:
    """The command tree; nothing heavy is imported before a command runs."""
    app = typer.Typer(
        name="workbench",
        help="KV-cache co-design workbench: serve, measure and check without the dashboard.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.add_typer(model.build_app(), name="model")
    app.add_typer(bench.build_app(), name="bench")
    app.add_typer(calibrate.build_app(), name="calibrate")
    app.add_typer(store.build_app(), name="store")
    app.command("settings")(settings.list_settings)
    app.command("run")(run.run)
    app.command("check")(check.check)
    app.command("quality")(quality.quality)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 a check failed, 2 the user's input was refused.

    A WorkbenchError becomes its one sentence on stderr, without a traceback.
    """
    try:
        build_app()(args=arguments)
    except WorkbenchError as error:
        print(error, file=sys.stderr)
        sys.exit(USER_ERROR)
    except BrokenPipeError:
        # Someone piped the output into `head`; Python would complain once more at exit.
        sys.stderr.close()
        sys.exit(0)
