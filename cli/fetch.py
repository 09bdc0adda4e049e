"""`mmdiff fetch`: copy artifacts of a remote store into this one."""

from __future__ import annotations

from typing import Annotated

import typer

from mmdiff import text
from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePlace, open_store


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The remote store, e.g. `s3://bucket/store`.", show_default=False)],
    artifacts: Annotated[
        list[str] | None, typer.Argument(metavar="ARTIFACT", help="E.g. `graph/W`.", show_default="all of them")
    ] = None,
    with_inputs: Annotated[
        bool, typer.Option("--with-inputs", help="Fetch also what the artifacts were made from, as far as it is there.")
    ] = False,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Copy artifacts from S3, or any other place that fsspec reads, into the store. Checksums are checked on arrival.

    What is here already is not fetched again. If interrupted, the same command continues. `docs/remote.md` says how to put a
    store on S3.
    """
    found = open_store(store, create=True).fetch(url, artifacts, with_inputs=with_inputs)
    if json:
        show.as_json(found)
        return
    for item in found["artifacts"]:
        if item["replaced"]:
            show.note(f"{item['artifact']} was {item['replaced']} before; `mmdiff gc` removes that.")
        came = f"{text.size(item['downloaded'])} in {text.duration(item['seconds'])}" if item["downloaded"] else "already here"
        show.result(f"{item['artifact']}: {text.size(item['bytes'])}, {came}")
    speed = text.size(found["bytes"] / max(found["seconds"], 1e-9))
    show.result(
        f"{text.count(len(found['artifacts']), 'artifact')} in {text.printable(found['store'])}, "
        f"{text.size(found['bytes'])} fetched in {text.duration(found['seconds'])} ({speed}/s)"
    )
