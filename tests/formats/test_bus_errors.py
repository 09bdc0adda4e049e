"""The handler of SIGBUS names the file of a map, and leaves errors elsewhere to the handler before."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmdiff.formats.storage import bus_errors

ADDRESS, CHUNK = 1 << 40, 4096


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of the system that the handler makes, with a map of two chunks."""
    made: list[tuple[Any, ...]] = []

    def leave(code: int) -> None:
        made.append(("exit", code))
        raise SystemExit(code)

    monkeypatch.setattr(os, "write", lambda *arguments: made.append(("write", *arguments)))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(
        bus_errors, "_libc", SimpleNamespace(sigaction=lambda *arguments: made.append(("sigaction", *arguments)))
    )
    one = bus_errors._Map(ADDRESS, 2 * CHUNK, CHUNK, lambda chunk: Path(f"/store/c.{chunk}"))
    monkeypatch.setattr(bus_errors, "_maps", {ADDRESS: one})
    return made


def fail_at(address: int) -> None:
    information = bus_errors._Information(signal.SIGBUS, 0, 2, address)
    bus_errors._handle(signal.SIGBUS, ctypes.addressof(information), 0)


def test_an_error_in_a_map_names_the_file_and_ends_the_process(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(SystemExit):
        fail_at(ADDRESS + CHUNK + 5)
    [(_, descriptor, text), ended] = calls
    assert descriptor == 2
    assert text.startswith(b"mmdiff: /store/c.1: the file was shortened while it was in use")
    assert ended == ("exit", bus_errors.EXIT_CODE)


@pytest.mark.parametrize("address", [0, ADDRESS - 1, ADDRESS + 2 * CHUNK])
def test_an_error_elsewhere_goes_to_the_handler_before(calls: list[tuple[Any, ...]], address: int) -> None:
    fail_at(address)
    [(name, number, _, old)] = calls
    assert (name, number, old) == ("sigaction", signal.SIGBUS, None)
