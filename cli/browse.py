"""`mmdiff browse`: a page to look at a store and to label in it."""

from __future__ import annotations

from typing import Annotated

import typer

from mmdiff.cli import show
from mmdiff.cli.errors import spell
from mmdiff.cli.options import DEFAULT_STORE, AsJson, Memory, StorePlace, Threads, open_store


def command(
    port: Annotated[int, typer.Option(metavar="N", help="The port to listen on; 0 takes a free one.")] = 0,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|TEMPLATE",
            help="A folder with a picture for each id, or a path with `{id}` or `{row}` in it.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE::column",
            help="A column with a text for each row of the collection, in its order.",
            show_default=False,
        ),
    ] = None,
    memory: Memory = "8G",
    threads: Threads = None,
    store: StorePlace = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Serve a page to look at the store and to label in it, until Ctrl-C; its address is printed.

    Labels are recorded at once, as by `mmdiff label`. After a pause they spread again, as by `mmdiff diffuse`. Only browsers on
    this machine that know the address can open the page.
    """

    def ready(address: str) -> None:
        show.as_json({"address": address}) if json else show.result(address)
        show.finish_output()
        show.note("open this address in a browser on this machine. It holds a secret token. Ctrl-C ends the page.")

    opened = open_store(store, memory=memory, threads=threads)
    opened.browse(port=port, images=images, texts=texts, on_ready=ready, spell=spell)
    show.note("the page is closed. All labels are in the store.")
