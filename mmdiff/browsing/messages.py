"""Messages between the page and the process that computes for it: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mmdiff.formats.errors import Call, Parameter, Part, Placeholder
from mmdiff.formats.store.manifest import Json


def line_of(message: Json) -> bytes:
    """A message as a line."""
    return json.dumps(message).encode() + b"\n"


def message_of(line: bytes) -> Json:
    found: Json = json.loads(line)
    return found


def parts_to_json(parts: Sequence[Part]) -> list[Any]:
    """The parts of an error, which is spelled where it is shown."""
    return [_to_json(part) for part in parts]


def _to_json(part: Part) -> Any:
    if isinstance(part, Parameter):
        return {"parameter": part.name, **({"value": _value(part.value)} if part.has_value else {})}
    if isinstance(part, Call):
        parameters = {name: _value(value) for name, value in part.parameters.items()}
        return {"call": part.method, "arguments": [_value(each) for each in part.arguments], "parameters": parameters}
    return str(part)


def _value(value: Any) -> Any:
    if isinstance(value, Placeholder) or not isinstance(value, str | int | float | bool | type(None)):
        return {"placeholder": str(value)}
    return value


def parts_of_json(entries: Sequence[Any]) -> tuple[Part, ...]:
    """The parts that `parts_to_json` wrote."""
    return tuple(_of_json(entry) for entry in entries)


def _of_json(entry: Any) -> Part:
    if isinstance(entry, str):
        return entry
    if "parameter" in entry:
        return Parameter(entry["parameter"], _given(entry["value"])) if "value" in entry else Parameter(entry["parameter"])
    parameters = {name: _given(value) for name, value in entry["parameters"].items()}
    return Call(entry["call"], tuple(_given(each) for each in entry["arguments"]), parameters)


def _given(value: Any) -> Any:
    return Placeholder(value["placeholder"]) if isinstance(value, dict) else value
