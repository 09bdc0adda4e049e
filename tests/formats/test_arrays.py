"""Arrays of any shape, dtype and chunk size are read back as written: by mmdiff as one map, and by stock zarr."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt
from mmdiff.formats.storage.arrays import DTYPES, PAGE_BYTES, ArraySpec, even_rows_per_chunk
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.formats.store.verify import problems_of_files
from tests.support.stores import (
    MEMORY,
    SMALL_CHUNKS,
    chunk_sizes,
    chunks_of,
    dtypes,
    problems,
    publish,
    recipe,
    shapes,
    values_for,
)


def read_with_zarr(artifact: Artifact, array: str) -> NDArray[Any]:
    found = zarr.open_array(str(artifact.folder / array), mode="r")
    return np.asarray(found[...])


@settings(max_examples=30)
@given(shape=shapes, dtype=dtypes, size=chunk_sizes)
def test_array_is_read_back_as_written_by_us_and_by_zarr(shape: tuple[int, ...], dtype: str, size: int) -> None:
    values = values_for(shape, dtype)
    with TemporaryDirectory(dir=MEMORY) as folder, chunks_of(size):
        artifact = publish(Path(folder) / "store", "models/x", {"values": values})
        mapped = artifact.array("values")
        assert mapped.dtype == values.dtype
        assert mapped.shape == values.shape
        assert not mapped.flags.writeable
        assert mapped.flags.c_contiguous or len(shape) == 3
        np.testing.assert_array_equal(mapped, values)
        found = read_with_zarr(artifact, "values")
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)


@given(shape=shapes, dtype=dtypes, size=chunk_sizes)
def test_chunks_are_whole_pages_of_at_most_the_size_asked_for_and_cover_all_rows(
    shape: tuple[int, ...], dtype: str, size: int
) -> None:
    with chunks_of(size):
        spec = ArraySpec.fit(shape, dtype)
    assert spec.chunk_bytes % PAGE_BYTES == 0
    assert spec.chunk_bytes <= max(size, PAGE_BYTES * spec.row_bytes)
    covered = [row for chunk in range(spec.chunks) for row in range(*spec.rows(chunk))]
    assert covered == list(range(spec.table[0]))
    assert ArraySpec.from_json(spec.to_json(), "here") == spec


@given(rows=st.integers(1, 5000), widths=st.tuples(st.integers(1, 300), st.integers(1, 300)), pair=st.tuples(dtypes, dtypes))
def test_arrays_side_by_side_share_rows_per_chunk_and_both_fill_pages(
    rows: int, widths: tuple[int, int], pair: tuple[str, str]
) -> None:
    described = [((rows, width), dtype) for width, dtype in zip(widths, pair, strict=True)]
    with chunks_of(SMALL_CHUNKS):
        together = even_rows_per_chunk(*described)
    for shape, dtype in described:
        assert ArraySpec(shape, dtype, together).chunk_bytes % PAGE_BYTES == 0


@pytest.mark.parametrize(
    "change", [{"shape": 5}, {"shape": None}, {"shape": ["x"]}, {"dtype": []}, {"rows_per_chunk": "1"}, {"shape": [1] * 50_000}]
)
def test_spec_that_mmdiff_does_not_write_is_refused_in_a_short_sentence(change: dict[str, Any]) -> None:
    document = ArraySpec((20, 4), "float32", 256).to_json() | change
    with pytest.raises(Corrupt, match=r"^here: not an array that mmdiff writes \(\{.*\)\. Rebuild the artifact\.$") as refused:
        ArraySpec.from_json(document, "here")
    assert len(str(refused.value)) < 300


def test_spec_that_is_no_object_or_lacks_an_entry_is_refused() -> None:
    with pytest.raises(Corrupt, match=r"^here: not an array that mmdiff writes \(5\)\."):
        ArraySpec.from_json(5, "here")  # type: ignore[arg-type]
    with pytest.raises(Corrupt, match=r"^here: an array without 'dtype' in its manifest\."):
        ArraySpec.from_json({"shape": [1]}, "here")


def test_spec_that_is_nested_too_deeply_to_be_shown_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(Corrupt, match=r"^here: not an array that mmdiff writes \(nested too deeply to be shown\)\."):
        ArraySpec.from_json({"shape": nested, "dtype": "float32", "rows_per_chunk": 1024}, "here")


def test_array_that_could_not_be_read_back_is_not_begun(quick_folder: Path) -> None:
    with pytest.raises(ValueError, match="float64"):
        publish(quick_folder / "store", "models/x", {"values": np.zeros(3)})
    with pytest.raises(ValueError, match="whole pages"):
        ArraySpec.fit((100, 3), "float32", 100)
    assert not (quick_folder / "store").exists()


def test_padding_of_the_last_chunk_is_small() -> None:
    spec = ArraySpec.fit((16 * (1 << 20) + 1, 256), "float32")
    waste = spec.bytes_on_disk - spec.shape[0] * spec.row_bytes
    assert waste < spec.bytes_on_disk / 1000


def test_store_opens_as_a_zarr_hierarchy_down_to_each_array(quick_folder: Path) -> None:
    values = {dtype: values_for((300, 3), dtype) for dtype in DTYPES}
    with chunks_of(SMALL_CHUNKS):
        publish(quick_folder / "store", "models/x", values)
    root = zarr.open_group(str(quick_folder / "store"), mode="r")
    group = root["models/x"]
    assert isinstance(group, zarr.Group)
    attributes = group.attrs["mmdiff"]
    assert isinstance(attributes, dict)
    assert attributes["kind"] == "descriptors"
    assert {name for name, _ in group.arrays()} == set(DTYPES)
    for dtype, expected in values.items():
        array = group[dtype]
        assert isinstance(array, zarr.Array)
        np.testing.assert_array_equal(np.asarray(array[...]), expected)


@pytest.mark.parametrize("place", [0, 5000, -5, -1], ids=["first byte", "middle", "padding", "checksum"])
def test_zarr_refuses_a_chunk_with_a_flipped_bit(quick_folder: Path, place: int) -> None:
    with chunks_of(SMALL_CHUNKS):
        artifact = publish(quick_folder / "store", "models/x", {"values": values_for((5000,), "float32")})
    chunk = artifact.folder / "values" / "c.2"
    damaged = bytearray(chunk.read_bytes())
    damaged[place] ^= 16
    chunk.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"(?i)checksum|crc"):
        read_with_zarr(artifact, "values")
    with pytest.raises(Corrupt):
        artifact.array("values")
    assert [problem.chunk for problem in problems_of_files(artifact)] == ["c.2"]


def test_artifact_without_arrays_is_published_and_verifies(quick_folder: Path) -> None:
    facts = {"width": 3, "dims": 3, "reduces": False, "rows_sampled": 0, "explained_variance": 1.0}
    of = recipe("pca", dims=3, normalize=True, on_bad="error")
    artifact = publish(quick_folder / "store", "models/pca", {}, of, facts)
    assert artifact.manifest.arrays == {}
    assert problems(Store.open(quick_folder / "store")) == []


@pytest.mark.parametrize("i", [-1, 2])
def test_a_string_outside_the_list_is_an_index_error(i: int) -> None:
    with pytest.raises(IndexError):
        Strings.of(["a", "b"])[i]
