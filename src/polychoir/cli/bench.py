"""`polychoir bench`: the engine alone, or a server over HTTP, under a load that can be repeated."""

from __future__ import annotations

import asyncio
import json
import platform
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from polychoir import __version__
from polychoir.bench.plot import PICTURES, plot
from polychoir.bench.report import summarise, table
from polychoir.bench.workloads import Arrivals, find_workload
from polychoir.errors import SettingError

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure the engine, or a server, under load."
)

_Workload = Annotated[str, typer.Option("--workload", "-w", help="A named one, or a JSON file.")]
_Count = Annotated[int, typer.Option("--requests", "-n", min=1, help="How many.")]
_Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="A second; unset: as fast as can be.")]
_Poisson = Annotated[bool, typer.Option("--poisson", help="Random gaps instead of even ones.")]
_Concurrency = Annotated[int | None, typer.Option("--concurrency", "-c", min=1, help="Most in flight.")]
_Seed = Annotated[int, typer.Option("--seed", help="Of sizes and arrivals.")]
_Json = Annotated[Path | None, typer.Option("--json", help="Write the line of JSON here as well.")]
_Plot = Annotated[
    Path | None, typer.Option("--plot", help="Write the latencies as a picture: svg, png or pdf.")
]
_Note = Annotated[str, typer.Option("--note", help="Hardware, for the record.")]


@app.command()
def serve(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="http://host:port of any OpenAI-compatible server.")],
    workload: _Workload = "auto5",
    requests: _Count = 100,
    rate: _Rate = None,
    poisson: _Poisson = False,
    concurrency: _Concurrency = None,
    model: Annotated[str, typer.Option(help="The request's model.")] = "tts-1",
    voice: Annotated[str, typer.Option(help="The request's voice.")] = "auto",
    plain: Annotated[bool, typer.Option("--plain", help="Send only OpenAI's own fields.")] = False,
    api_key: Annotated[str | None, typer.Option(help="Bearer key.")] = None,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Of this client.")] = 512,
    plot_file: _Plot = None,
    seed: _Seed = 1,
    json_file: _Json = None,
    note: _Note = "",
) -> None:
    """Send a load to a server; a table, then one line of JSON."""
    from polychoir.bench.serve import Target, run_serve

    _check_files(json_file, plot_file)
    target = Target(url, model, voice, plain, api_key, max_in_flight)
    items = find_workload(workload).items(requests, seed)
    arrivals = _arrivals(rate, poisson, concurrency)
    outcomes, wall, messages = asyncio.run(run_serve(target, items, arrivals, seed=seed))
    figures = {**summarise(outcomes, wall), "first_messages": messages}
    for kind, message in messages.items():
        typer.echo(f"first {kind}: {message}", err=True)
    typer.echo(table(figures))
    if plot_file is not None:
        plot(outcomes, plot_file, f"{workload} at {url}")
    _print(figures, json_file, context)


@app.command()
def engine(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A path, a hub id or an entry-point name.")],
    workload: _Workload = "auto5",
    requests: _Count = 100,
    rate: _Rate = None,
    poisson: _Poisson = False,
    concurrency: _Concurrency = None,
    load: Annotated[
        float | None, typer.Option(min=0.01, help="Share of the capacity, measured first.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=128, help="num_step of every request.")] = None,
    guidance: Annotated[float | None, typer.Option(min=0, max=10, help="guidance_scale of each.")] = None,
    batch: Annotated[bool, typer.Option("--batch/--no-batch", help="Batch, or one by one.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Number format.")] = "auto",
    runner_mode: Annotated[str, typer.Option(help="auto, eager, graph, triton or hybrid.")] = "auto",
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Most rows in a step.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Of a step.")] = None,
    sweep: Annotated[str | None, typer.Option(help="wall(n) for each of these n, e.g. 1,2,4,8.")] = None,
    plot_file: _Plot = None,
    seed: _Seed = 1,
    json_file: _Json = None,
    note: _Note = "",
) -> None:
    """Drive a model's engine in this process, without HTTP; a table, then one line of JSON."""
    from polychoir.bench import engine as bench
    from polychoir.types import ModelOptions

    _check_files(json_file, plot_file)
    if sweep is not None and plot_file is not None:
        raise SettingError("plot shows the latencies of one run, and a sweep is many", param="plot")
    if load is not None and (rate, concurrency) != (None, None):
        raise SettingError("load sets the rate: leave rate and concurrency out", param="load")
    arrivals = _arrivals(rate, poisson and load is None, concurrency)
    defaults = {"num_step": steps, "guidance_scale": guidance}
    options = ModelOptions(
        device=device, dtype=dtype, max_num_seqs=max_num_seqs,
        defaults={name: value for name, value in defaults.items() if value is not None},
        extra={"runner_mode": runner_mode, "max_num_batched_tokens": max_num_batched_tokens},
    )  # fmt: skip
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    subject, chosen = bench.Bench(model, options, batch, limits), find_workload(workload)
    if sweep is not None:
        found = bench.sweep(subject, chosen, _sizes(sweep), seed=seed)
        for one in found:
            ratio = one["wall_s"] / found[0]["wall_s"]
            typer.echo(f"wall({one['n']}) = {one['wall_s']:.3f} s, {ratio:.2f} of the first")
        _print({"sweep": found, "completed": sum(one["completed"] for one in found)}, json_file, context)
        return
    figures, outcomes = bench.run(subject, chosen, arrivals, count=requests, seed=seed, load=load)
    typer.echo(table(figures))
    if plot_file is not None:
        plot(outcomes, plot_file, f"{workload}, the engine of {model}")
    _print(figures, json_file, context)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingError(f"sweep {text!r} is no list of numbers", param="sweep") from error
    if any(size < 1 for size in sizes):
        raise SettingError("sweep sizes are at least 1", param="sweep")
    return sizes


def _arrivals(rate: float | None, poisson: bool, concurrency: int | None) -> Arrivals:
    if poisson and rate is None:
        raise SettingError("poisson needs a rate", param="poisson")
    return Arrivals(rate, poisson, concurrency)


def _check_files(json_file: Path | None, picture: Path | None) -> None:
    """Before the load, not after it."""
    for name, file in (("json", json_file), ("plot", picture)):
        if file is not None and not file.parent.is_dir():
            raise SettingError(f"--{name}: there is no folder {file.parent}", param=name)
        if file is not None and file.is_dir():
            raise SettingError(f"--{name}: {file} is a folder", param=name)
    if picture is not None and picture.suffix not in PICTURES:
        raise SettingError(f"--plot {picture} is none of {', '.join(PICTURES)}", param="plot")
    if picture is not None and find_spec("matplotlib") is None:
        raise SettingError("--plot needs matplotlib: pip install 'polychoir[bench]'", param="plot")


def _print(figures: dict[str, Any], json_file: Path | None, context: typer.Context) -> None:
    """One line of JSON, last, with all that a run needs to be repeated; status 1 if nothing succeeded."""
    told = {
        name: value
        for name, value in context.params.items()
        if name not in {"api_key", "json_file", "plot_file"}
    }
    about = {
        "polychoir": __version__,
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "packages": {name: version(name) for name in ("torch", "triton", "onnxruntime") if find_spec(name)},
        "command": context.info_name,
        "parameters": told,
    }
    line = json.dumps({**about, **figures}, default=str)
    if json_file is not None:
        json_file.write_text(line + "\n", encoding="utf-8")
    typer.echo(line)
    if not figures["completed"]:
        raise typer.Exit(1)
