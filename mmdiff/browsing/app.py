"""The requests of the page: each with its parameters checked, answered in a thread, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast

import mmdiff
from mmdiff.browsing import contents
from mmdiff.browsing.loop import LabellingLoop
from mmdiff.browsing.pictures import NotAPicture
from mmdiff.browsing.reading import Reader
from mmdiff.browsing.rows import Place
from mmdiff.browsing.security import HEADERS, Guard, Refused
from mmdiff.formats.errors import Call, Corrupt, InputError, Missing, MmdiffError, Parameter, Part
from mmdiff.formats.extras import load
from mmdiff.formats.store.kinds import Kinds
from mmdiff.formats.store.manifest import Json

Spell = Callable[[Parameter | Call], str]

MOST_BODY = 1 << 20
MOST_ROWS = 200
"""Bytes of the body of a request, and rows of a page."""

MOST_LABELLED = 10_000
"""Rows that are labelled at once."""

MOST_LABELS, LONGEST_LABEL = 20, 200

_LONGEST_SEARCH = 1000

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

Answer = tuple[int, str, bytes]


@dataclass(frozen=True)
class Page:
    """All that requests are answered from."""

    reader: Reader
    loop: LabellingLoop
    kinds: Kinds
    spell: Spell

    def told(self, parts: tuple[Part, ...] | None) -> str | None:
        """A message as the user spells parameters and calls."""
        return None if parts is None else "".join(part if isinstance(part, str) else self.spell(part) for part in parts)


def static_files() -> dict[str, tuple[str, bytes]]:
    """The files of the page by name, with their types: no name from a request is ever a path."""
    folder = files("mmdiff.browsing") / "static"
    found = {entry.name: entry for entry in folder.iterdir() if entry.name.rpartition(".")[2] in _TYPES}
    return {name: (_TYPES[name.rpartition(".")[2]], entry.read_bytes()) for name, entry in found.items()}


def make_app(page: Page, guard: Guard) -> Any:
    """The ASGI application of a page."""
    load("starlette", "the page")
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response

    statics = static_files()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        try:
            path = guard.admit(scope)
        except Refused as refused:
            plain = (refused.status, "text/plain; charset=utf-8", refused.sentence.encode())
            await _send(Response, plain, scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await answered(path, request)
        except ClientDisconnect:
            return
        await _send(Response, answer, scope, receive, send)

    async def answered(path: str, request: Any) -> Answer:
        name = path.removeprefix("/static/") if path.startswith("/static/") else "index.html" if path == "/" else None
        reading = request.method in ("GET", "HEAD")
        try:
            if not reading and request.method != "POST":
                raise Refused(405, "Only GET and POST are answered here.")
            if name is not None and name in statics and reading:
                return 200, *statics[name]
            endpoints: dict[str, Any] = {} if name is not None else READS if reading else WRITES
            if path not in endpoints:
                raise Refused(405 if path in {**READS, **WRITES} else 404, f"There is nothing at {path[:80]!r}.")
            given = dict(request.query_params) if reading else await _body(request)
            found = await run_in_threadpool(_answer, endpoints[path], page, given)
            return found if isinstance(found, tuple) else (200, "application/json", as_json(found))
        except Refused as refused:
            return problem(refused.status, refused.sentence)
        except MmdiffError as error:
            return problem(_status(error), error.spelled(page.spell))
        except OSError as error:
            return problem(500, f"The system refuses to read a file ({error.strerror or type(error).__name__}).")
        except MemoryError:
            return problem(500, "The machine grants no more memory. Free some, or start the page with less.")
        except ClientDisconnect:
            raise
        # The page goes on, whatever is wrong with one answer.
        except Exception as error:
            return problem(500, f"This is an error of mmdiff ({type(error).__name__}: {str(error)[:200]}).")

    return app


def _answer(endpoint: Callable[[Page, Json], Json | Answer], page: Page, given: Json) -> Json | Answer:
    """The answer of an endpoint; asked again where the store was replaced while it read, so that its parts did not fit."""
    before = page.reader.names()
    try:
        return endpoint(page, given)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, MmdiffError) or page.reader.names() == before or endpoint in WRITES.values():
            raise
        return endpoint(page, given)


async def _send(response: Any, answer: Answer, scope: Any, receive: Any, send: Any) -> None:
    status, kind, content = answer
    made = response(content, status, media_type=None, headers={"content-type": kind})
    made.raw_headers.extend(HEADERS)
    await cast(Callable[..., Awaitable[None]], made)(scope, receive, send)


async def _body(request: Any) -> Json:
    """The object that a request sends."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "Send JSON, with the content type application/json.")
    length = request.headers.get("content-length", "")
    content = b""
    if not (length.isdigit() and int(length) > MOST_BODY):
        async for part in request.stream():
            content += part
            if len(content) > MOST_BODY:
                break
        else:
            return _object(content)
    raise Refused(413, f"Too much at once: {MOST_BODY:,} bytes can be sent. Label fewer rows at a time.")


