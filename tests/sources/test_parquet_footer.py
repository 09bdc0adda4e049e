"""Sizes in the footer of a Parquet file: a footer that is cut, endless or contradicts itself is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.parquet_footer import ColumnSize, column_sizes
from mmdiff.formats.sources.rawfile import RawFile

# Fields of the compact protocol: the high half is the distance to the field before, the low half the type.
NO_GROUPS = b"\x36\x00\x00"
LIST_OF_LISTS = b"\x19" + 40 * b"\x19"


def sizes(folder: Path, footer: bytes, length: int | None = None) -> list[ColumnSize]:
    """The sizes of the column `x` in a file that consists of a footer."""
    file = folder / "x.parquet"
    file.write_bytes(footer + (len(footer) if length is None else length).to_bytes(4, "little") + b"PAR1")
    return column_sizes("x.parquet::x", RawFile(file), "x")


def test_sizes_are_those_that_pyarrow_tells(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(50), "y": range(50)}), file, row_group_size=30)
    expected = []
    for group in map(pq.read_metadata(file).row_group, range(2)):
        column = group.column(0)
        expected.append(
            ColumnSize(group.num_rows, column.num_values, column.total_compressed_size, column.total_uncompressed_size)
        )
    assert column_sizes("x", RawFile(file), "x") == expected


def test_a_footer_without_row_groups_has_no_sizes(tmp_path: Path) -> None:
    assert sizes(tmp_path, NO_GROUPS) == []


@pytest.mark.parametrize(
    "field",
    [b"\x6b\x01\x58\x06\x01a", b"\x6b\x00", b"\x6b\x01\x37\x01" + bytes(8)],
    ids=["texts by number", "empty", "fractions by byte"],
)
def test_maps_in_a_footer_are_passed_over(tmp_path: Path, field: bytes) -> None:
    assert sizes(tmp_path, NO_GROUPS[:-1] + field + b"\x00") == []


@pytest.mark.parametrize(
    ("footer", "length"),
    [
        (NO_GROUPS, 100),
        (LIST_OF_LISTS, None),
        (b"\x18\x7fabc\x00", None),
        (b"\x36" + 11 * b"\xff" + b"\x00", None),
        (b"\x3d\x00", None),
        (b"\x36", None),
    ],
    ids=["longer than the file", "nested too deeply", "text beyond the end", "endless number", "unknown type", "cut"],
)
def test_a_footer_that_cannot_be_parsed_is_damaged(tmp_path: Path, footer: bytes, length: int | None) -> None:
    with pytest.raises(UnreadableSource, match=r"^x\.parquet::x: a damaged footer\. Copy or write it again\.$"):
        sizes(tmp_path, footer, length)


def test_a_file_that_is_too_short_for_a_trailer_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(UnreadableSource, match="a damaged footer"):
        column_sizes("x.parquet::x", RawFile(tmp_path / "x.parquet"), "x")


def test_rows_that_no_row_group_has_are_a_contradiction(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSource, match=r"^x\.parquet::x: sizes in the footer that contradict each other\. Copy"):
        sizes(tmp_path, b"\x36\x0a\x00")
