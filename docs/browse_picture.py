"""Writes docs/browse-label.png and docs/browse-row.png: the page of a store of handwritten digits.

.venv/bin/python docs/browse_picture.py (needs chromium and scikit-learn)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import mmdiff

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))
from tests.support.devtools import Browser, Page  # noqa: E402
from tests.support.served import serve  # noqa: E402

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WIDTH, HEIGHT, PHONE, MARGIN = 1180, 860, 390, 24
BEHIND = (226, 224, 217)
SIDE = 96
LABELS = 60


def main() -> None:
    digits = load_digits()
    ids = [f"digit-{row:04d}" for row in range(len(digits.target))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for row, image in zip(ids, digits.images, strict=True):
            ink = Image.fromarray((255 - image * 15.9).astype(np.uint8))
            # A margin, since cards cut pictures to their shape.
            paper = Image.new("L", (SIDE + SIDE // 2, SIDE + SIDE // 4), 255)
            paper.paste(ink.resize((SIDE, SIDE), Image.Resampling.BICUBIC), (SIDE // 4, SIDE // 8))
            paper.save(folder / f"{row}.png")
        store = mmdiff.open(folder / "digits", create=True)
        store.add(digits.data.astype(np.float32), ids=ids)
        store.build_graph(k=12)
        store.audit("duplicates")
        with (
            serve(folder / "digits", "--images", f"{folder}/{{id}}.png") as served,
            Browser(folder / "profile") as browser,
        ):
            # Labels come ten at a time, as they do from a person, so that there is a history to draw.
            for _ in range(LABELS // 10):
                served.wait(lambda status: status["state"] == "idle")
                for row in served.ask("suggestions", count=10)["rows"]:
                    served.label([row["row"]], NAMES[digits.target[row["row"]]])
            served.wait(lambda status: status["state"] == "idle" and status["accuracy"] is not None)
            page = browser.open(served.address + "#/label", WIDTH, HEIGHT)
            page.wait("document.querySelectorAll('#grid .prediction:not(.none)').length > 10")
            for place in (1, 2, 4):
                page.click(f".line:nth-child(1) .card:nth-child({place})")
            page.evaluate("document.querySelector('.entry input').focus()")
            page.type("s")
            phone = browser.open(served.address + "#/label", PHONE, HEIGHT, dark=True)
            phone.wait("document.querySelectorAll('#grid .prediction:not(.none)').length > 3")
            shots(folder, (page, phone), DOCS / "browse-label.png")
            page.look(WIDTH, HEIGHT)
            page.evaluate("location.hash = '#/row/42'")
            page.wait("document.querySelector('#row-path .path')")
            phone.evaluate("location.hash = '#/artifact/graph/W'")
            phone.wait("document.querySelector('#histograms .column')")
            shots(folder, (page, phone), DOCS / "browse-row.png")


def shots(folder: Path, pages: tuple[Page, ...], file: Path) -> None:
    """Photographs of pages next to each other."""
    opened = []
    for number, page in enumerate(pages):
        page.front()
        page.wait("[...document.images].every((image) => image.complete)")
        page.photograph(folder / f"{number}.png")
        with Image.open(folder / f"{number}.png") as picture:
            opened.append(picture.convert("RGB"))
    whole = Image.new("RGB", (sum(each.width + MARGIN for each in opened) + MARGIN, HEIGHT + 2 * MARGIN), BEHIND)
    left = MARGIN
    for picture in opened:
        whole.paste(picture, (left, MARGIN))
        left += picture.width + MARGIN
    whole.quantize(192).save(file, optimize=True)


if __name__ == "__main__":
    main()
