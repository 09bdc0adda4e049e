"""Headless Chromium by its command line: the DOM and the console of a page."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WHY_NOT = "there is no Chromium here (Debian: apt-get install chromium)"


@dataclass(frozen=True)
class Seen:
    """The DOM after all scripts have run, and the lines of the console."""

    dom: str
    console: list[str]


def visit(page: Path, folder: Path, width: int, dark: bool = False) -> Seen:
    """Opens a file in a window of this width."""
    assert CHROMIUM is not None, WHY_NOT
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
        *("--enable-logging=stderr", "--v=0", f"--window-size={width},2000", f"--user-data-dir={folder / 'profile'}"),
        # No host resolves, so any request would be an error on the console.
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
    ]
    outcome = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=180, check=True
    )
    return Seen(outcome.stdout, re.findall(r"(?m)^.*CONSOLE.*$", outcome.stderr))
