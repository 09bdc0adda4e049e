"""`mmdiff describe`: images into the store, described by a network."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.build_graph import Device
from mmdiff.cli.importing import ClassNames, Dims, InRole, NoBackground, Normalize, Role, SameIds, StoredDtype
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, Threads, open_store
from mmdiff.errors import BadOption, Parameter

# Unreadable images that are named on the terminal.
_SHOWN = 5


class OnBad(StrEnum):
    """Treatment of images that cannot be read."""

    white = "white"
    drop = "drop"
    error = "error"


def command(
    images: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES",
            help="A folder (with the folders in it), a quoted pattern such as `'photos/*/*.jpg'`, a list of paths (`.txt`, one "
            "in a line), or tar shards as webdataset writes them, such as `'shards/train-{000..099}.tar'`.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME",
            help="An exported program (`.pt2`), TorchScript (`.pt`, `.ts`), or weights of a ResNet as `train-describer` and "
            "torchvision save them (`.safetensors`); or by name `timm:NAME`, `open_clip:NAME/WEIGHTS`, `transformers:NAME`.",
            show_default=False,
        ),
    ],
    role: InRole = Role.background,
    labels_from_folders: Annotated[
        bool,
        typer.Option(
            "--labels-from-folders",
            help="The first folder in the path of an image, below IMAGES, is its label; one outside of any folder has none.",
        ),
    ] = False,
    labels: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A label for each image, in the order of the images; files as for `import`."),
    ] = None,
    class_names: ClassNames = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Put in front of every id, where images of several places have the same paths.")
    ] = "",
    append: Annotated[bool, typer.Option("--append", help="Add the images to the background instead of replacing it.")] = False,
    on_bad: Annotated[
        OnBad,
        typer.Option(
            help="Images that cannot be read: describe a white one in place of each and record it, leave them out, or stop."
        ),
    ] = OnBad.white,
    resize: Annotated[
        int | None,
        typer.Option(
            help="Pixels that the shorter side is resized to. Default: as the model has recorded, or 256.", show_default=False
        ),
    ] = None,
    crop: Annotated[
        int | None,
        typer.Option(
            help="Side of the square cut from the middle. Default: as the model has recorded, or 224.", show_default=False
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B", help="Mean of the colours, 0 to 1. Default: as recorded, or that of ImageNet.", show_default=False
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B", help="Standard deviation of the colours. Default: as recorded, or ImageNet's.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images that the network takes at a time.")] = 64,
    device: Annotated[Device, typer.Option(help="`auto`: a GPU if torch finds one.")] = Device.auto,
    dtype: StoredDtype = None,
    dims: Dims = None,
    normalize: Normalize = True,
    keep_raw: Annotated[
        bool | None,
        typer.Option(
            help="Keep the output of the network too; logistic regression trains on it. Default: for seeds and test.",
            show_default=False,
        ),
    ] = None,
    no_background: NoBackground = False,
    same_ids: SameIds = False,
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Describe images with a network, and import the descriptors as background, seeds or test points.

    The path of an image is its id. Images are turned upright, resized, cut to a square and standardised as the model has
    recorded, or as for ImageNet. If interrupted, the same command continues; repeated, it does nothing.
    """
    summary = open_store(store, create=True, threads=threads).describe(
        images,
        model=model,
        role=role.value,
        labels_from_folders=labels_from_folders,
        labels=labels,
        class_names=class_names,
        prefix=prefix,
        append=append,
        on_bad=on_bad.value,
        resize=resize,
        crop=crop,
        mean=_colours("mean", mean),
        std=_colours("std", std),
        batch_size=batch_size,
        device=device.value,
        dtype=None if dtype is None else dtype.value,
        dims=dims,
        normalize=normalize,
        keep_raw=keep_raw,
        no_background=no_background,
        same_ids=same_ids,
    )
    _show_unreadable(summary["unreadable"])
    if json:
        show.as_json(summary)
        return
    for sentence in summary["notes"]:
        show.note(text.printable(sentence))
    if "shape" not in summary:
        show.result(f"{summary['artifact']}: {'nothing new' if summary['reused'] else 'labels recorded'}, no rows imported")
        return
    if summary["reused"]:
        show.result(f"{summary['artifact']}: already described, nothing to do")
        return
    speed = summary["described"] / max(summary["seconds"], 1e-9)
    show.result(
        f"{summary['artifact']}: {show.shape(summary['shape'])} {summary['dtype']}, {text.size(summary['bytes'])} on disk, "
        f"in {text.duration(summary['seconds'])} ({speed:,.0f} images/s)"
    )
    show.result(
        f"  by {text.printable(summary['model']['name'])} ({summary['model']['kind']}), {summary['model']['values']} values"
    )
    if append:
        show.result(f"  {text.count(summary['added'], 'row')} added")
    if summary["continued"]:
        show.result(f"  continued: {text.count(summary['continued'], 'image')} described by an interrupted run")
    if summary["classes"]:
        show.result(f"  {text.count(summary['classes'], 'class', 'classes')}")
    for reason, count in summary["dropped"].items():
        show.result(f"  {text.count(count, 'image')} left out: {reason.replace('_', ' ')}")


def _colours(name: str, given: str | None) -> list[float] | None:
    """Three numbers with commas between them."""
    if given is None:
        return None
    try:
        return [float(value) for value in given.split(",")]
    except ValueError:
        raise BadOption(
            Parameter(name, given), ": expected three numbers, for red, green and blue, such as 0.5,0.5,0.5."
        ) from None


def _show_unreadable(unreadable: dict[str, Any]) -> None:
    """A line on stderr where images could not be read."""
    if not unreadable.get("count"):
        return
    named = list(unreadable["images"].items())[:_SHOWN]
    shown = "; ".join(f"{name}: {why}" for name, why in named) + ("; ..." if unreadable["count"] > len(named) else "")
    treatment = {"drop": "left out", "white": "described as white images"}.get(unreadable["treatment"], "refused")
    count = text.count(unreadable["count"], "image")
    show.note(text.printable(f"{count} could not be read, {treatment} ({shown})"))
