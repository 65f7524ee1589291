"""`workbench calibrate`: formats by layer for a budget, and what formats know of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.commands.bench import JsonOption
from workbench.commands.out_files import writable, write_file
from workbench.commands.quality import (
    ContextOption,
    ModelOption,
    ScoredOption,
    WeightsOption,
    WindowsOption,
    tell,
)

if TYPE_CHECKING:
    from workbench.quality.plan import QualityPlan

TokensOption = Annotated[int, typer.Option(help="Tokens of the built-in text that are read.")]


def build_app() -> typer.Typer:
    """The `calibrate` group."""
    app = typer.Typer(help="Measure, then choose settings for a budget.", no_args_is_help=True)
    app.command("plan")(plan)
    app.command("state")(state)
    app.command("scales")(scales)
    app.command("ranks")(ranks)
    return app


def plan(
    bits: Annotated[float, typer.Option(help="Stored bits a number, mean over layers.")] = 6.0,
    formats: Annotated[
        str, typer.Option(help="Formats to choose from, with commas; K/V where they differ.")
    ] = "int8,int4,int3",
    context: ContextOption = 512,
    windows: WindowsOption = 2,
    scored: ScoredOption = 256,
    weights: WeightsOption = "bf16",
    model: ModelOption = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=writable, help="Write the setting as JSON."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Price each layer in each format by KL, choose, and check the choice beside uniform formats.

    The plan goes into `cache.layer_plan` (with cache.grouping = layer), also while requests run.
    """
    from workbench.lab.figures import Figure, print_report, report
    from workbench.model.load import load_model
    from workbench.quality.calibrate import calibrate
    from workbench.quality.results import figure_name

    chosen = [_formats(each) for each in formats.split(",") if each.strip()]
    lab = _lab(context, windows, scored, weights)
    found = calibrate(load_model(model, weights), bits, chosen, lab, tell)
    note = f"{found.plan.num_scored_tokens} scored tokens, context {context}"
    figures = [
        Figure(name="plan_kl", value=found.plan.kl_mean, unit="nats/token", note=found.text),
        Figure(name="plan_bits", value=found.bits, unit="bits", note=f"of {bits:g} allowed"),
        Figure(
            name="plan_kl_predicted", value=found.predicted_kl, unit="nats/token",
            provenance="modelled", note="sum of the layers' own prices",
        ),
    ]  # fmt: skip
    figures += [
        Figure(name=f"uniform_kl_{figure_name(each.name)}", value=each.kl_mean, unit="nats/token",
               note=f"{each.bytes.bits_per_element:.2f} bits; {note}")
        for each in found.uniform
    ]  # fmt: skip
    if out is not None:
        _write_setting(out, f"plan {bits:g} bits", found.plan.changes)
    print_report(report(figures), as_json=as_json)


