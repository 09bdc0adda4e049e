"""Arrays in `.npz` and `.safetensors` files: the values that were written, and refusals of what the files lie about."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources import npz
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.storage.strings import Strings

X = np.random.default_rng(0).standard_normal((100, 6)).astype(np.float32)
# Longer than the bytes in which a header is looked for.
LONG = np.random.default_rng(1).standard_normal((1000, 6)).astype(np.float32)


def column(path: Path, name: str) -> list[Any]:
    found = read_column(f"{path}::{name}").values
    return list(found) if isinstance(found, Strings) else found.tolist()


def npy(values: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


@settings(max_examples=30)
@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 8),
    dtype=st.sampled_from(["<f2", "<f4", ">f4", "<f8", "|u1", "|i1"]),
    order=st.sampled_from("CF"),
    ending=st.sampled_from(["npz", "compressed.npz", "safetensors"]),
    distance=st.integers(1, 200),
    data=st.data(),
)
def test_any_range_of_rows_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    width: int,
    dtype: str,
    order: Any,
    ending: str,
    distance: int,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("arrays") / f"x.{ending}"
    array = np.random.default_rng(rows).integers(0, 100, (rows, width)).astype(dtype, order=order)
    arrays: dict[str, Any] = {"first": np.arange(rows), "emb": array, "last": np.arange(3)}
    if ending == "safetensors":
        save_file({name: np.ascontiguousarray(values, values.dtype.newbyteorder("=")) for name, values in arrays.items()}, path)
    else:
        (np.savez_compressed if ending == "compressed.npz" else np.savez)(path, **arrays)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(npz, "_LEAST_DISTANCE", distance)
        source = open_source([str(path)])
        read = source.read(start, stop)
    assert (source.name, source.rows, source.width) == (f"{path}::emb", rows, width)
    assert read.flags.c_contiguous
    assert read.dtype == source.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(read, array[start:stop])
    assert column(path, "first") == list(range(rows))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_columns_of_archives_are_those_of_npy(tmp_path: Path, save: Any) -> None:
    columns = {
        "numbers": np.array([3, -1, 2], ">i2"),
        "floats": np.array([3, np.nan, 2]),
        "texts": np.array(["cat", "", "äöü"]),
        "bytes": np.array([b"1", b"2", b"30"]),
        "several": np.array([[1, 2], [3, -1], [-1, -1]]),
        "hashes": np.array([2**64 - 1, 1, 2], np.uint64),
    }
    save(tmp_path / "y.npz", **columns)
    for name, values in columns.items():
        np.save(tmp_path / "y.npy", values)
        found, expected = read_column(f"{tmp_path / 'y.npz'}::{name}"), read_column(str(tmp_path / "y.npy"))
        assert found.per_row == expected.per_row
        assert list(found.values) == list(expected.values)


def test_the_only_array_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X)
    save_file({"weights": X}, tmp_path / "x.safetensors")
    np.savez(tmp_path / "y.npz", np.arange(4))
    assert open_source([str(tmp_path / "x.npz")]).name == f"{tmp_path / 'x.npz'}::arr_0"
    assert open_source([str(tmp_path / "x.safetensors")]).width == 6
    assert np.asarray(read_column(str(tmp_path / "y.npz")).values).tolist() == [0, 1, 2, 3]


def test_arrays_are_listed_where_the_name_does_not_decide(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=X, b=X.astype("f2"), y=np.arange(100), o=np.array([{}], object))
    save_file({"a": X, "b": X, "y": np.arange(100)}, tmp_path / "x.safetensors")
    for name in ("x.npz", "x.safetensors"):
        with pytest.raises(UnreadableSource, match=rf"2 candidates.*{name}::a \(100 x 6 float32\); .*{name}::b"):
            open_source([str(tmp_path / name)])
        with pytest.raises(UnreadableSource, match=rf"{name}: no 'c' in it\. Say which to read: .*{name}::a"):
            open_source([f"{tmp_path / name}::c"])
        with pytest.raises(UnreadableSource, match=rf"{name}::y: has 1 dimension"):
            open_source([f"{tmp_path / name}::y"])
        with pytest.raises(UnreadableSource, match=rf"{name}: no 'z' in it(?=.*{name}::a)(?=.*{name}::y)"):
            read_column(f"{tmp_path / name}::z")
    with pytest.raises(UnreadableSource, match=r"x\.npz::o: holds Python objects \(a pickle\), which mmdiff never loads"):
        open_source([f"{tmp_path / 'x.npz'}::o"])


def test_bfloat16_is_read_as_float32(tmp_path: Path) -> None:
    tensor = torch.tensor(X).bfloat16()
    save_torch({"emb": tensor}, tmp_path / "x.safetensors")
    source = open_source([str(tmp_path / "x.safetensors")])
    assert source.dtype == np.float32
    np.testing.assert_array_equal(source.read(3, 70), tensor.float().numpy()[3:70])
    with pytest.raises(UnreadableSource, match=r"x\.safetensors::emb: values of type bfloat16, expected integers"):
        read_column(str(tmp_path / "x.safetensors"))


def test_threads_read_a_compressed_array_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "_LEAST_DISTANCE", 1000)
    monkeypatch.setattr(npz, "_BLOCK", 300)
    np.savez_compressed(tmp_path / "x.npz", X)
    source = open_source([str(tmp_path / "x.npz")])
    starts = [*range(87, -1, -3), *range(0, 90, 3)]
    with ThreadPoolExecutor(4) as pool:
        for start, rows in zip(starts, pool.map(lambda s: source.read(s, s + 10), starts), strict=True):
            np.testing.assert_array_equal(rows, X[start : start + 10])


def test_a_damaged_member_is_noticed_by_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "_MOST_BLOCK", 1000)
    np.savez_compressed(tmp_path / "x.npz", LONG)
    raw = bytearray((tmp_path / "x.npz").read_bytes())
    directory = raw.index(b"PK\1\2")
    raw[directory + 16] ^= 1
    (tmp_path / "x.npz").write_bytes(raw)
    source = open_source([str(tmp_path / "x.npz")])
    np.testing.assert_array_equal(source.read(0, 900), LONG[:900])
    with pytest.raises(UnreadableSource, match=r"x\.npz::arr_0: .*its checksum or its end is not the one in the archive"):
        source.read(900, 1000)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_that_was_cut_short_is_refused(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "x.npz", X)
    content = (tmp_path / "x.npz").read_bytes()
    for size in (0, 10, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "x.npz").write_bytes(content[:size])
        with pytest.raises(UnreadableSource, match=r"x\.npz: not readable as an \.npz archive"):
            open_source([str(tmp_path / "x.npz")])


def rewrite(path: Path, content: bytes, method: int = zipfile.ZIP_DEFLATED, **promises: int) -> Path:
    """An archive whose directory promises other sizes than the member has."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("emb.npy", content)
        for key, value in promises.items():
            setattr(archive.getinfo("emb.npy"), key, value)
    return path


