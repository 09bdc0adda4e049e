"""Options that several commands share."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def _folder(place: str | Path) -> Path:
    """The store of a command that works in it, which has to be here."""
    if "://" in str(place):
        from mmdiff.formats.errors import ReadOnly

        raise ReadOnly(
            f"--store {place}: this command needs a store on this machine. Only inspect, verify, export, evaluate, "
            f"explain and report read from a URL. Run first: mmdiff fetch {shlex.quote(str(place))} --store FOLDER"
        )
    return Path(place)


StorePath = Annotated[
    Path,
    typer.Option(
        "--store",
        envvar="MMDIFF_STORE",
        parser=_folder,
        metavar="FOLDER",
        help="The folder that holds the store.",
        show_default=True,
    ),
]
DEFAULT_STORE = Path("mmdiff-store")

StorePlace = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="MMDIFF_STORE",
        metavar="FOLDER|URL",
        help="The folder that holds the store, or its URL, such as `s3://bucket/store`.",
        show_default=True,
    ),
]
DEFAULT_PLACE = str(DEFAULT_STORE)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


Memory = Annotated[str, typer.Option("--memory", help="The most memory that the command may use, such as `4G` or `800M`.")]


Dask = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS|local:N",
        help="Leave the work to the workers of a Dask cluster that see the same files, or to N processes on this machine.",
        show_default=False,
    ),
]


def for_workers(path: Path, dask: str | None) -> Path:
    """A path as workers know it, wherever they were started."""
    return path if dask is None else path.absolute()


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
