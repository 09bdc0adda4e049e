"""`mmdiff browse`: serves the page of a store on this machine until it is interrupted.

The server listens on the loopback interface only, and answers those who know the token in its address (`security.py`).
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from mmdiff.browsing.app import Page, Spell, make_app
from mmdiff.browsing.loop import LabellingLoop, Settings
from mmdiff.browsing.pictures import Pictures
from mmdiff.browsing.reading import Reader
from mmdiff.browsing.security import Guard, new_token
from mmdiff.browsing.texts import Texts
from mmdiff.formats.errors import BadOption, Missing, Parameter, call
from mmdiff.formats.extras import load
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.kinds import Kinds
from mmdiff.formats.store.store import Store
from mmdiff.runtime.parameters import text, whole
from mmdiff.runtime.threads import cores

LOOPBACK = "127.0.0.1"
_MOST_PORT = 65535

# Seconds that open requests get to end.
_TO_END = 3


@dataclass(frozen=True)
class Request:
    """Parameters of a page. Port 0 is any free one; `spell` writes parameters and calls in messages."""

    port: int = 0
    images: str | None = None
    texts: str | None = None
    memory: int = 8 << 30
    spell: Spell | None = None


@explaining
def browse(store: Store, request: Request, kinds: Kinds, on_ready: Callable[[str], None], token: str | None = None) -> None:
    """Serves the page until Ctrl-C; `on_ready` gets its address. A `token` replaces the random one."""
    uvicorn = load("uvicorn", "the page")
    load("starlette", "the page")
    port = whole("port", request.port, 0, _MOST_PORT, "0 takes a free one.")
    reader = _reader(store, request)
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(port))
        port = listener.getsockname()[1]
        loop = LabellingLoop(reader, _settings(store, request))
        guard = Guard(port, token or new_token())
        app = make_app(Page(reader, loop, kinds, request.spell or str), guard)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_TO_END,
        )
        # Pillow warns of large pictures, which have a limit of their own here.
        stack.enter_context(warnings.catch_warnings())
        _ignore_large_pictures(reader)
        loop.start()
        stack.callback(loop.stop)
        on_ready(f"http://{LOOPBACK}:{port}/{guard.token}/")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _reader(store: Store, request: Request) -> Reader:
    pictures = None if request.images is None else Pictures.of(text("images", request.images))
    reader = Reader(store, request.memory, pictures)
    if request.texts is not None:
        if not reader.rows.collection:
            raise Missing(
                Parameter("texts", request.texts), ": there are no rows yet that have texts. Import them first: ", call("add")
            )
        reader.texts = Texts.read(text("texts", request.texts), reader.rows.collection, request.memory)
    return reader


def _settings(store: Store, request: Request) -> Settings:
    spell = request.spell or str
    # A command line names the store; in Python the calls are its methods.
    place: dict[str, Any] = {} if request.spell is None else {"store": str(store.path)}
    label, diffuse, evaluate = (call(name, **place) for name in ("label", "diffuse", "evaluate"))
    diffuse = call("diffuse", predict_nodes=True, **place)
    return Settings(request.memory, cores(), spell(label), spell(diffuse), spell(evaluate))


@contextmanager
def _listening(port: int) -> Any:
    """A socket that listens on this machine only."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(128)
        except OSError as error:
            raise BadOption(
                Parameter("port", port), f": the system refuses it ({error.strerror}). Choose another one, or 0 for a free one."
            ) from None
        yield listener


def _ignore_large_pictures(reader: Reader) -> None:
    if reader.pictures is not None:
        image_module = load("PIL.Image", "showing pictures")
        warnings.simplefilter("ignore", image_module.DecompressionBombWarning)
