"""The peak of anonymous memory is sampled while a run lasts, and mapped files do not count."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np

from mmdiff.runtime.memory import PeakMemory, anonymous_bytes

MIB = 1 << 20


def test_peak_has_memory_that_was_freed_meanwhile_and_not_that_of_mapped_files(tmp_path: Path) -> None:
    np.save(tmp_path / "file.npy", np.ones(64 * MIB, np.uint8))
    before = anonymous_bytes()
    peak = PeakMemory()
    held = np.ones(96 * MIB, np.uint8)
    time.sleep(0.2)
    del held
    assert int(np.load(tmp_path / "file.npy", mmap_mode="r").sum()) == 64 * MIB
    time.sleep(0.1)
    assert 90 * MIB < peak.bytes - before < 150 * MIB


def test_sampling_ends_with_its_object() -> None:
    before = set(threading.enumerate())
    peak = PeakMemory()
    (sampler,) = set(threading.enumerate()) - before
    del peak
    gc.collect()
    sampler.join(5)
    assert not sampler.is_alive()
