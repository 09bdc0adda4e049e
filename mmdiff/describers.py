"""Training of networks that describe images: `mmdiff.train_describer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.results import Summary
from mmdiff.runtime.progress import Progress, silent


def train_describer(
    source: str | Path,
    out: str | Path,
    *,
    size: int = 64,
    width: int = 32,
    depth: int = 10,
    epochs: int = 20,
    batch_size: int = 32,
    lr: float = 0.02,
    device: str = "auto",
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> Summary:
    """Trains a small ResNet on labelled images of base classes, and writes its weights for `Store.describe` (docs/images.md).

    A tenth of each class is held out to state an accuracy. An interrupted call continues to the same weights.

    Args:
        source: a folder that holds a folder of images for each class; or what else `Store.describe` takes.
        out: the file to write, .safetensors, with torchvision's names of parameters.
        size: side in pixels of the square that the network takes.
        width: channels of the first layers; an image gets 8 times as many values.
        depth: layers of the network, 10 or 18.
        epochs: times that each image is seen.
        batch_size: images in a batch.
        lr: the highest learning rate.
        device: "auto" (a GPU if torch finds one), "cpu" or "gpu".
        seed: random seed.
        threads: the most threads to use in this process; None is all cores that the process may use.
        progress: True shows progress bars on stderr; or a function as for `mmdiff.open`.

    Returns:
        A dict with the file, the numbers of classes, images and `held_out` images, and the `accuracy` on the latter.

    >>> import mmdiff, tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for colour in ("red", "green"):
    ...         (Path(folder) / "base" / colour).mkdir(parents=True)
    ...         for number in range(4):
    ...             Image.new("RGB", (16, 16), colour).save(folder + f"/base/{colour}/{number}.png")
    ...     made = mmdiff.train_describer(folder + "/base", folder + "/d.safetensors", size=16, width=4, epochs=2)
    ...     made["classes"], made["held_out"], made["values"]
    (2, 2, 32)
    """
    from mmdiff.describing.training import Request
    from mmdiff.describing.training import train_describer as train

    if threads is not None:
        from mmdiff.runtime.threads import limit_cores

        limit_cores(threads)
    shown = progress if callable(progress) else silent
    if progress is True:
        from mmdiff.runtime.bars import show_progress

        shown = show_progress
    request = Request(
        images=path_of("source", source),
        out=path_of("out", out),
        size=size,
        width=width,
        depth=depth,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        device=device,  # type: ignore[arg-type]
        seed=seed,
    )
    return Summary(train(request, shown))


def path_of(name: str, value: Any) -> str:
    """A path as text."""
    if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
        raise BadOption(Parameter(name, value), ": expected a path.")
    return str(value)
