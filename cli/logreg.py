"""`mmdiff logreg`: logistic regression on the labelled rows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.build_graph import Device
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, open_store


def command(
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate at the start; it falls to 0. Default: 1.", show_default=False),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Seeds in a batch, drawn class by class. Default: 256.", show_default=False)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="L2 penalty on the weights. Default: 0.0003.", show_default=False)
    ] = None,
    iterations: Annotated[int, typer.Option(help="Number of batches to train on.")] = 1000,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Choose --lr, --batch-size and --weight-decay on seeds that are held out."),
    ] = False,
    device: Annotated[Device, typer.Option(help="`auto`: a GPU if torch finds one.")] = Device.auto,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    name: Annotated[str, typer.Option(help="The artifacts are `models/NAME` and `scores/NAME`.")] = "logreg",
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Train a logistic regression on the labelled rows, and classify the test points and the collection with it.

    It trains on the descriptors of the seeds before the PCA, where they were kept; with labelled rows of the collection, on
    vectors. `mmdiff export models/logreg FILE.safetensors` takes the model elsewhere. Repeated, it makes only what has changed.
    """
    summary = (
        open_store(store)
        .logreg(
            lr=lr,
            batch_size=batch_size,
            weight_decay=weight_decay,
            iterations=iterations,
            tune=tune,
            device=device.value,
            seed=seed,
            name=name,
        )
        .summary
    )
    if json:
        show.as_json(summary)
        return
    for sentence in summary["notes"]:
        show.note(text.printable(sentence))
    for made in summary["artifacts"]:
        took = "unchanged" if made["reused"] else f"in {text.duration(made['seconds'])}"
        show.result(f"{made['artifact']}: {_facts(made['facts'])}, {text.size(made['bytes'])} on disk, {took}")
    if tune:
        _show_tuning(summary["artifacts"][0]["facts"])


def _facts(facts: dict[str, Any]) -> str:
    classes = text.count(facts["classes"], "class", "classes")
    if "tests" in facts:
        points = text.count(facts["tests"], "test point") if facts["tests"] else "all rows of the collection"
        return f"{points}, {classes}"
    return f"{classes} from {text.count(facts['samples'], 'labelled row')} of {text.count(facts['width'], 'value')}"


def _show_tuning(facts: dict[str, Any]) -> None:
    chosen = facts["chosen"]
    best = next(tried for tried in facts["tried"] if chosen.items() <= tried.items())
    show.result(
        f"  chosen: --lr {chosen['lr']:g} --batch-size {chosen['batch_size']} --weight-decay {chosen['weight_decay']:g}, "
        f"top-1 {best['top1']:.1%} and top-5 {best['top5']:.1%} on {text.count(facts['held_out'], 'held-out seed')} "
        "(mean over classes)"
    )
