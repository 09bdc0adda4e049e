"""A small store for explanations and reports: a cluster per class, ids and class names, and images of some rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmdiff.building.stage import Request as GraphRequest
from mmdiff.building.stage import build_graph
from mmdiff.diffusion.stage import Request as DiffuseRequest
from mmdiff.diffusion.stage import diffuse
from mmdiff.importing.stage import Request, import_descriptors

CLASSES = ("<b>cat</b>", "dog & wolf", "owl")


def make_world(folder: Path, classes: tuple[str, ...] = CLASSES, noise: float = 0.7) -> Path:
    """`store` with a diffusion of three iterations, and `images` of every second seed and two thirds of the background."""
    draw = np.random.default_rng(5)
    centres = draw.standard_normal((len(classes), 12))
    for role, rows in (("background", 90), ("seeds", 9), ("test", 30)):
        label = np.arange(rows) % len(classes)
        np.save(folder / f"{role}.npy", (centres[label] + noise * draw.standard_normal((rows, 12))).astype(np.float32))
        (folder / f"{role}-ids.txt").write_text("".join(f"{role[0]}{row}\n" for row in range(rows)))
        (folder / f"{role}-labels.txt").write_text("".join(f"{classes[own]}\n" for own in label))
        given: Any = {} if role == "background" else {"labels": str(folder / f"{role}-labels.txt")}
        options: Any = {"role": role, "dims": 8, "ids": str(folder / f"{role}-ids.txt"), **given}
        import_descriptors(folder / "store", Request([str(folder / f"{role}.npy")], **options))
    build_graph(folder / "store", GraphRequest(k=4))
    diffuse(folder / "store", DiffuseRequest(iterations=3))
    (folder / "images" / "seed").mkdir(parents=True)
    for row in range(0, 9, 2):
        Image.new("RGB", (400, 300), (10 * row, 90, 120)).save(folder / "images" / "seed" / f"s{row}.png")
    for row in range(60):
        Image.new("RGB", (64, 64), (2 * row, 200, 120)).save(folder / "images" / f"b{row}.JPEG")
    (folder / "images" / "b60.jpg").write_bytes(b"not a picture")
    return folder
