"""Chunks that do not change are shared by hard links, or copied where the file system has none; damaged ones are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdiff.formats.errors import Damaged
from mmdiff.formats.storage import arrays, seam
from mmdiff.formats.storage.arrays import lasting_rows_per_chunk
from mmdiff.formats.store.gc import collect, find_garbage
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Artifact, Store
from tests.support.stores import SMALL_CHUNKS, chunks_of, problems, publish, recipe, values_for

NAME = "descriptors/background"
# Rows of 32 bytes, 256 of them in a chunk.
WIDTH = 8


@pytest.fixture
def published(tmp_path: Path) -> Artifact:
    """600 rows in chunks of 256: two full ones, and one of 88 rows."""
    with chunks_of(SMALL_CHUNKS), Publication(tmp_path / "store", [NAME], "a test") as publication:
        draft = publication.draft(NAME, recipe())
        draft.array("vectors", (600, WIDTH), "float32", 256).fill(values_for((600, WIDTH), "float32"))
        artifact = publication.publish(draft, {"rows": 600, "dropped": {}}, {"command": "a test"})
        publication.link({NAME: artifact})
    return Store.open(tmp_path / "store").open_artifact(NAME)


def continue_it(artifact: Artifact, rows_per_chunk: int = 256) -> Artifact:
    """700 rows, of which the first 600 are those of the artifact."""
    with Publication(artifact.store.path, [NAME], "a test") as publication:
        draft = publication.draft(NAME, recipe(more=rows_per_chunk))
        values = np.concatenate([artifact.array("vectors"), values_for((100, WIDTH), "float32", 1)])
        draft.array("vectors", (700, WIDTH), "float32", rows_per_chunk, artifact).fill(values)
        made = publication.publish(draft, {"rows": 700, "dropped": {}}, {"command": "a test"})
        publication.link({NAME: made})
    return artifact.store.open_artifact(NAME)


def links(artifact: Artifact) -> list[int]:
    return [path.stat().st_nlink for path in sorted((artifact.folder / "vectors").glob("c.*"))]


def test_full_chunks_are_shared_and_the_rest_is_written(published: Artifact) -> None:
    made = continue_it(published)
    assert links(made) == [2, 2, 1]
    assert links(published) == [2, 2, 1]
    np.testing.assert_array_equal(made.array("vectors")[:600], published.array("vectors"))
    np.testing.assert_array_equal(made.array("vectors")[600:], values_for((100, WIDTH), "float32", 1))
    assert problems(Store.open(published.store.path)) == []


def test_other_chunks_are_not_shared(published: Artifact) -> None:
    made = continue_it(published, 128)
    assert links(made) == [1] * 6
    np.testing.assert_array_equal(made.array("vectors")[:600], published.array("vectors"))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP])
def test_chunks_are_copied_where_links_are_not_possible(
    published: Artifact, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    shared = continue_it(published)
    expected = {path.name: path.read_bytes() for path in (shared.folder / "vectors").iterdir()}
    for entry in (shared.folder, shared.store.path / NAME):
        seam.remove_folder(entry)
    publish(published.store.path, NAME, {"vectors": values_for((1, WIDTH), "float32", 5)})

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    copied = continue_it(published)
    assert links(copied) == [1, 1, 1]
    assert {path.name: path.read_bytes() for path in (copied.folder / "vectors").iterdir()} == expected
    assert copied.id == shared.id


def test_damaged_chunk_is_refused_and_not_shared(published: Artifact) -> None:
    file = published.folder / "vectors" / "c.1.0"
    content = bytearray(file.read_bytes())
    content[77] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"descriptors/background, array vectors: chunk c\.1\.0 does not match its checksum"):
        _share(published)
    assert published.store.id(NAME) == published.id


def _share(artifact: Artifact) -> None:
    with Publication(artifact.store.path, [NAME], "a test") as publication:
        publication.draft(NAME, recipe(more=1)).array("vectors", (700, WIDTH), "float32", 256, artifact)


def test_shared_chunks_outlive_the_artifact_that_had_them_first(published: Artifact) -> None:
    made = continue_it(published)
    garbage = find_garbage(made.store)
    assert [item.folder for item in garbage] == [published.folder]
    own = sum(path.stat().st_size for path in published.folder.rglob("*") if path.is_file() and path.stat().st_nlink == 1)
    assert garbage[0].bytes == own
    collect(made.store)
    assert links(made) == [1, 1, 1]
    assert problems(Store.open(made.store.path)) == []


@given(st.integers(0, 3000), st.integers(0, 3000), st.sampled_from([1, 3, 8, 48]))
def test_later_versions_of_an_array_keep_its_full_chunks(rows: int, more: int, width: int) -> None:
    with chunks_of(SMALL_CHUNKS):
        before, after = (lasting_rows_per_chunk(((count, width), "float32")) for count in (rows, rows + more))
        most = lasting_rows_per_chunk(((1 << 20, width), "float32"))
    assert before <= after <= most
    assert most * width * 4 <= max(SMALL_CHUNKS, arrays.PAGE_BYTES * width)
    assert after == most or rows + more <= after
    assert before == after or rows <= before


def test_removed_name_leaves_its_object_until_garbage_is_collected(published: Artifact) -> None:
    with Publication(published.store.path, [NAME], "a test") as publication:
        publication.remove_name(NAME)
        publication.remove_name(NAME)
    assert published.store.id(NAME) is None
    assert published.folder.is_dir()
    collect(published.store)
    assert not published.folder.exists()
