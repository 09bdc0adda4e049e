"""Options that several commands share, and the store that they name."""

from __future__ import annotations

import os
import resource
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mmdiff.cli.errors import fail
from mmdiff.errors import MmdiffError
from mmdiff.text import size

if TYPE_CHECKING:
    from mmdiff import Store

DEFAULT_STORE = "mmdiff-store"

# What the numerical libraries need of a limited process, and the way to see the limit; with less they abort, or never end.
_LIMITS = {
    "data": (resource.RLIMIT_DATA, 512 << 20, "ulimit -d"),
    "address space": (resource.RLIMIT_AS, 1536 << 20, "ulimit -v"),
}


def complete_artifacts(ctx: typer.Context, incomplete: str) -> list[str]:
    """The artifacts of the store of the command line, for completion in a shell; of a remote store none."""
    import mmdiff

    place = ctx.params.get("store") or os.environ.get("MMDIFF_STORE", DEFAULT_STORE)
    if "://" in place:
        return []
    try:
        names = mmdiff.open(place).names()
    # A shell that completes a word shows no errors.
    except (MmdiffError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_scores(ctx: typer.Context, incomplete: str) -> list[str]:
    """The scores of the store, as `scores/NAME`."""
    return [name for name in complete_artifacts(ctx, incomplete) if name.startswith("scores/")]


def complete_score_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The scores of the store, as `NAME`."""
    return [name.removeprefix("scores/") for name in complete_artifacts(ctx, f"scores/{incomplete}")]


StorePlace = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="MMDIFF_STORE",
        metavar="FOLDER|URL",
        help="The folder that holds the store; commands that only read also take a URL, such as `s3://bucket/store`.",
        show_default=True,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

Memory = Annotated[str, typer.Option("--memory", help="The most memory that the command may use, such as `4G` or `800M`.")]

Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="The most threads to use.", show_default="all cores it may use")
]

Dask = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS|local:N",
        help="Leave the work to the workers of a Dask cluster that see the same files, or to N processes on this machine.",
        show_default=False,
    ),
]


def open_store(
    store: str, *, create: bool = False, memory: str = "8G", threads: int | None = None, dask: str | None = None
) -> Store:
    """The store of a command: progress is shown, and artifacts record the command line."""
    _refuse_tight_limits()
    import mmdiff

    return mmdiff.open(store, create=create, memory=memory, progress=True, threads=threads, dask=dask, command=this_command())


def _refuse_tight_limits() -> None:
    for what, (kind, needed, see) in _LIMITS.items():
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and limit < needed:
            fail(f"this process may have {size(limit)} of {what} ({see}), and needs {size(needed)}. Raise the limit.", 1)


def this_command() -> str:
    """The command line as the user would type it again."""
    return shlex.join(["mmdiff", *sys.argv[1:]])
