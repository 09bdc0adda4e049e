"""Small images and small networks for tests."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import safetensors.torch
import torch
from PIL import Image

from mmdiff.describing.resnet import Shape, build
from mmdiff.runtime.progress import Advance, Progress

TINY = Shape((1, 1, 1, 1), False, 4, 3)
SIDE = 16


def picture(seed: int, size: tuple[int, int] = (24, 20)) -> Image.Image:
    """An image of smooth colours that no other seed has."""
    rough = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return Image.fromarray(rough).resize(size, Image.Resampling.BICUBIC)


def save_pictures(folder: Path, classes: str = "ab", each: int = 5) -> Path:
    """A folder with a folder of images for each class."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            picture(100 * number + i).save(folder / name / f"{i}.png")
    return folder


def save_shard(file: Path, pictures: int, first: int = 0) -> Path:
    """A tar file of images and other files, as webdataset writes it."""
    with tarfile.open(file, "w") as archive:
        for i in range(first, first + pictures):
            for ending, content in (("png", _bytes_of(picture(i))), ("cls", b"3")):
                member = tarfile.TarInfo(f"{i:05}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file


def _bytes_of(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def save_resnet(file: Path, shape: Shape = TINY, **more: torch.Tensor) -> Path:
    """The weights of a network that was not trained."""
    torch.manual_seed(0)
    weights = build(shape).state_dict() | more
    safetensors.torch.save_file({name: value.contiguous() for name, value in weights.items()}, file)
    return file


def save_exported(file: Path, module: torch.nn.Module, batch: int | None = None, side: int = SIDE) -> Path:
    """An exported program, for batches of any size or of one."""
    shapes: Any = ({0: torch.export.Dim.AUTO},) if batch is None else None
    with catch_warnings():
        simplefilter("ignore")
        program = torch.export.export(module.eval(), (torch.zeros(batch or 2, 3, side, side),), dynamic_shapes=shapes)
        torch.export.save(program, file)
    return file


def save_script(file: Path, module: torch.nn.Module) -> Path:
    """TorchScript."""
    with catch_warnings():
        simplefilter("ignore")
        torch.jit.trace(module.eval(), torch.zeros(2, 3, SIDE, SIDE)).save(str(file))  # type: ignore[no-untyped-call]
    return file


def interrupted_after(count: int, what: str, checkpoint: Path) -> Progress:
    """A progress display that interrupts a piece of work after so many units, and once there is a checkpoint."""

    @contextmanager
    def display(name: str, total: int, unit: str) -> Iterator[Advance]:
        del total, unit
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            if name.startswith(what) and done >= count:
                wait_for(checkpoint)
                raise KeyboardInterrupt

        yield advance

    return display


def wait_for(file: Path) -> None:
    """Waits until another thread has written a file."""
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, f"{file} was not written"
        time.sleep(0.01)
