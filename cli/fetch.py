"""`mmdiff fetch`: artifacts of a remote store, brought here."""

from __future__ import annotations

from typing import Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.options import DEFAULT_STORE, AsJson, StorePath


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The remote store, e.g. `s3://bucket/store`.", show_default=False)],
    artifacts: Annotated[
        list[str] | None, typer.Argument(metavar="ARTIFACT", help="E.g. `graph/W`.", show_default="all of them")
    ] = None,
    with_inputs: Annotated[
        bool, typer.Option("--with-inputs", help="Fetch also what the artifacts were made from, as far as it is there.")
    ] = False,
    store: StorePath = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Bring artifacts from S3, or any other place that fsspec reads, into the store. Checksums are checked on arrival.

    What is here already is not fetched again. If interrupted, the same command continues. `docs/remote.md` says how to put a
    store on S3.
    """
    import time

    from mmdiff.formats.errors import Missing
    from mmdiff.formats.remote import fetching
    from mmdiff.formats.remote.remote import Remote

    start = time.perf_counter()
    remote = Remote.open(url)
    names = list(dict.fromkeys(artifacts or remote.names))
    if not names:
        raise Missing(f"{remote.url}: no artifacts are listed there. If there are some, name those to fetch, e.g. graph/W.")
    if with_inputs:
        names = fetching.with_inputs(remote, names)
    fetched = fetching.fetch(remote, names, store, show.progress)
    seconds = time.perf_counter() - start
    downloaded = sum(item.downloaded for item in fetched)
    if json:
        items = [item.summary() for item in fetched]
        show.as_json({"url": remote.url, "store": str(store), "artifacts": items, "bytes": downloaded, "seconds": seconds})
        return
    for item in fetched:
        if item.replaced:
            show.note(f"{item.artifact} was {item.replaced} before; `mmdiff gc` removes that.")
        came = f"{show.size(item.downloaded)} in {show.duration(item.seconds)}" if item.downloaded else "already here"
        show.result(f"{item.artifact}: {show.size(item.bytes)}, {came}")
    speed = show.size(downloaded / max(seconds, 1e-9))
    show.result(f"{len(fetched)} artifacts in {store}, {show.size(downloaded)} fetched in {show.duration(seconds)} ({speed}/s)")