@pytest.mark.parametrize(
    ("method", "promises", "message"),
    [
        (zipfile.ZIP_DEFLATED, {"file_size": 1 << 50}, r"bytes that expand to 1,125,899,906,842,624, which is impossible"),
        (zipfile.ZIP_DEFLATED, {"file_size": 100_000}, r"the header promises 1000 x 6 float32 .* bytes too many"),
        (zipfile.ZIP_DEFLATED, {"compress_size": 1 << 40}, r"bytes [0-9]+ to [0-9,]+ of a file of [0-9,]+\. It is damaged"),
        (zipfile.ZIP_STORED, {"file_size": 100_000}, r"although they are not compressed\. It is damaged"),
        (zipfile.ZIP_STORED, {"header_offset": 1 << 40}, r"begins beyond the end of the archive"),
        (zipfile.ZIP_STORED, {"header_offset": 3}, r"does not begin where the archive says"),
        (zipfile.ZIP_BZIP2, {}, r"compressed in another way than numpy does"),
        (zipfile.ZIP_STORED, {"flag_bits": 1}, r"encrypted, or compressed in another way"),
    ],
)
def test_a_directory_that_lies_is_refused(tmp_path: Path, method: int, promises: dict[str, int], message: str) -> None:
    file = rewrite(tmp_path / "x.npz", npy(LONG), method, **promises)
    with pytest.raises(UnreadableSource, match=r"x\.npz(::emb)?: .*" + message):
        open_source([f"{file}::emb"])


