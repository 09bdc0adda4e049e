"""`mmdiff logreg`: logistic regression on the seeds."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePath, this_command


class Device(StrEnum):
    """Where the regression is trained."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


def command(
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate at the start; it falls to 0. Default: 1.", show_default=False),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Seeds in a batch, drawn class by class. Default: 256.", show_default=False)
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="L2 on the weights. Default: 0.0003.", show_default=False)] = None,
    iterations: Annotated[int, typer.Option(help="Batches to train on.")] = 1000,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Choose --lr, --batch-size and --weight-decay by what does best on seeds that are held out."
        ),
    ] = False,
    device: Annotated[Device, typer.Option(help="`auto`: a GPU if torch finds one.")] = Device.auto,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn at random.")] = 0,
    name: Annotated[str, typer.Option(help="The names of what is made: `models/NAME` and `scores/NAME`.")] = "logreg",
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Train a logistic regression on the seeds, and classify the test points with it.

    It learns from descriptors as they were before the PCA, where they were kept. `mmdiff export models/logreg FILE.safetensors`
    takes the model elsewhere. Repeated, it makes only what has changed.
    """
    from mmdiff.logreg.stage import Request, logreg

    request = Request(
        lr=lr,
        batch_size=batch_size,
        weight_decay=weight_decay,
        iterations=iterations,
        tune=tune,
        device=device.value,
        seed=seed,
        name=name,
        command=this_command(),
    )
    summary = logreg(store, request, show.progress).summary()
    if json:
        show.as_json(summary)
        return
    for text in summary["notes"]:
        show.note(text)
    for made in summary["artifacts"]:
        took = "unchanged" if made["reused"] else f"in {show.duration(made['seconds'])}"
        show.result(f"{made['artifact']}: {_in_words(made['facts'])}, {show.size(made['bytes'])} on disk, {took}")
    if tune:
        _show_tuning(summary["artifacts"][0]["facts"])


def _in_words(facts: dict[str, Any]) -> str:
    if "tests" in facts:
        return f"{facts['tests']:,} test points, {facts['classes']:,} classes"
    return f"{facts['classes']:,} classes from {facts['samples']:,} seeds of {facts['width']:,} values"


def _show_tuning(facts: dict[str, Any]) -> None:
    chosen = facts["chosen"]
    best = next(tried for tried in facts["tried"] if chosen.items() <= tried.items())
    show.result(
        f"  chosen: --lr {chosen['lr']:g} --batch-size {chosen['batch_size']} --weight-decay {chosen['weight_decay']:g}, "
        f"top-1 {best['top1']:.1%} and top-5 {best['top5']:.1%} on {facts['held_out']:,} seeds held out (mean over classes)"
    )
