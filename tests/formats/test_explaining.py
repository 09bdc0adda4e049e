"""Disk errors that nothing else explains are sentences at the edge of a stage; the first error of several is the one told."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mmdiff.formats.errors import BadRow, Damaged, DiskError, DiskFull
from mmdiff.formats.storage import seam
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.files import open_chunk
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import import_descriptors
from tests.support.stores import Inputs, publish, recipe, values_for


@explaining
def fail(error: BaseException) -> None:
    """Fails."""
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.EIO, "Input/output error", "/data/store/objects"), DiskError, r"^/data/store/objects: cannot .*\."),
        (OSError(errno.EIO, "Input/output error", b"/data/store"), DiskError, r"^/data/store: cannot .*\."),
        (OSError(errno.ENOSPC, "No space left on device", "/data/store"), DiskFull, r"^/data/store: .* full"),
        (InterruptedError(errno.EINTR, "Interrupted system call"), DiskError, r"Interrupted system call"),
    ],
)
def test_error_of_the_system_becomes_a_sentence(error: OSError, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        fail(error)


@pytest.mark.parametrize("error", [BadRow("row 3: NaN."), BrokenPipeError(errno.EPIPE, "Broken pipe"), OSError("no number")])
def test_other_errors_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        fail(error)
    assert raised.value is error


def test_unreadable_folder_is_a_sentence_of_the_stage(inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir

    def failing(path: Any = ".") -> list[str]:
        if Path(path).name == "object":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return listdir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", failing)
        with pytest.raises(DiskError, match="object: cannot"):
            import_descriptors(tmp_path / "store", inputs.request())
    import_descriptors(tmp_path / "store", inputs.request())
    assert Store.open(tmp_path / "store").names() == ["descriptors/background", "models/pca"]


def test_failing_removal_of_a_draft_does_not_hide_the_error_before_it(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "a folder")

    def publish_bad_rows() -> None:
        with Publication(quick_folder / "store", ["models/x"], "a test") as publication:
            publication.draft("models/x", recipe()).values("x", values_for((10,), "int32"))
            raise BadRow("row 3: NaN.")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", failing)
        with pytest.raises(BadRow, match="row 3"):
            publish_bad_rows()
    publish(quick_folder / "store", "models/x", {"x": values_for((10,), "int32")})
    assert not (quick_folder / "store" / "work").exists()


def test_draft_of_damaged_input_that_cannot_be_removed_is_not_continued(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, values = ["models/x", "models/y"], values_for((10,), "int32")

    def damaged_run() -> None:
        with Publication(quick_folder / "store", names, "a test") as publication:
            for name in names:
                publication.draft(name, recipe()).array("x", (10,), "int32").fill(values)
            raise Damaged("an input is damaged.")

    def failing(folder: Any, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))

    synced: list[Path] = []
    sync_folder = seam.sync_folder

    def noting(folder: Path) -> None:
        sync_folder(folder)
        synced.append(folder)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", failing)
        patched.setattr(seam, "sync_folder", noting)
        with pytest.raises(Damaged, match="an input is damaged"):
            damaged_run()
    work = quick_folder / "store" / "work"
    assert synced[-2:] == [work / "models.x", work / "models.y"], "a power cut may bring the drafts back"
    with Publication(quick_folder / "store", names, "a test") as publication:
        for name in names:
            assert publication.draft(name, recipe()).array("x", (10,), "int32").missing == [0]


def test_failing_removal_of_a_draft_is_told_where_nothing_else_failed(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def failing(path: Any, **more: Any) -> None:
        if Path(path).name == "recipe.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(DiskError, match=r"recipe\.json"):
        publish(quick_folder / "store", "models/x", {"x": values_for((10,), "int32")})


def test_chunk_whose_status_cannot_be_read_is_refused_and_closed(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = publish(quick_folder / "store", "models/x", {"x": values_for((10,), "int32")})
    entry = artifact.manifest.arrays["x"]

    def failing(_: int) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", failing)
        with pytest.raises(DiskError, match=r"x/c\.0: cannot read the file \(Input/output error\)"):
            open_chunk(artifact.folder / "x", entry.spec, 0, entry.crcs[0])
    opened = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if path.startswith(str(quick_folder))]
