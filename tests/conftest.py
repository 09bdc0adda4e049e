"""Settings for all tests: examples are the same in every run, and never timed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

if os.environ.get("NUMBA_DISABLE_JIT"):
    from tests.support import interpreted

    interpreted.install()

from mmdiff.formats.store.store import Store
from mmdiff.runtime.threads import limit_cores
from tests.support.stores import MEMORY, Inputs, make_inputs, make_store

settings.register_profile(
    "mmdiff",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("mmdiff")

# What a shell starts in the background ignores Ctrl-C, and would let the tests' own interruptions pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    """Ends the limit of threads, which holds for a whole process, with the test that sets it, or whose Dask worker does."""
    before = limit_cores(None)
    yield
    limit_cores(before)


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: for tests that sync thousands of files."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return make_inputs(tmp_path / "inputs")


@pytest.fixture
def store(quick_folder: Path, inputs: Inputs) -> Store:
    """A store with a background and full seeds, in several chunks each."""
    return make_store(quick_folder / "store", inputs)
