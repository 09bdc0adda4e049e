"""Remote stores for the tests: on a local S3 server, in memory, and on file systems and servers that fail."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, Literal

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from mmdiff.runtime.progress import Advance

# The part of `objects/` that is copied: all of it, the metadata (as in docs/remote.md), or nothing.
Objects = Literal["all", "metadata", "none"]


def files_of(store: Path, objects: Objects = "metadata") -> Iterator[tuple[str, bytes]]:
    """The files that `aws s3 sync` copies of a store: it follows symlinks."""
    for folder, _, files in os.walk(store, followlinks=True):
        for file in files:
            path = Path(folder, file)
            relative = path.relative_to(store)
            if relative.parts[0] != "objects" or objects == "all" or (objects == "metadata" and file == "zarr.json"):
                yield str(relative), path.read_bytes()


def put(url: str, content: bytes) -> None:
    files, path = fsspec.url_to_fs(url, skip_instance_cache=True)
    files.pipe_file(path, content)


def upload(store: Path, url: str, objects: Objects = "metadata", **options: Any) -> str:
    """Copies a store to a URL and returns the URL; `options` are for the file system."""
    files, root = fsspec.url_to_fs(url, skip_instance_cache=True, **options)
    for file, content in files_of(store, objects):
        files.pipe_file(f"{root}/{file}", content)
    return url


@contextmanager
def interrupted_at_third_chunk(what: str, total: int, unit: str) -> Iterator[Advance]:
    """A progress bar that sends SIGINT when it moves for the third time."""
    del what, total, unit
    moves = itertools.count(1)

    def advance(_: int) -> None:
        if next(moves) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    yield advance


class Requests(logging.Handler):
    """The requests in the log of the S3 server."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @property
    def chunks(self) -> list[str]:
        """The chunks that were requested."""
        gets = (line.partition("GET ")[2].partition(" ")[0] for line in self.lines)
        return [path for path in gets if path.rpartition("/")[2].startswith("c.")]


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """A folder served by Python's web server, which lists folders and ignores ranges."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Flaky(MemoryFileSystem):  # type: ignore[misc]
    """`flaky://`: `memory://` that damages the first answers for each chunk, and may refuse to list folders."""

    protocol = "flaky"
    spoil: ClassVar[Any] = staticmethod(lambda data: data)
    times: ClassVar[int] = 0
    asked: ClassVar[dict[str, int]] = {}
    listed: ClassVar[bool] = True

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        if not self.listed:
            raise PermissionError(path)
        return super().ls(path, detail, **more)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        data: bytes = super().cat_file(path, start, end, **more)
        if not path.rpartition("/")[2].startswith("c."):
            return data
        self.asked[path] = self.asked.get(path, 0) + 1
        spoilt: bytes = type(self).spoil(data) if self.asked[path] <= self.times else data
        return spoilt
