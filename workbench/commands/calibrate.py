"""`workbench calibrate plan`: formats by layer, the best quality for a budget of bits."""

from pathlib import Path
from typing import Annotated

import typer

from workbench.commands.bench import JsonOption


def build_app() -> typer.Typer:
    """The `calibrate` group."""
    app = typer.Typer(help="Measure, then choose settings for a budget.", no_args_is_help=True)
    app.command("plan")(plan)
    return app


def plan(
    bits: Annotated[float, typer.Option(help="Stored bits a number, mean over layers.")] = 6.0,
    formats: Annotated[
        str, typer.Option(help="Formats to choose from, with commas; K/V where they differ.")
    ] = "int8,int4,int3",
    context: Annotated[int, typer.Option(help="Tokens read before any is scored.")] = 512,
    windows: Annotated[int, typer.Option(help="Windows of text.")] = 2,
    scored: Annotated[int, typer.Option(help="Tokens scored in each window.")] = 256,
    weights: Annotated[str, typer.Option(help="Weight format.")] = "bf16",
    model: Annotated[str, typer.Option(help="GGUF file or Hugging Face folder.")] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the setting as JSON.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Price each layer in each format by KL, choose, and check the choice beside uniform formats.

    The plan goes into `cache.layer_plan` (with cache.grouping = layer), also while requests run.
    """
    import msgspec

    from workbench.commands.quality import tell
    from workbench.lab.figures import Figure, print_report, report
    from workbench.model.load import load_model
    from workbench.quality.calibrate import calibrate
    from workbench.quality.plan import QualityPlan
    from workbench.quality.report import figure_name

    chosen = [_formats(each) for each in formats.split(",") if each.strip()]
    lab = QualityPlan(context=context, scored=scored, num_windows=windows, weight_format=weights)
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
        out.write_bytes(
            msgspec.json.encode([{"name": f"plan {bits:g} bits", **found.plan.changes}])
        )
    print_report(report(figures), as_json=as_json)


def _formats(text: str) -> tuple[str, str]:
    k_format, _, v_format = text.strip().partition("/")
    return k_format, v_format or k_format
