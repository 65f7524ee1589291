"""`workbench store serve`: a store that several engines on this machine share (G3.5)."""

from typing import Annotated

import typer

from workbench.errors import TierError

DEFAULT_MIB = 512.0


def build_app() -> typer.Typer:
    """The `store` group."""
    app = typer.Typer(help="Serve KV pages to several engines.", no_args_is_help=True)
    app.callback()(lambda: None)  # one command alone would lose its name
    app.command("serve")(serve)
    return app


def serve(
    address: Annotated[
        str, typer.Option(help="ipc:///path (its folder is private), or tcp:// on this machine.")
    ] = "",
    mib: Annotated[float, typer.Option(min=1.0, help="Most memory that pages take.")] = DEFAULT_MIB,
    ttl_s: Annotated[float, typer.Option(help="Seconds that an unused page stays.")] = 600.0,
    transport: Annotated[
        str, typer.Option(help="direct, or nixl: engines may move pages through NIXL's UCX too.")
    ] = "direct",
) -> None:
    """Keep pages in memory for all engines that name this address; Ctrl-C ends it and them.

    Nothing is written to disk: an engine that misses a page computes it again.
    """
    from workbench.settings.tiers import SHARED_TRANSPORTS
    from workbench.spatial.hierarchy.medium import MediumFault
    from workbench.spatial.hierarchy.shared_store_index import StoreLimits
    from workbench.spatial.hierarchy.shared_store_server import run

    if transport not in SHARED_TRANSPORTS:
        raise TierError(f"--transport {transport}: choose one of {', '.join(SHARED_TRANSPORTS)}")
    address = address or default_address()
    try:
        limits = StoreLimits(ttl_s=ttl_s)
        also = ", through NIXL too" if transport == "nixl" else ""
        line = f"serving {mib:g} MiB at {address}{also} (Ctrl-C ends it)"
        run(address, mib, limits, transport=transport, on_ready=lambda: typer.echo(line))
    except (MediumFault, ValueError) as error:
        raise TierError(str(error)) from None


def default_address() -> str:
    """A socket in this user's own folder for such files."""
    import warnings

    import platformdirs

    with warnings.catch_warnings():  # without XDG_RUNTIME_DIR it takes another folder, which does
        warnings.simplefilter("ignore")
        return f"ipc://{platformdirs.user_runtime_path('kv-workbench') / 'store'}"
