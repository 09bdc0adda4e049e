"""A worker answers for the inputs that it reads: it returns no result of one that changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mmdiff.formats.errors import Damaged
from mmdiff.formats.store.store import Artifact
from mmdiff.runtime import worker
from mmdiff.runtime.progress import Advance
from tests.support.stores import publish


@dataclass(frozen=True)
class Sum:
    """Sums an array of an artifact; a unit is what happens meanwhile."""

    artifact: Artifact

    @contextmanager
    def opened(self) -> Iterator[Callable[[Callable[[], None], Advance], int]]:
        values = self.artifact.array("x")

        def do(meanwhile: Callable[[], None], _: Advance) -> int:
            meanwhile()
            return int(values.sum())

        yield do


def test_a_unit_whose_input_changes_has_no_result_and_the_next_run_begins_afresh(quick_folder: Path) -> None:
    artifact = publish(quick_folder / "store", "models/x", {"x": np.arange(10)})
    file = artifact.folder / "x" / "c.0"

    def do(run: str, meanwhile: Callable[[], None]) -> int:
        return worker._opened(run, Sum(artifact))(meanwhile, lambda _: None)

    try:
        assert do("first", lambda: None) == 45
        with pytest.raises(Damaged, match=r"x/c\.0: changed while it was in use"):
            do("first", lambda: os.utime(file))
        assert do("second", lambda: None) == 45
    finally:
        worker._close()
