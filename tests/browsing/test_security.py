"""Only a browser on this machine that knows the address is answered, and no id or path of a request leads anywhere else."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmdiff
from tests.support.served import Served, serve
from tests.support.stores import MEMORY

IDS = [
    "plain.png",
    "noend",
    "../outside",
    "/etc/passwd",
    "link",
    "deep/er",
    "text",
    "bomb",
    "large",
    "cut",
    "pipe",
    "é",
    "..",
    "x" * 300,
    "",
]


def png(width: int, height: int) -> bytes:
    stream = BytesIO()
    Image.new("RGB", (width, height), (200, 30, 60)).save(stream, "PNG")
    return stream.getvalue()


def bomb() -> bytes:
    """A small PNG that says it has 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def page() -> Iterator[Served]:
    with TemporaryDirectory(dir=MEMORY) as name:
        folder, pictures = Path(name), Path(name) / "pictures"
        (pictures / "deep").mkdir(parents=True)
        (folder / "outside.png").write_bytes(png(4, 4))
        (pictures / "plain.png").write_bytes(png(4, 3))
        (pictures / "noend.png").write_bytes(png(5, 4))
        (pictures / "deep" / "er.png").write_bytes(png(6, 4))
        (pictures / "é.png").write_bytes(png(7, 4))
        (pictures / "text.png").write_text("<script>alert(1)</script>")
        (pictures / "bomb.png").write_bytes(bomb())
        (pictures / "cut.png").write_bytes(png(300, 300)[:-200])
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (1500, 3000, 3), np.uint8)).save(pictures / "large.png")
        (pictures / "link.png").symlink_to(folder / "outside.png")
        os.mkfifo(pictures / "pipe.png")
        store = mmdiff.open(folder / "store", create=True)
        store.add(np.random.default_rng(0).normal(size=(len(IDS), 4)), ids=[each or "empty" for each in IDS])
        with serve(store.path, "--images", str(pictures)) as served:
            yield served


def image(page: Served, name: str) -> Any:
    return page.get("image", row=IDS.index(name))


def test_the_page_and_its_files_are_served_with_strict_headers(page: Served) -> None:
    reply = page.send("GET", page.root)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(each.split(" ", 1) for each in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    for each in (reply, page.get("store"), page.send("GET", f"{page.root}static/main.js"), page.get("nothing")):
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["referrer-policy"] == "no-referrer"
        assert each.headers["cache-control"] == "no-store"
        assert "server" not in each.headers
        assert "access-control-allow-origin" not in each.headers
    assert page.send("GET", f"{page.root}static/main.js").headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    "path",
    ["/", "/api/store", "//", "/favicon.ico", "/" + "A" * 43 + "/api/store", "/%00/api/store", "/../api/store", "/é/", "*"],
)
def test_without_the_token_there_is_nothing(page: Served, path: str) -> None:
    reply = page.send("GET", path.replace("é", "%C3%A9"))
    assert reply.status == 404
    assert reply.error == "Nothing is here. Open the address that was printed when the page was started."


def test_a_token_that_is_nearly_right_is_wrong(page: Served) -> None:
    token = page.root.strip("/")
    for wrong in (token[:-1], token + "x", token.swapcase(), f"{token}%20", f"%20{token}"):
        assert page.send("GET", f"/{wrong}/api/store").status == 404


@pytest.mark.parametrize(
    "host", ["example.com", "example.com:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.example.com", ""]
)
def test_a_foreign_host_is_refused(page: Served, host: str) -> None:
    reply = page.send("GET", f"{page.root}api/store", host=host.format(port=page.port))
    assert reply.status == 403
    assert "address that it printed" in reply.error


