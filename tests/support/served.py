"""A page that is served by the real command, and requests to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

# A machine that is busy with other tests may take this long for anything.
PATIENCE = 120.0


@dataclass(frozen=True)
class Reply:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of a refusal, which is JSON below the token, and text elsewhere."""
        is_json = self.headers["content-type"] == "application/json"
        return str(self.document["error"]) if is_json else self.body.decode()


@dataclass(frozen=True)
class Served:
    """A running page at an address."""

    process: subprocess.Popen[bytes]
    address: str

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 80

    @property
    def root(self) -> str:
        return urlsplit(self.address).path

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        host: str | None = None,
    ) -> Reply:
        """Any request; `path` is the whole one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", f"127.0.0.1:{self.port}" if host is None else host)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            if body is not None and "Content-Length" not in (headers or {}):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, /, **parameters: Any) -> Reply:
        query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
        return self.send("GET", f"{self.root}api/{path}{query}")

    def ask(self, path: str, /, **parameters: Any) -> Any:
        """The document of a request that must succeed."""
        reply = self.get(path, **parameters)
        assert reply.status == 200, reply.body
        return reply.document

    def post(self, path: str, document: Any, **headers: str) -> Reply:
        given = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{self.port}"} | headers
        return self.send("POST", f"{self.root}api/{path}", json.dumps(document).encode(), given)

    def label(self, rows: list[int], *labels: str) -> Any:
        reply = self.post("label", {"rows": rows, "labels": list(labels)})
        assert reply.status == 200, reply.body
        return reply.document

    def wait(self, fits: Callable[[Any], bool]) -> Any:
        """The first status that fits."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status = self.ask("status")
            if fits(status):
                return status
            assert time.monotonic() < deadline, status
            time.sleep(0.1)


@contextmanager
def serve(store: Path, *options: str) -> Iterator[Served]:
    """The page of a store, until the end of the block; the process may be ended before."""
    command = [sys.executable, "-c", "from mmdiff.cli import main; main()", "browse", "--store", str(store), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONWARNINGS": "error"}
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = b""
        while not said.endswith(b"}\n" if "--json" in options else b"\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read().decode()
            said += line
        yield Served(process, json.loads(said)["address"] if "--json" in options else said.decode().strip())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
        process.stdout.close()
        process.stderr.close()
