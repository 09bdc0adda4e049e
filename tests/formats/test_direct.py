"""Data written by direct I/O is read back unchanged, for any size and alignment."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdiff.formats.storage import direct, seam
from mmdiff.formats.storage.arrays import PAGE_BYTES, ArraySpec
from mmdiff.formats.storage.crc import crc32c, crc32c_of_file
from mmdiff.formats.storage.direct import page_aligned, read_pages
from mmdiff.formats.store.array_writer import ArrayWriter
from mmdiff.formats.store.verify import crc_of_complete_chunk

sizes = st.one_of(st.integers(0, 3 * PAGE_BYTES), st.sampled_from([PAGE_BYTES, 64 * PAGE_BYTES, 64 * PAGE_BYTES + 1]))


@settings(max_examples=22)
@given(sizes=st.lists(sizes, max_size=4), shift=st.sampled_from([0, 1, 64]), copied=st.sampled_from([PAGE_BYTES, 1 << 16]))
def test_a_file_written_by_direct_io_is_the_same(
    quick_folder: Path, tmp_path: Path, sizes: list[int], shift: int, copied: int
) -> None:
    draw = np.random.default_rng(0)
    pieces = [np.zeros(8, np.uint8)]
    for size in sizes:
        memory = page_aligned((size + shift,), "uint8")
        memory[:] = draw.integers(0, 256, size + shift)
        pieces.insert(0, memory[shift:])
    for folder in (quick_folder, tmp_path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(seam, "_COPIED_BYTES", copied)
            seam.write_file(folder / "file", *pieces, cached=False)
        assert (folder / "file").read_bytes() == b"".join(piece.tobytes() for piece in pieces)


@pytest.mark.parametrize("shift", [0, 1])
def test_whole_pages_are_written_by_direct_io_wherever_they_lie_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    write, sizes = os.write, {True: 0, False: 0}

    def counting(descriptor: int, data: memoryview) -> int:
        sizes[bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)] += len(data)
        return write(descriptor, data)

    with (tmp_path / "probe").open("wb") as file:
        possible = direct.enable_direct_io(file.fileno())
    monkeypatch.setattr(os, "write", counting)
    seam.write_file(tmp_path / "file", page_aligned((5 * PAGE_BYTES + 7 + shift,), "uint8")[shift:], cached=False)
    assert sizes == ({True: 5 * PAGE_BYTES, False: 7} if possible else {True: 0, False: 5 * PAGE_BYTES + 7})


@pytest.mark.parametrize(("size", "page"), [(0, PAGE_BYTES), (5, PAGE_BYTES), ((2 << 20) - 1, PAGE_BYTES), (5 << 20, 2 << 20)])
def test_memory_begins_with_a_page(size: int, page: int) -> None:
    memory = page_aligned((size,), "uint8")
    assert memory.shape == (size,)
    assert not memory.any()
    assert not size or memory.__array_interface__["data"][0] % page == 0


@pytest.mark.parametrize("rows", [1, 1000, 1024, 5000])
@pytest.mark.parametrize("shift", [0, 3])
def test_chunks_are_read_as_they_were_written(tmp_path: Path, rows: int, shift: int) -> None:
    spec = ArraySpec.fit((rows, 24), "uint16", 1024)
    values = page_aligned((rows + shift, 24), "uint16")[shift:]
    values[:] = np.random.default_rng(1).integers(0, 1 << 16, values.shape)
    writer = ArrayWriter(tmp_path / "array", spec)
    out = page_aligned((rows + shift, 24), "uint16")[shift:]
    for chunk in range(spec.chunks):
        start, stop = spec.rows(chunk)
        writer.write(chunk, values[start:stop], cached=False)
        assert crc_of_complete_chunk(writer.folder / spec.chunk_file(chunk), spec) == writer.crcs[chunk]
        writer.read(chunk, out[start:stop])
    np.testing.assert_array_equal(out, values)


def test_where_it_cannot_be_done_the_usual_way_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).integers(0, 256, 10_000).astype(np.uint8)
    for module in (seam, direct):
        monkeypatch.setattr(module, "whole_pages", lambda view: view.nbytes // PAGE_BYTES * PAGE_BYTES)
    seam.write_file(tmp_path / "file", values, cached=False)
    assert (tmp_path / "file").read_bytes() == values.tobytes()
    out = np.zeros_like(values)
    with (tmp_path / "file").open("rb") as file:
        read_pages(file.fileno(), out)
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("size", [0, PAGE_BYTES, PAGE_BYTES + 10])
def test_a_file_that_is_too_short_is_noticed(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(size))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(EOFError, match=f"ends after {size} of 12288 bytes"):
            read_pages(descriptor, page_aligned((3 * PAGE_BYTES,), "uint8"))
    finally:
        os.close(descriptor)


def test_a_file_without_direct_io_is_read_the_usual_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = page_aligned((2 * PAGE_BYTES,), "uint8")
    values[:] = np.arange(values.size) % 251
    (tmp_path / "file").write_bytes(values.tobytes())
    fcntl_of_system = fcntl.fcntl

    def refusing(descriptor: int, command: int, *flags: int) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return fcntl_of_system(descriptor, command, *flags)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    out = page_aligned(values.shape, "uint8")
    with (tmp_path / "file").open("rb") as file:
        assert not direct.enable_direct_io(file.fileno())
        read_pages(file.fileno(), out)
    np.testing.assert_array_equal(out, values)


def test_rows_of_another_shape_than_the_chunk_are_not_written(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "array", ArraySpec.fit((10, 3), "float32", 1024))
    with pytest.raises(ValueError, match=r"array: chunk 0 takes rows of shape \(10, 3\), not \(10, 2\)"):
        writer.write(0, np.zeros((10, 2), np.float32))
    assert not (tmp_path / "array" / "c.0.0").exists()


def test_a_file_that_ends_early_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    for size, expected in ((4, crc32c(b"text")), (5, None)):
        with (tmp_path / "file").open("rb") as file:
            assert crc32c_of_file(file.fileno(), size) == expected