def test_other_names_of_this_machine_are_taken(page: Served) -> None:
    for host in (f"localhost:{page.port}", f"[::1]:{page.port}", f"LOCALHOST:{page.port}"):
        assert page.send("GET", f"{page.root}api/store", host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.com"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://localhost:{port}"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_page_cannot_label(page: Served, headers: dict[str, str]) -> None:
    given = {name: value.format(port=page.port) for name, value in headers.items()}
    body = json.dumps({"rows": [0], "labels": ["cat"]}).encode()
    reply = page.send("POST", f"{page.root}api/label", body, {"Content-Type": "application/json", **given})
    assert reply.status == 403
    assert page.ask("status")["labelled"] == 0


def test_another_page_cannot_read_or_show_what_is_here(page: Served) -> None:
    for path in ("api/store", "api/image?row=0", "static/main.js"):
        assert page.send("GET", page.root + path, headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert page.send("GET", page.root, headers={"Sec-Fetch-Site": "cross-site"}).status == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"", {}, 400),
        (b"[]", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"\xff\xfe", {}, 400),
        (b'{"rows": [0], "labels": ["cat"]}', {"Content-Type": "text/plain"}, 415),
        (b'{"rows": [0], "labels": ["cat"]}', {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (b'{"rows": ["0"], "labels": ["cat"]}', {}, 400),
        (b'{"rows": [true], "labels": ["cat"]}', {}, 400),
        (b'{"rows": [-1], "labels": ["cat"]}', {}, 400),
        (b'{"rows": [1e3], "labels": ["cat"]}', {}, 400),
        (b'{"rows": [99999999999999999999999], "labels": ["cat"]}', {}, 400),
        (b'{"rows": [], "labels": ["cat"]}', {}, 400),
        (b'{"rows": [0]}', {}, 400),
        (b'{"rows": [0], "labels": "cat"}', {}, 400),
        (b'{"rows": [0], "labels": [""]}', {}, 400),
        (b'{"rows": [0], "labels": ["a\\nb"]}', {}, 400),
        (b'{"rows": [0], "labels": ["\\ud800"]}', {}, 400),
        (b'{"rows": [0], "labels": [null]}', {}, 400),
        (b'{"rows": [0], "labels": ["-1"]}', {}, 400),
        (b'{"rows": [0], "labels": ["' + b"x" * 500 + b'"]}', {}, 400),
        (b'{"rows": [0], "labels": [' + b",".join([b'"x"'] * 30) + b"]}", {}, 400),
        (b'{"rows": [' + b",".join([b"0"] * 20_000) + b'], "labels": ["cat"]}', {}, 400),
        (b'{"changes": []}', {}, 400),
        (b'{"changes": [[0, "cat"]]}', {}, 400),
        (b'{"changes": [{"rows": [0], "labels": ["a"]}, {"rows": [0], "labels": ["b"]}]}', {}, 400),
        (b'{"changes": [{"rows": [0]}]}', {}, 400),
        (b" " * (2 << 20), {}, 413),
    ],
)
def test_a_body_that_is_no_label_is_refused_with_a_sentence(
    page: Served, body: bytes, headers: dict[str, str], status: int
) -> None:
    reply = page.send("POST", f"{page.root}api/label", body, {"Content-Type": "application/json"} | headers)
    assert reply.status == status, reply.body
    assert reply.error.endswith((".", "?"))
    assert page.ask("status")["labelled"] == 0


def test_a_body_without_a_length_is_bounded_too(page: Served) -> None:
    part = b"10000\r\n" + b" " * 65536 + b"\r\n"
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Content-Length": ""}
    del headers["Content-Length"]
    reply = page.send("POST", f"{page.root}api/label", part * 20 + b"0\r\n\r\n", headers | {"X": "1"})
    assert reply.status in (400, 413)
    assert page.ask("status")["labelled"] == 0


def test_other_methods_are_not_answered(page: Served) -> None:
    body = json.dumps({"rows": [0], "labels": ["cat"]}).encode()
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert page.send(method, f"{page.root}api/label", body, {"Content-Type": "application/json"}).status == 405
    assert page.post("status", {}).status == 405
    assert page.ask("status")["labelled"] == 0


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2Fapp.py", "%2e%2e/app.py", "/etc/passwd", "main.js%00", "", ".", "nothing.js"]
)
def test_no_path_of_a_request_is_one_on_disk(page: Served, path: str) -> None:
    assert page.send("GET", f"{page.root}static/{path}").status == 404


def test_pictures_are_found_by_id_below_their_folder(page: Served) -> None:
    for name, width in (("plain.png", 4), ("noend", 5), ("deep/er", 6), ("é", 7)):
        reply = image(page, name)
        assert (reply.status, reply.headers["content-type"]) == (200, "image/png")
        assert Image.open(BytesIO(reply.body)).size[0] == width
        assert page.ask("row", row=IDS.index(name))["image"]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "link", "..", "x" * 300, "pipe"])
def test_no_id_leads_out_of_the_folder(page: Served, name: str) -> None:
    reply = image(page, name)
    assert (reply.status, reply.error) == (404, "There is no picture of this row.")
    assert not page.ask("row", row=IDS.index(name))["image"]


def test_what_is_no_picture_is_not_sent(page: Served) -> None:
    assert (image(page, "text").status, image(page, "text").error) == (
        415,
        "The file is not a picture (JPEG, PNG, WebP, GIF or BMP).",
    )
    assert image(page, "bomb").status == 415
    assert "pixels" in image(page, "bomb").error
    assert image(page, "cut").status == 415


def test_large_pictures_are_sent_as_small_copies(page: Served) -> None:
    reply = image(page, "large")
    assert (reply.status, reply.headers["content-type"]) == (200, "image/jpeg")
    assert Image.open(BytesIO(reply.body)).size == (1280, 640)


def test_ids_with_nul_have_no_picture(tmp_path: Path) -> None:
    from mmdiff.browsing.pictures import Pictures

    (tmp_path / "a.png").write_bytes(png(2, 2))
    for given in (str(tmp_path), f"{tmp_path}/{{id}}.png", f"{tmp_path}/{{id}}"):
        assert Pictures.of(given).find("background", "a.png\0", 0) is None
        assert Pictures.of(given).find("background", "a\0.png", 0) is None
    rows = Pictures.of(f"{tmp_path}/{{row}}/{{id}}.png")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "{row}.png").write_bytes(png(2, 2))
    assert rows.find("background", "{row}", 7) == tmp_path / "7" / "{row}.png"
    assert rows.find("background", "../a", 7) == tmp_path / "a.png"
    assert rows.find("background", "../../a", 7) is None
