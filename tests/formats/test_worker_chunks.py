"""Chunks that workers write get their name from the run that ordered them."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from mmdiff.formats.errors import ClusterError, Damaged
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.worker_chunks import WorkerTarget, adopt

VALUES = np.arange(30, dtype=np.float32).reshape(10, 3)


@pytest.fixture
def writer(tmp_path: Path) -> ArrayWriter:
    return ArrayWriter(tmp_path / "array", ArraySpec.fit(VALUES.shape, "float32", 1024))


def test_a_chunk_of_a_worker_is_part_of_the_array_once_the_run_adopts_it(writer: ArrayWriter) -> None:
    worker = WorkerTarget.of(writer).writer()
    worker.write(0, VALUES)
    assert not (writer.folder / "c.0.0").exists()
    adopt(writer, worker.written)
    out = np.empty_like(VALUES)
    writer.read(0, out)
    np.testing.assert_array_equal(out, VALUES)


def test_a_chunk_that_the_worker_wrote_elsewhere_is_an_error_that_says_so(writer: ArrayWriter) -> None:
    worker = WorkerTarget.of(writer).writer()
    worker.write(0, VALUES)
    [written] = worker.written
    (writer.folder / written.file).unlink()
    with pytest.raises(ClusterError, match=r"c\.0\.0\..*\.part: a worker has written it, but it is not here\. Workers need"):
        adopt(writer, worker.written)
    assert not writer.crcs


def test_a_worker_checks_an_array_of_the_draft_before_it_reads_it(writer: ArrayWriter) -> None:
    writer.fill(VALUES)
    # A copy restores its state like an array that was sent to a worker.
    np.testing.assert_array_equal(copy.copy(writer).mapped(), VALUES)
    file = writer.folder / "c.0.0"
    content = bytearray(file.read_bytes())
    content[5] ^= 4
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"chunk c\.0\.0 does not match its checksum"):
        copy.copy(writer).mapped()