def test_a_member_that_ends_early_is_refused(tmp_path: Path) -> None:
    content = npy(LONG)
    file = rewrite(tmp_path / "x.npz", content[:15_000], file_size=len(content))
    source = open_source([str(file)])
    with pytest.raises(UnreadableSource, match=r"x\.npz::emb: not readable as an array \(it ends after 15,000 bytes\)"):
        source.read(0, 1000)


def test_a_column_that_expands_without_bound_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "y.npz", label=np.zeros((2, 15_000_000), np.int64))
    with pytest.raises(UnreadableSource, match=r"y\.npz::label: 2 rows take 240,000,128 bytes of memory or more"):
        read_column(str(tmp_path / "y.npz"))


def test_a_large_compressed_array_in_fortran_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "FREE_BYTES", 1000)
    np.savez_compressed(tmp_path / "x.npz", emb=np.asfortranarray(X))
    with pytest.raises(UnreadableSource, match=r"x\.npz::emb: a compressed array in Fortran order.*ascontiguousarray"):
        open_source([f"{tmp_path / 'x.npz'}::emb"])


def tensors(header: Any, data: bytes = bytes(24)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a header of 0 bytes in a file of 0\. It is truncated"),
        (b"\1\2\3", r"It is truncated"),
        (struct.pack("<Q", 1 << 60) + b"{}", r"a header of 1,152,921,504,606,846,976 bytes in a file of 10"),
        (tensors(b"{"), r"a header that is not readable as JSON"),
        (tensors(b"[" * 100_000), r"a header that is not readable as JSON"),
        (tensors(b"[1]"), r"a header that is no table of tensors"),
        (tensors(b'{"a": 1, "a": 2}'), r"not readable as JSON \(a name occurs twice\)"),
        (tensors({"a": 1}), r"x\.safetensors::a: a damaged entry in the header, 1"),
        (tensors({"a": entry(shape=[2, -3])}), r"a damaged entry"),
        (tensors({"a": entry(shape=[2, True])}), r"a damaged entry"),
        (tensors({"a": entry(shape=[1] * 50)}), r"a damaged entry"),
        (tensors({"a": entry(offsets=[24, 0])}), r"a damaged entry"),
        (tensors({"a": entry(offsets=[0, 1 << 40])}), r"2 x 3 F32 take 24 bytes, but it has 1,099,511,627,776"),
        (tensors({"a": entry(shape=[1 << 62, 1 << 62])}), r"take [0-9,]+ bytes, but it has 24"),
        (tensors({"a": entry(shape=[1 << 32, 4], offsets=[0, 1 << 36])}), r"bytes [0-9]+ to [0-9,]+ of a file of"),
        (tensors({"a": entry(shape=[2, 2], offsets=[0, 16])}), r"have 16 bytes, but 24 follow the header"),
        (tensors({"a": entry(shape=[2, 2], offsets=[8, 24])}), r"its tensors leave a gap at byte 8"),
        (tensors({"a": entry(), "b": entry(shape=[1], offsets=[0, 4])}), r"its tensors overlap"),
        (tensors({"a": entry("F8_E4M3", [4, 6])}), r"x\.safetensors::a: values of type F8_E4M3, expected one of F64, F32"),
    ],
)
def test_tensors_that_contradict_the_file_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(UnreadableSource, match=message):
        open_source([f"{tmp_path / 'x.safetensors'}::a"])


def test_a_header_of_gigabytes_is_not_read(quick_folder: Path) -> None:
    file = quick_folder / "x.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 33))
    with file.open("r+b") as stream:
        stream.truncate(1 << 34)
    with pytest.raises(UnreadableSource, match=r"x\.safetensors: a header of 8,589,934,592 bytes, expected at most 16,777,216"):
        open_source([str(file)])


def test_metadata_are_no_tensor(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(tensors({"__metadata__": {"format": "pt"}, "a": entry()}))
    assert open_source([str(tmp_path / "x.safetensors")]).read(0, 2).tolist() == [[0, 0, 0], [0, 0, 0]]
