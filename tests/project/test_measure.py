"""Benchmarks measure the memory of a process, and can run it with the memory of a smaller machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.measure import limited_group, watch

_HOLD = "import time; held = bytes(range(256)) * {pieces}; time.sleep(0.3); print(len(held))"
_LEFT = "from mmdiff.runtime.memory import available_bytes; print(available_bytes())"


def test_anonymous_memory_of_a_process_is_measured() -> None:
    few, many = (watch([sys.executable, "-c", _HOLD.format(pieces=pieces)]) for pieces in (1, 1 << 18))
    assert int(many.output) == 64 << 20
    assert 60 < many.megabytes - few.megabytes < 75


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="failed"):
        watch([sys.executable, "-c", "raise SystemExit(3)"])


def test_limited_process_sees_the_memory_of_a_smaller_machine() -> None:
    size = 600 << 20
    with limited_group(size) as group:
        if group is None:
            pytest.skip("control groups cannot be made here")
    assert not group.exists()
    left = int(watch([sys.executable, "-c", _LEFT], size).output)
    assert 0.5 * size < left <= size


def test_process_runs_without_permission_to_limit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "mkdir", refused)
    assert watch([sys.executable, "-c", "print(1)"], 600 << 20).output == "1\n"
