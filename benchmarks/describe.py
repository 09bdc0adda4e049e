"""The throughput of `mmdiff describe` against a plain loop of torch over the same images and the same network, in one run.

python -m benchmarks.describe [--images 600] [--side 256] [--rounds 3]

The plain loop opens one image after the other with Pillow, resizes and cuts it in the same way, stacks a batch and runs the
network: what one writes without a library. `describe` does all of an import besides. Rounds alternate, and the best of each
counts, since other processes only ever slow a round down.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from PIL import Image, ImageOps

import mmdiff

SIDE, BATCH = 224, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def save_images(folder: Path, count: int, side: int) -> list[Path]:
    """JPEG files of noise that was smoothed, about as large as photographs of their size."""
    rng = np.random.default_rng(0)
    files = []
    for i in range(count):
        rough = Image.fromarray(rng.integers(0, 256, (side // 4, side // 3, 3)).astype(np.uint8))
        files.append(folder / f"{i:05}.jpg")
        rough.resize((4 * side // 3, side), Image.Resampling.BICUBIC).save(files[-1], quality=90)
    return files


def plain(files: list[Path], network: Any) -> float:
    """Seconds of the plain loop."""
    start = time.perf_counter()
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    rows = []
    with torch.inference_mode():
        for first in range(0, len(files), BATCH):
            batch = []
            for file in files[first : first + BATCH]:
                image = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
                short = min(image.size)
                width, height = (round(256 * length / short) for length in image.size)
                left, top = (width - SIDE) // 2, (height - SIDE) // 2
                cut = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + SIDE, top + SIDE))
                batch.append((torch.from_numpy(np.array(cut)).permute(2, 0, 1) / 255 - mean) / std)
            rows.append(network(torch.stack(batch)).numpy())
    assert len(np.concatenate(rows)) == len(files)
    return time.perf_counter() - start


def ours(folder: Path, model: Path, store: Path) -> float:
    """Seconds of `Store.describe`, import and PCA included."""
    start = time.perf_counter()
    few = len(list(folder.iterdir()))
    mmdiff.open(store, create=True).describe(folder, model=model, batch_size=BATCH, dims=min(256, few))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    # A benchmark compares with the very network, so it reaches behind the public API for it.
    from mmdiff.describing.resnet import Shape, build

    torch.manual_seed(0)
    network = build(Shape((2, 2, 2, 2), False, 64, 7)).eval()
    with tempfile.TemporaryDirectory() as place:
        folder, model = Path(place) / "images", Path(place) / "resnet18.safetensors"
        folder.mkdir()
        files = save_images(folder, given.images, given.side)
        safetensors.torch.save_file(network.state_dict(), model)
        few = Path(place) / "few"
        few.mkdir()
        # What is compiled and loaded on first use is no part of either.
        plain(save_images(few, 2, given.side), network)
        ours(few, model, Path(place) / "warm")
        times: dict[str, list[float]] = {"plain": [], "describe": []}
        for number in range(given.rounds):
            times["plain"].append(plain(files, network))
            times["describe"].append(ours(folder, model, Path(place) / f"store{number}"))
    best = {what: given.images / min(seconds) for what, seconds in times.items()}
    ratio = best["describe"] / best["plain"]
    found = {"images": given.images, "images_per_second": {what: round(rate, 1) for what, rate in best.items()}}
    sys.stdout.write(json.dumps({**found, "ratio": round(ratio, 2)}) + "\n")


if __name__ == "__main__":
    main()