def state(
    tokens: TokensOption = 8192,
    formats: Annotated[
        str, typer.Option(help="Also measure the KL of these formats, with commas.")
    ] = "",
    context: ContextOption = 1024,
    windows: WindowsOption = 2,
    scored: ScoredOption = 512,
    weights: WeightsOption = "bf16",
    model: ModelOption = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=writable, help="Default: the cache folder, found by all."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure channel ranges, levels, principal directions and scales, and write them as a file.

    KVQuant and low rank read it from the cache folder; with cache.calibration = all, fp8 and NVFP4
    take their scales from it too.
    """
    lab = _lab(context, windows, scored, weights)
    names = [name.strip() for name in formats.split(",") if name.strip()]
    _calibrate_and_measure(model, tokens, names, lab, out, as_json=as_json)


def scales(
    tokens: TokensOption = 8192,
    context: ContextOption = 1024,
    windows: WindowsOption = 2,
    scored: ScoredOption = 512,
    weights: WeightsOption = "bf16",
    model: ModelOption = "",
    as_json: JsonOption = False,
) -> None:
    """Calibrate, then print what fp8 loses with its measured scales and with a scale of 1."""
    from workbench.quality.calibrate_formats import SCALED_FORMATS

    lab = _lab(context, windows, scored, weights)
    _calibrate_and_measure(model, tokens, SCALED_FORMATS, lab, None, as_json=as_json)


def ranks(
    rank: Annotated[int, typer.Option(help="Numbers kept of a head's vector, mean over layers.")],
    heads: Annotated[int, typer.Option(help="KV heads that share a basis; rank is of all.")] = 1,
    weights: WeightsOption = "bf16",
    model: ModelOption = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=writable, help="Write the setting as JSON."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ranks by layer for the low-rank formats that keep most for a mean rank.

    From what is stored of the model, or measured now. They go into `cache.rank_plan`.
    """
    from workbench.config import EngineConfig, replace_settings
    from workbench.engine.calibrating import find_calibration
    from workbench.lab.figures import Figure, print_report, report
    from workbench.layer_plan import write_ranks
    from workbench.model.load import load_model
    from workbench.structural.compression.ranks import choose_ranks, kept_share

    config = replace_settings(EngineConfig(), {"cache.k_format": "lowrank"})
    known = find_calibration(config, load_model(model, weights))
    assert known is not None, "the format needs one"
    chosen = choose_ranks(known, rank, heads)
    text = write_ranks(chosen)
    unit = 4 * heads
    even = kept_share(known, dict.fromkeys(chosen, rank // unit * unit), heads)
    figures = [
        Figure(name="kept_share", value=kept_share(known, chosen, heads), unit="share", note=text),
        Figure(name="kept_share_even", value=even, unit="share", note="equal ranks"),
    ]
    if out is not None:
        changes = {"cache.grouping": "layer", "cache.k_format": "lowrank",
                   "cache.v_format": "lowrank", "cache.rank_plan": text,
                   "cache.rank_heads": heads}  # fmt: skip
        _write_setting(out, f"ranks {rank}", changes)
    print_report(report(figures), as_json=as_json)


def _calibrate_and_measure(
    model: str,
    tokens: int,
    formats: Sequence[str],
    lab: "QualityPlan",
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    from workbench.engine.calibrating import calibrate
    from workbench.lab.figures import Figure, print_report, report
    from workbench.model.load import load_model
    from workbench.quality.calibrate_formats import calibrated_settings, measure_calibrated
    from workbench.quality.results import figure_name

    calibrated_settings(formats, Path())  # an unknown format is refused before anything runs
    loaded = load_model(model, lab.weight_format)
    found = calibrate(loaded, tokens, out)
    assert found.path is not None
    size = sum(x.nbytes for x in found.tensors.values())
    figures = [
        Figure(name="calibration_tokens", value=found.num_tokens, unit="tokens",
               note=str(found.path)),
        Figure(name="calibration_bytes", value=size, unit="bytes", note=found.fingerprint[:12]),
    ]  # fmt: skip
    for each in measure_calibrated(loaded, formats, found.path, lab, tell) if formats else []:
        note = f"{each.bytes.bits_per_element:.2f} bits; {each.num_scored_tokens} scored tokens"
        name, note = f"kl_{figure_name(each.name)}", f"{note}, context {lab.context}"
        figures.append(Figure(name=name, value=each.kl_mean, unit="nats/token", note=note))
    print_report(report(figures), as_json=as_json)


def _lab(context: int, windows: int, scored: int, weights: str) -> "QualityPlan":
    from workbench.quality.plan import QualityPlan

    return QualityPlan(context=context, scored=scored, num_windows=windows, weight_format=weights)


def _write_setting(path: Path, name: str, changes: dict[str, Any]) -> None:
    """A file of settings with one in it, as the quality lab reads them."""
    import msgspec

    write_file(path, msgspec.json.encode([{"name": name, **changes}]))


def _formats(text: str) -> tuple[str, str]:
    k_format, _, v_format = text.strip().partition("/")
    return k_format, v_format or k_format
