"""HDF5 reads what was never written as fill values, and follows links out of the file. Both are refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.opening import open_source

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)


def refused(path: Path, message: str, inner: str = "emb") -> None:
    with pytest.raises(UnreadableSource, match=message):
        open_source([f"{path}::{inner}"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (16, 4)},
        {"chunks": (16, 4), "compression": "gzip", "shuffle": True},
        {"chunks": (7, 6), "fletcher32": True},
        {"chunks": (40, 6), "maxshape": (None, 6)},
        {"chunks": (8, 6), "maxshape": (None, None), "compression": "lzf"},
    ],
)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_datasets_that_were_written_whole_are_read(tmp_path: Path, options: dict[str, Any], libver: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        file.create_dataset("emb", data=X, **options)
    np.testing.assert_array_equal(open_source([str(tmp_path / "x.h5")]).read(0, 40), X)


def test_a_compact_dataset_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple(X.shape)
        dataset = h5py.h5d.create(file.id, b"emb", h5py.h5t.NATIVE_FLOAT, space, properties)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, X)
    np.testing.assert_array_equal(open_source([str(tmp_path / "x.h5")]).read(0, 40), X)


def test_unwritten_chunks_are_not_fill_values(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("emb", X.shape, "f4", chunks=(16, 4), fillvalue=0.5)
        dataset[:16] = X[:16]
    refused(tmp_path / "x.h5", r"x\.h5::emb: 2 of 6 chunks are in the file; the others would read as fill values. Write")


@pytest.mark.parametrize("options", [{}, {"chunks": (16, 4)}, {"chunks": (16, 4), "compression": "gzip"}])
def test_a_dataset_that_was_never_written_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("emb", X.shape, "f4", **options)
    refused(tmp_path / "x.h5", r"x\.h5::emb: .*would read as fill values")


@pytest.mark.parametrize("present", [True, False])
def test_virtual_datasets_are_refused(tmp_path: Path, present: bool) -> None:
    if present:
        with h5py.File(tmp_path / "part.h5", "w") as file:
            file.create_dataset("emb", data=X)
    layout = h5py.VirtualLayout(X.shape, "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "part.h5"), "emb", X.shape)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_virtual_dataset("emb", layout, fillvalue=7)
    refused(tmp_path / "x.h5", r"x\.h5::emb: a virtual dataset.*missing.*Name those files")


def test_external_storage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(X.tobytes())
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("emb", X.shape, "f4", external=[(str(tmp_path / "secret"), 0, X.nbytes)])
    refused(tmp_path / "x.h5", r"x\.h5::emb: its values lie in another file, .*secret.*Write")


def test_external_links_are_refused_and_not_opened(tmp_path: Path) -> None:
    # Opening a pipe would block.
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("deep/emb", data=X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["outside"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/deep")
        file["emb"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/deep/emb")
        file["soft"] = h5py.SoftLink("/emb")
        file["group/soft"] = h5py.SoftLink("/outside/emb")
        file["piped"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/emb")
    for inner in ("emb", "outside/emb", "soft", "group/soft", "piped"):
        refused(tmp_path / "x.h5", r"x\.h5::.* is a link to another file, .*(other\.h5|pipe)\. Name that file", inner)


def test_soft_links_within_the_file_are_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("deep/emb", data=X)
        file["deep/near"] = h5py.SoftLink("emb")
        file["emb"] = h5py.SoftLink("/deep/near")
    np.testing.assert_array_equal(open_source([f"{tmp_path / 'x.h5'}::emb"]).read(3, 9), X[3:9])


def test_soft_links_in_a_circle_and_into_nothing_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
        file["lost"] = h5py.SoftLink("/none")
    refused(tmp_path / "x.h5", r"x\.h5::a: links that lead in a circle", "a")
    refused(tmp_path / "x.h5", r"x\.h5: no 'lost' in it", "lost")


def test_a_chunk_that_needs_far_more_memory_than_the_file_has_bytes_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("emb", (1 << 20, 256), "f4", chunks=(1 << 20, 256), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), b"a few bytes")
    refused(tmp_path / "x.h5", r"x\.h5::emb: a chunk takes 1,073,741,824 bytes.*smaller chunks")


def test_a_path_that_goes_on_below_a_dataset_leads_nowhere(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("emb", data=X)
    refused(tmp_path / "x.h5", r"emb/rows", inner="emb/rows")
