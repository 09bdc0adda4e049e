"""`mmdiff gc`: give back the room of what interrupted and replaced runs left."""

from __future__ import annotations

from typing import Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePath


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Remove what no name leads to: drafts of interrupted runs and artifacts that were replaced. Nothing else."""
    from mmdiff.formats.store.gc import collect, find_garbage
    from mmdiff.formats.store.store import Store

    opened = Store.open(store)
    garbage = find_garbage(opened) if dry_run else collect(opened)
    total = sum(item.bytes for item in garbage)
    if json:
        items = [{"folder": str(item.folder), "bytes": item.bytes, "why": item.why} for item in garbage]
        show.as_json({"removed": not dry_run, "bytes": total, "items": items})
        return
    for item in garbage:
        show.result(f"{item.folder}: {show.size(item.bytes)}, {item.why}")
    if not garbage:
        show.result("nothing to remove")
    else:
        show.result(f"{show.size(total)} {'could be freed' if dry_run else 'freed'}")
