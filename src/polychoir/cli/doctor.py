"""`polychoir doctor`: what is here, and what each model will do on it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from polychoir.cli.catalogue import stay_offline
from polychoir.cli.flags import field_flags, given, with_flags
from polychoir.cli.serve import ConfigFlag, read_settings
from polychoir.config import Settings

SETTINGS = (
    "model",
    "device",
    "dtype",
    "runner_mode",
    "gpu_memory_utilization",
    "batch",
    "max_num_seqs",
    "max_resident_seqs",
    "max_num_batched_tokens",
    "max_concurrent_plans",
    "recalibrate",
    "data_dir",
)
"""What the answers depend on; the others come from the environment and the file."""
OTHER_MEANINGS = {"recalibrate": "load each model and measure its steps now"}


@with_flags(*field_flags(Settings, only=SETTINGS, instead=OTHER_MEANINGS))
def doctor(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Models to look at, as for serve.", show_default=False),
    ] = None,
    config: ConfigFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    **flags: Any,
) -> None:
    """Show versions, devices, and for each model what its steps cost and the sizes chosen, with the reasons.

    Nothing is loaded or measured unless --recalibrate asks for it. Exit code 1 if a model cannot be served.
    """
    flags["model"] = [*(models or ()), *(flags["model"] or ())]
    settings = read_settings(given(flags), config)
    stay_offline()
    from polychoir.doctor.examine import examine
    from polychoir.doctor.section import as_record, as_text

    sections = examine(settings)
    typer.echo(json.dumps(as_record(sections)) if as_json else as_text(sections))
    if any(section.broken for section in sections):
        raise typer.Exit(1)
