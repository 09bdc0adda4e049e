"""`mmdiff train-describer`: a small network that describes images, trained on the base classes."""

from __future__ import annotations

from typing import Annotated

import typer

import mmdiff
from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.build_graph import Device
from mmdiff.cli.options import AsJson, Threads


def command(
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="The base classes: a folder that holds a folder of images for each class, or what else `describe` takes.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where the weights are written, for `describe --model`.")
    ] = "describer.safetensors",
    size: Annotated[int, typer.Option(help="Side in pixels of the square that the network takes.")] = 64,
    width: Annotated[int, typer.Option(help="Channels of the first layers; an image gets 8 times as many values.")] = 32,
    depth: Annotated[int, typer.Option(help="Layers of the network, 10 or 18.")] = 10,
    epochs: Annotated[int, typer.Option(help="Times that each image is seen.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 32,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 0.02,
    device: Annotated[Device, typer.Option(help="`auto`: a GPU if torch finds one.")] = Device.auto,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Train a small ResNet on labelled images of base classes; without its last layer it describes images of any class.

    A tenth of each class is held out, and the accuracy on it is shown. If interrupted (Ctrl-C), the same command continues to
    the same weights. A network that was trained on millions of images like yours describes them better.
    """
    summary = mmdiff.train_describer(
        images,
        out,
        size=size,
        width=width,
        depth=depth,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        device=device.value,
        seed=seed,
        threads=threads,
        progress=True,
    )
    if summary["unreadable"]:
        show.note(f"{text.count(summary['unreadable'], 'image')} could not be read, trained on as white images")
    if json:
        show.as_json(summary)
        return
    show.result(
        f"{text.printable(summary['file'])}: {summary['network']}, {summary['values']} values for an image, trained on "
        f"{text.count(summary['images'], 'image')} of {text.count(summary['classes'], 'class', 'classes')} "
        f"in {text.duration(summary['seconds'])}"
    )
    if summary["continued"]:
        show.result(f"  continued: {text.count(summary['continued'], 'batch', 'batches')} of an interrupted run")
    show.result(
        f"  {summary['accuracy']:.1%} of {text.count(summary['held_out'], 'held-out image')} of these classes classified "
        f"rightly ({summary['chance']:.1%} by chance)"
    )
