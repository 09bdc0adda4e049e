"""Writes docs/report.png: the HTML report of the sample on a laptop, and dark on a phone. Needs chromium and torch.

.venv/bin/python docs/report_picture.py
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).resolve().parent
SAMPLE = DOCS.parent / "tests" / "sample"
COMMANDS = (
    "mmdiff import background.npy --role background",
    "mmdiff import seeds.npy --labels seed_labels.npy --class-names class_names.json --role seeds",
    "mmdiff import test.npy --labels test_labels.npy --role test",
    "mmdiff build-graph --k 10",
    "mmdiff diffuse",
    "mmdiff logreg",
    "mmdiff fuse",
    "mmdiff report --novel novel.txt",
)
HEIGHT, LAPTOP, PHONE, MARGIN = 1480, 1120, 390, 28
BEHIND = (226, 224, 217)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in SAMPLE.iterdir():
            (folder / file.name).symlink_to(file)
        for command in COMMANDS:
            program, *arguments = shlex.split(command)
            subprocess.run([Path(sys.executable).parent / program, *arguments], cwd=folder, check=True)
        laptop = shot(folder, LAPTOP, dark=False)
        phone = shot(folder, PHONE, dark=True)
    whole = Image.new("RGB", (LAPTOP + PHONE + 3 * MARGIN, HEIGHT + 2 * MARGIN), BEHIND)
    whole.paste(laptop, (MARGIN, MARGIN))
    whole.paste(phone, (LAPTOP + 2 * MARGIN, MARGIN))
    whole.save(DOCS / "report.png", optimize=True)


def shot(folder: Path, width: int, dark: bool) -> Image.Image:
    """A screenshot of the top of the page in a window of this width."""
    file = folder / f"{width}.png"
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        f"--user-data-dir={folder / f'profile-{width}'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        f"--window-size={width},{HEIGHT}",
        f"--screenshot={file}",
    ]
    subprocess.run(["chromium", *options, (folder / "report.html").as_uri()], check=True, capture_output=True)
    with Image.open(file) as opened:
        return opened.convert("RGB")


if __name__ == "__main__":
    main()
