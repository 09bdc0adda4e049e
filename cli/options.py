"""Options that several commands share."""

from __future__ import annotations

import re
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


Memory = Annotated[str, typer.Option("--memory", help="The most memory that the command may use, such as `4G` or `800M`.")]


def parse_bytes(option: str, text: str) -> int:
    """`4G`, `4GiB`, `800M` or plain bytes."""
    from mmdiff.formats.errors import BadOption

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise BadOption(f"{option} {text}: not an amount of memory. Write it like 4G or 800M.")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def this_command() -> str:
    """The command line as the user would type it again."""
    return shlex.join(["mmdiff", *sys.argv[1:]])
