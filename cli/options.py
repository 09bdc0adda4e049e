"""Options that several commands share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

StorePath = Annotated[
    Path, typer.Option("--store", envvar="MMDIFF_STORE", help="The folder that holds the store.", show_default=True)
]
DEFAULT_STORE = Path("mmdiff-store")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def this_command() -> str:
    """The command line as the user would type it again."""
    return shlex.join(["mmdiff", *sys.argv[1:]])
