"""`mmdiff gc`: remove what interrupted and replaced runs left."""

from __future__ import annotations

from typing import Annotated

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, open_store


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Remove what no name leads to: drafts of interrupted runs and artifacts that were replaced. Nothing else."""
    summary = open_store(store).gc(dry_run=dry_run)
    if json:
        show.as_json(summary)
        return
    for item in summary["items"]:
        show.result(f"{text.printable(item['folder'])}: {text.size(item['bytes'])}, {item['why']}")
    if not summary["items"]:
        show.result("nothing to remove")
    else:
        show.result(f"{text.size(summary['bytes'])} {'could be freed' if dry_run else 'freed'}")