def _object(content: bytes) -> Json:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise Refused(400, "What was sent is not JSON.") from None
    if not isinstance(found, dict):
        raise Refused(400, "What was sent is not a JSON object.")
    return found


def as_json(document: Any) -> bytes:
    return json.dumps(_finite(document), ensure_ascii=False, allow_nan=False).encode(errors="replace")


def _finite(value: Any) -> Any:
    """NaN and infinities, which JSON does not have, as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def problem(status: int, sentence: str) -> Answer:
    return status, "application/json", as_json({"error": sentence})


def _status(error: MmdiffError) -> int:
    if isinstance(error, InputError):
        return 400
    return 404 if isinstance(error, Missing) else 500 if isinstance(error, Corrupt) else 409


def _number(given: Json, name: str, default: int | None, most: int, least: int = 0) -> int:
    text = str(given.get(name, "" if default is None else default))
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or not least <= int(text) <= most:
        raise Refused(400, f"{name}={text[:40]!r}: expected a whole number from {least:,} to {most:,}.")
    return int(text)


def _text(given: Json, name: str) -> str:
    if name not in given:
        raise Refused(400, f"{name} is missing.")
    return str(given[name])


def _place(page: Page, given: Json) -> Place:
    place = Place(_number(given, "row", None, (1 << 53) - 1), given.get("role") == "test")
    if not page.reader.has(place):
        what = "test points" if place.test else "rows"
        raise Refused(404, f"There is no row {place.row:,}: the store has {page.reader.rows.total(place.test):,} {what}.")
    return place


def _store(page: Page, _: Json) -> Json:
    reader = page.reader
    rows = reader.rows
    return {
        "name": reader.store.path.absolute().name,
        "path": str(reader.store.path.absolute()),
        "version": mmdiff.__version__,
        "rows": rows.collection,
        "roles": rows.counts(),
        "dims": rows.dims,
        "images": reader.pictures is not None,
        "texts": reader.texts is not None,
        "graph": reader.neighbourhoods is not None,
        "missing": page.told(reader.missing()),
        "names": reader.has_names,
    }


def _artifacts(page: Page, _: Json) -> Json:
    return contents.overview(page.reader.store, page.kinds)


def _artifact(page: Page, given: Json) -> Json:
    return contents.details(page.reader.store, _text(given, "name"), page.kinds)


def _rows(page: Page, given: Json) -> Json:
    start, count = _number(given, "start", 0, (1 << 53) - 1), _number(given, "count", 50, contents.MOST_ROWS, 1)
    artifact = page.reader.store.open_artifact(_text(given, "artifact"))
    return contents.page(artifact, _text(given, "array"), start, count)


def _histogram(page: Page, given: Json) -> Json:
    return contents.histogram(page.reader.store.open_artifact(_text(given, "artifact")), _text(given, "array"))


def _search(page: Page, given: Json) -> Json:
    start, count = _number(given, "start", 0, (1 << 53) - 1), _number(given, "count", 50, MOST_ROWS, 1)
    wanted = str(given.get("q", ""))
    if len(wanted) > _LONGEST_SEARCH:
        raise Refused(400, f"q: {len(wanted):,} characters; ids of up to {_LONGEST_SEARCH:,} are searched.")
    found = page.reader.rows.search(wanted, start, count)
    return {"total": found.total, "more": found.more, "rows": page.reader.describe([Place(row) for row in found.rows])}


def _row(page: Page, given: Json) -> Json:
    found = page.reader.row(_place(page, given), with_path=given.get("path") != "0")
    return found | {"path_note": page.told(found["path_note"])}


def _image(page: Page, given: Json) -> Answer:
    place = _place(page, given)
    pictures, file = page.reader.pictures, page.reader.picture(place)
    if pictures is None or file is None:
        raise Refused(404, "There is no picture of this row.")
    try:
        content, kind = pictures.read(file)
    except NotAPicture as error:
        raise Refused(415, str(error)) from None
    return 200, kind, content


def _suggestions(page: Page, given: Json) -> Json:
    start, count = _number(given, "start", 0, (1 << 53) - 1), _number(given, "count", 60, MOST_ROWS, 1)
    return page.loop.suggestions(str(given.get("by", "coverage")), start, count)


def _classes(page: Page, _: Json) -> Json:
    return {"classes": page.reader.classes(page.loop.predicted_counts())}


def _status_of_loop(page: Page, _: Json) -> Json:
    return page.loop.status(page.told)


def _label(page: Page, given: Json) -> Json:
    """One batch: `rows` with their `labels`, or several `changes` of this form."""
    changes = given.get("changes", [given])
    if not isinstance(changes, list) or not changes or not all(isinstance(change, dict) for change in changes):
        raise Refused(400, "changes: expected a list of rows with their labels.")
    rows = [_checked_rows(change.get("rows")) for change in changes]
    count = sum(map(len, rows))
    if count > MOST_LABELLED:
        raise Refused(400, f"rows: {count:,} rows; up to {MOST_LABELLED:,} are labelled at once.")
    labels: dict[int, list[str]] = {}
    for change, chosen in zip(changes, rows, strict=True):
        own = _checked_labels(change.get("labels"))
        for row in chosen:
            if labels.setdefault(row, own) is not own:
                raise Refused(400, f"rows: row {row:,} is in two changes. Give each row once.")
    return page.loop.recorder.label(labels)


def _checked_rows(rows: Any) -> list[int]:
    if not isinstance(rows, list) or not rows or not all(type(row) is int and row >= 0 for row in rows):
        raise Refused(400, "rows: expected a list of row numbers.")
    return rows


def _checked_labels(labels: Any) -> list[str]:
    if not isinstance(labels, list) or not all(type(label) in (str, int) for label in labels):
        raise Refused(400, "labels: expected a list of classes; an empty one removes the labels.")
    if len(labels) > MOST_LABELS:
        raise Refused(400, f"labels: {len(labels):,} classes; a row may get up to {MOST_LABELS:,} here.")
    return [_checked_label(label) for label in dict.fromkeys(labels)]


def _checked_label(label: str | int) -> str:
    text = str(label).strip() if len(str(label)) <= 2 * LONGEST_LABEL else str(label)
    if not text or len(text) > LONGEST_LABEL or not text.isprintable():
        raise Refused(400, f"labels: a class is one line of 1 to {LONGEST_LABEL:,} characters, not {text[:40]!r}.")
    if text.startswith("-") and text[1:].isdigit():
        raise Refused(400, f"labels: {text[:40]} is no class. Classes are numbered from 0; an empty list removes labels.")
    return text


def _undo(page: Page, _: Json) -> Json:
    return page.loop.recorder.undo()


READS: dict[str, Callable[[Page, Json], Json | Answer]] = {
    "/api/store": _store,
    "/api/artifacts": _artifacts,
    "/api/artifact": _artifact,
    "/api/rows": _rows,
    "/api/histogram": _histogram,
    "/api/search": _search,
    "/api/row": _row,
    "/api/image": _image,
    "/api/suggestions": _suggestions,
    "/api/classes": _classes,
    "/api/status": _status_of_loop,
}
WRITES: dict[str, Callable[[Page, Json], Json]] = {"/api/label": _label, "/api/undo": _undo}
