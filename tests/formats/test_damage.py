"""Damage is found: by opening, where that does not take reading everything, and always by `verify`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.formats.errors import Corrupt, Damaged, Missing
from mmdiff.formats.store import checks
from mmdiff.formats.store.manifest import object_id
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.formats.store.verify import verify, verify_frame
from mmdiff.importing.stage import import_descriptors
from mmdiff.kinds import KINDS
from tests.support.stores import SMALL_CHUNKS, Inputs, chunks_of, full_seeds, make_inputs, make_store, problems, publish, recipe

SEEDS = "descriptors/seeds"


def read_all(artifact: Artifact) -> dict[str, NDArray[Any]]:
    return {name: np.array(artifact.array(name)) for name in artifact.manifest.arrays}


def files_of(artifact: Artifact) -> list[Path]:
    return sorted(path for path in artifact.folder.rglob("*") if path.is_file())


def flip(path: Path, byte: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def found_at(store: Store, array: str, chunk: str | None = None) -> None:
    """`verify` names the array and the chunk."""
    found = problems(store)
    assert (SEEDS, array) in {(problem.artifact, problem.array) for problem in found}
    assert chunk is None or chunk in {problem.chunk for problem in found}
    assert all(problem.remedy for problem in found)


def test_store_as_imported_has_no_problems(store: Store) -> None:
    assert store.names() == ["descriptors/background", SEEDS, "models/pca"]
    assert problems(store) == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("shared")
    return make_store(folder / "store", make_inputs(folder / "inputs"))


def open_and_compare(store: Store, name: str, expected: dict[str, NDArray[Any]]) -> None:
    artifact = store.open_artifact(name)
    for array, values in expected.items():
        np.testing.assert_array_equal(artifact.array(array), values)
    assert artifact.run["command"]


@settings(max_examples=120)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found_and_never_gives_wrong_numbers(shared: Store, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(shared.names()))
    intact = shared.open_artifact(name)
    expected = read_all(intact)
    file = data.draw(st.sampled_from(files_of(intact)))
    before = file.read_bytes()
    flip(file, data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7)))
    try:
        assert list(verify(shared, [name], KINDS))
        with pytest.raises(Corrupt, match=name):
            open_and_compare(shared, name, expected)
    finally:
        file.write_bytes(before)


def test_every_file_of_every_artifact_is_covered(shared: Store) -> None:
    for name in shared.names():
        for file in files_of(shared.open_artifact(name)):
            before = file.read_bytes()
            for byte in (0, len(before) // 2, len(before) - 1):
                flip(file, byte, 0)
                assert name in {problem.artifact for problem in problems(shared)}, file
                file.write_bytes(before)
    assert problems(shared) == []


def test_rows_beside_a_damaged_chunk_are_right_and_its_own_are_refused(store: Store) -> None:
    artifact = store.open_artifact(SEEDS)
    expected = np.array(artifact.array("vectors"))
    flip(artifact.folder / "vectors" / "c.1.0", 4, 3)
    border = artifact.spec("vectors").rows_per_chunk
    with pytest.raises(Damaged):
        artifact.array("vectors")
    np.testing.assert_array_equal(artifact["vectors"][:border], expected[:border])
    with pytest.raises(Damaged, match=r"seeds, array vectors: chunk c\.1\.0 does not match its checksum. Run again"):
        artifact["vectors"][border - 1 : border + 1]
    differing = np.argwhere(artifact.checked("none").array("vectors") != expected)
    assert differing.tolist() == [[border, 1]]
    found_at(store, "vectors", "c.1.0")


def truncated(chunk: Path) -> None:
    os.truncate(chunk, chunk.stat().st_size - 4097)


def emptied(chunk: Path) -> None:
    os.truncate(chunk, 0)


def extended(chunk: Path) -> None:
    with chunk.open("ab") as stream:
        stream.write(b"\0")


def deleted(chunk: Path) -> None:
    chunk.unlink()


def replaced_by_its_neighbour(chunk: Path) -> None:
    shutil.copy(chunk.with_name("c.2.0"), chunk)


def spliced_from_another_array(chunk: Path) -> None:
    other = next(
        file
        for file in sorted(chunk.parent.parent.parent.rglob("c.*"))
        if file.parent != chunk.parent and file.stat().st_size == chunk.stat().st_size
    )
    shutil.copy(other, chunk)


def replaced_by_a_link(chunk: Path) -> None:
    elsewhere = chunk.parent.parent.parent.parent / "elsewhere"
    chunk.rename(elsewhere)
    chunk.symlink_to(elsewhere)


def replaced_by_a_folder(chunk: Path) -> None:
    chunk.unlink()
    chunk.mkdir()


def replaced_by_a_pipe(chunk: Path) -> None:
    chunk.unlink()
    os.mkfifo(chunk)


def zeroed(chunk: Path) -> None:
    chunk.write_bytes(bytes(chunk.stat().st_size))


def punched(chunk: Path) -> None:
    """A file system may lose the data of a file and keep its size."""
    content = chunk.read_bytes()
    chunk.write_bytes(bytes(4096) + content[4096:])


DAMAGES = (
    truncated,
    emptied,
    extended,
    deleted,
    replaced_by_its_neighbour,
    spliced_from_another_array,
    replaced_by_a_link,
    replaced_by_a_folder,
    replaced_by_a_pipe,
    zeroed,
    punched,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_chunk_is_refused_on_open_and_named_by_verify(store: Store, damage: Callable[[Path], None]) -> None:
    artifact = store.open_artifact(SEEDS)
    damage(artifact.folder / "vectors" / "c.1.0")
    with pytest.raises(Corrupt, match=r"descriptors/seeds, array vectors: chunk c\.1\.0 .* Run again"):
        artifact.array("vectors")
    found_at(store, "vectors", "c.1.0")


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d is not punched])
def test_what_fstat_and_the_checksum_bytes_show_is_refused_before_anything_is_read(
    store: Store, damage: Callable[[Path], None]
) -> None:
    artifact = store.open_artifact(SEEDS)
    damage(artifact.folder / "vectors" / "c.1.0")
    with pytest.raises(Corrupt, match=r"c\.1\.0"):
        artifact.mapped("vectors")


def test_two_chunks_that_changed_places_are_found(store: Store) -> None:
    folder = store.open_artifact(SEEDS).folder / "raw"
    (folder / "c.0.0").rename(folder / "x")
    (folder / "c.1.0").rename(folder / "c.0.0")
    (folder / "x").rename(folder / "c.1.0")
    with pytest.raises(Corrupt):
        store.open_artifact(SEEDS).array("raw")
    found_at(store, "raw", "c.0.0")


def test_first_bad_chunk_is_named_and_the_others_are_counted(store: Store) -> None:
    folder = store.open_artifact(SEEDS).folder / "raw"
    for chunk in ("c.1.0", "c.2.0"):
        flip(folder / chunk, 0, 0)
    found = [problem for problem in problems(store) if problem.array == "raw"]
    assert len(found) == 1
    assert found[0].chunk == "c.1.0"
    assert "2 chunks of this array are bad" in found[0].what


@pytest.mark.parametrize("place", ["", "run", "vectors"])
def test_surplus_file_is_found(store: Store, place: str) -> None:
    (store.open_artifact(SEEDS).folder / place / ".hidden").touch()
    assert any("should not be here" in problem.what for problem in problems(store))


@pytest.mark.parametrize("place", ["zarr.json", "run/zarr.json", "run", "vectors/zarr.json", "vectors", "labels"])
def test_deleted_metadata_or_folder_is_found(store: Store, place: str) -> None:
    artifact = store.open_artifact(SEEDS)
    expected = read_all(artifact)
    doomed = artifact.folder / place
    shutil.rmtree(doomed) if doomed.is_dir() else doomed.unlink()
    assert SEEDS in {problem.artifact for problem in problems(store)}
    with pytest.raises(Corrupt):
        open_and_compare(store, SEEDS, expected)


def test_array_folder_replaced_by_a_link_is_found(store: Store, tmp_path: Path) -> None:
    artifact = store.open_artifact(SEEDS)
    shutil.move(artifact.folder / "vectors", tmp_path / "vectors")
    (artifact.folder / "vectors").symlink_to(tmp_path / "vectors")
    with pytest.raises(Corrupt):
        artifact.array("vectors")
    found_at(store, "vectors")


@pytest.mark.parametrize(
    "target", ["../objects/descriptors-" + "0" * 24, "/etc", "../../inputs", "../objects", "../objects/../../x", "nowhere"]
)
def test_name_that_leads_nowhere_or_out_of_the_store_is_found(store: Store, target: str) -> None:
    link = store.path / SEEDS
    link.unlink()
    link.symlink_to(target)
    with pytest.raises(Corrupt):
        store.open_artifact(SEEDS)
    assert [problem.artifact for problem in problems(store)] == [SEEDS]


def test_object_folder_that_is_a_link_is_found(store: Store, tmp_path: Path) -> None:
    folder = store.open_artifact(SEEDS).folder
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Corrupt):
        store.open_artifact(SEEDS)
    assert [problem.artifact for problem in problems(store)] == [SEEDS, f"objects/{folder.name}"]


def test_strangers_among_the_names_are_reported_and_stop_nothing(store: Store) -> None:
    (store.path / "descriptors" / "notes.txt").touch()
    (store.path / "descriptors" / ".hidden").symlink_to("../objects/x")
    assert store.names() == ["descriptors/background", SEEDS, "models/pca"]
    assert {problem.artifact for problem in problems(store)} == {"descriptors/notes.txt", "descriptors/.hidden"}


def forge(store: Store, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrites the manifest of the seeds, and renames the object to match the new digest, which no accident does."""
    artifact = store.open_artifact(SEEDS)
    document = json.loads((artifact.folder / "zarr.json").read_bytes())
    change(document["attributes"]["mmdiff"])
    text = json.dumps(document).encode()
    (artifact.folder / "zarr.json").write_bytes(text)
    name = object_id(document["attributes"]["mmdiff"].get("kind", ""), text)
    artifact.folder.rename(store.objects / name)
    (store.path / SEEDS).unlink()
    (store.path / SEEDS).symlink_to(f"../objects/{name}")


def array_entry(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["arrays"]["vectors"].update(changes)


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "path for a name": lambda document: document["arrays"].update({"../x": document["arrays"]["vectors"]}),
    "absolute path": lambda document: document["arrays"].update({"/etc": document["arrays"]["vectors"]}),
    "the run as an array": lambda document: document["arrays"].update({"run": document["arrays"]["vectors"]}),
    "negative rows": array_entry(shape=[-600, 8]),
    "no columns": array_entry(shape=[600, 0]),
    "more rows than there are": array_entry(shape=[768, 8]),
    "fewer rows than there are": array_entry(shape=[100, 8]),
    "absurdly many rows": array_entry(shape=[1 << 62, 8]),
    "overflow to nothing": array_entry(shape=[1 << 61, 8], rows_per_chunk=1 << 61, crc32c=["00000000"]),
    "absurd width": array_entry(shape=[0, 1 << 62], rows_per_chunk=1, crc32c=[]),
    "rows that are no numbers": array_entry(shape=["600", 8]),
    "rows that are yes": array_entry(shape=[True, 8]),
    "a fraction of rows": array_entry(shape=[600.5, 8]),
    "no shape": array_entry(shape=[]),
    "shape of nothing": array_entry(shape=None),
    "chunks of nothing": array_entry(rows_per_chunk=0),
    "chunks of part of a page": array_entry(rows_per_chunk=100),
    "huge chunks": array_entry(rows_per_chunk=1 << 40, crc32c=["00000000"]),
    "object dtype": array_entry(dtype="object"),
    "pickled dtype": array_entry(dtype="O"),
    "unknown dtype": array_entry(dtype=["float32"]),
    "too few checksums": array_entry(crc32c=[]),
    "checksums that are no numbers": array_entry(crc32c=["x", "y", "z"]),
    "checksums out of range": array_entry(crc32c=["-1", "fffffffff", "0"]),
    "arrays as a list": lambda document: document.update(arrays=[]),
    "array as a number": lambda document: document["arrays"].update(vectors=5),
    "no kind": lambda document: document.pop("kind"),
    "surplus field": lambda document: document.update(x=1),
    "unknown kind": lambda document: document.update(kind="x"),
    "later schema": lambda document: document.update(schema=99),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_forged_manifest_is_found_and_never_followed(store: Store, what: str) -> None:
    forge(store, FORGERIES[what])
    assert SEEDS in {problem.artifact for problem in problems(store)}
    if what not in ("unknown kind", "later schema"):
        with pytest.raises(Corrupt):
            store.open_artifact(SEEDS).array("vectors")


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[" * 200_000, b'{"attributes": 5}', b'{"attributes": {"mmdiff": []}}', b"\xff\xfe", b"null"]
)
def test_manifest_that_is_no_manifest_is_corrupt(store: Store, text: bytes) -> None:
    (store.open_artifact(SEEDS).folder / "zarr.json").write_bytes(text)
    with pytest.raises(Corrupt, match=SEEDS):
        store.open_artifact(SEEDS)
    (store.path / "zarr.json").write_bytes(text)
    with pytest.raises(Corrupt):
        Store.open(store.path)


@pytest.mark.parametrize("mark", [5, {"schema": 2}, {}, None])
def test_store_of_another_version_is_refused(store: Store, mark: Any) -> None:
    (store.path / "zarr.json").write_text(json.dumps({"attributes": {"mmdiff_store": mark}}))
    with pytest.raises(Corrupt, match="schema"):
        Store.open(store.path)


def test_store_that_lost_its_own_metadata_is_damaged_and_not_absent(store: Store) -> None:
    lost = (store.path / "zarr.json").read_bytes()
    (store.path / "zarr.json").unlink()
    with pytest.raises(Corrupt) as caught:
        Store.open(store.path)
    assert lost.decode() in str(caught.value)
    assert [problem.artifact for problem in verify_frame(store)] == ["."]
    with pytest.raises(Missing):
        Store.open(store.path.parent / "nowhere")


def crafted(folder: Path, **arrays: NDArray[Any]) -> list[tuple[str | None, str]]:
    """The problems that verify reports for an artifact with intact files and wrong content."""
    vectors = np.ones((3, 2), np.float32)
    publish(folder / "store", SEEDS, {"vectors": vectors} | arrays, recipe())
    return [(problem.array, problem.what) for problem in problems(Store.open(folder / "store"))]


NAMES = {"class_names_offsets": np.array([0, 1, 2]), "class_names_utf8": np.frombuffer(b"ab", np.uint8)}


@pytest.mark.parametrize(
    ("arrays", "array", "what"),
    [
        ({"labels": np.array([0, 1, 2], np.int32), **NAMES}, "labels", "row 2: 2 is outside -1..1"),
        ({"labels": np.array([0, -2, 1], np.int32), **NAMES}, "labels", "row 1: -2 is outside -1..1"),
        ({"labels": np.array([[0, 1], [1, 0], [5, -1]], np.int32), **NAMES}, "labels", "row 2"),
        ({"labels": np.array([0, 0], np.int32), **NAMES}, "labels", "2 rows for 3 vectors"),
        ({"labels": np.array([0, 0, 0], np.int32)}, "labels", "there is no table"),
        ({"labels": np.array([0, 0, 0], np.int64), **NAMES}, "labels", "int64"),
        ({"ids": np.array([5, 6, 5])}, "ids", "occur twice"),
        ({"ids": np.array([5, 6])}, "ids", "2 rows for 3 vectors"),
        (
            {"ids_offsets": np.array([0, 3, 2, 4]), "ids_utf8": np.zeros(4, np.uint8)},
            "ids_offsets",
            "offsets go backwards at row 1",
        ),
        ({"ids_offsets": np.array([0, 1, 2, 9]), "ids_utf8": np.zeros(4, np.uint8)}, "ids_offsets", "from 0 to 4"),
        ({"ids_offsets": np.array([1, 1, 2, 4]), "ids_utf8": np.zeros(4, np.uint8)}, "ids_offsets", "from 0 to 4"),
        ({"ids_offsets": np.array([0, 4]), "ids_utf8": np.zeros(4, np.uint8)}, "ids_offsets", "2 offsets for 3 strings"),
        ({"ids_offsets": np.array([0, 1, 2, 4])}, "ids_utf8", "missing"),
        (
            {"ids_offsets": np.array([0, 1, 2, 3]), "ids_utf8": np.array([97, 255, 98], np.uint8)},
            "ids_utf8",
            "string 1 is not UTF-8",
        ),
        (
            {"ids_offsets": np.array([0, 1, 2, 4]), "ids_utf8": np.frombuffer("aäb".encode(), np.uint8)},
            "ids_utf8",
            "string 1 is not UTF-8",
        ),
        ({"surprise": np.zeros(3, np.uint8)}, "surprise", "does not have"),
        ({"raw": np.zeros((2, 9), np.float32)}, "raw", "2 rows for 3 vectors"),
    ],
)
def test_content_that_cannot_be_is_found_though_all_checksums_are_right(
    quick_folder: Path, arrays: dict[str, NDArray[Any]], array: str, what: str
) -> None:
    found = crafted(quick_folder, **arrays)
    assert any(where == array and what in said for where, said in found), found


@pytest.mark.parametrize("part", [1, 7, 1 << 24])
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 40)), st.sampled_from([1, 1 << 20, 1 << 40]))
def test_values_that_occur_twice_are_found_in_parts_of_any_size(part: int, values: list[int], step: int) -> None:
    scaled = [value * step for value in values if abs(value * step) < 2**62]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checks, "_SORTED", part)
        assert checks._has_repeats(np.array(scaled, np.int64)) == (len(set(scaled)) < len(scaled))


def test_offsets_that_go_backwards_are_not_followed(quick_folder: Path) -> None:
    crafted(quick_folder, ids_offsets=np.array([0, 3, 2, 4]), ids_utf8=np.zeros(4, np.uint8))
    with pytest.raises(Corrupt, match="monotone"):
        Store.open(quick_folder / "store").open_artifact(SEEDS).strings("ids")


def test_strings_that_are_no_utf8_are_refused(quick_folder: Path) -> None:
    crafted(quick_folder, ids_offsets=np.array([0, 1, 2, 3]), ids_utf8=np.array([97, 255, 98], np.uint8))
    ids = Store.open(quick_folder / "store").open_artifact(SEEDS).strings("ids")
    assert ids[2] == "b"
    with pytest.raises(Corrupt, match="string 1 is not UTF-8"):
        list(ids)


@pytest.mark.parametrize("damage", [truncated, deleted, punched, replaced_by_a_folder])
@pytest.mark.parametrize("array", ["vectors", "raw"])
def test_same_import_again_repairs_the_store(store: Store, inputs: Inputs, damage: Callable[[Path], None], array: str) -> None:
    artifact = store.open_artifact(SEEDS)
    expected = read_all(artifact)
    damage(artifact.folder / array / "c.1.0")
    with chunks_of(SMALL_CHUNKS):
        outcome = import_descriptors(store.path, full_seeds(inputs))
        assert not outcome.reused
        assert outcome.artifact.id == artifact.id
        assert problems(store) == []
        for name, values in read_all(store.open_artifact(SEEDS)).items():
            np.testing.assert_array_equal(values, expected[name])
        assert import_descriptors(store.path, full_seeds(inputs)).reused


@pytest.mark.parametrize("place", ["zarr.json", "run/zarr.json", "labels/zarr.json", "labels"])
def test_same_import_again_repairs_metadata(store: Store, inputs: Inputs, place: str) -> None:
    doomed = store.open_artifact(SEEDS).folder / place
    shutil.rmtree(doomed) if doomed.is_dir() else doomed.unlink()
    with chunks_of(SMALL_CHUNKS):
        assert not import_descriptors(store.path, full_seeds(inputs)).reused
    assert problems(store) == []


@pytest.mark.parametrize("target", ["/etc", "../objects/descriptors-" + "0" * 24])
def test_same_import_again_repairs_a_name_that_leads_astray(store: Store, inputs: Inputs, target: str) -> None:
    link = store.path / SEEDS
    link.unlink()
    link.symlink_to(target)
    with chunks_of(SMALL_CHUNKS):
        assert import_descriptors(store.path, full_seeds(inputs)).reused
    assert problems(store) == []


def test_file_in_the_place_of_a_name_is_not_overwritten(store: Store, inputs: Inputs) -> None:
    link = store.path / SEEDS
    link.unlink()
    link.mkdir()
    (link / "precious").touch()
    with chunks_of(SMALL_CHUNKS), pytest.raises(Corrupt, match="Move it elsewhere"):
        import_descriptors(store.path, full_seeds(inputs))
    assert (link / "precious").exists()


def test_damage_to_one_role_does_not_fail_the_import_of_another(store: Store, inputs: Inputs) -> None:
    truncated(store.open_artifact(SEEDS).folder / "labels" / "c.0")
    request = inputs.request("test", labels=str(inputs.folder / "labels.npy"))
    with chunks_of(SMALL_CHUNKS):
        outcome = import_descriptors(store.path, request)
    assert store.id("descriptors/test") == outcome.artifact.id
    (store.path / SEEDS).unlink()
    (store.path / SEEDS).symlink_to("/etc")
    with chunks_of(SMALL_CHUNKS):
        assert any(SEEDS in note for note in import_descriptors(store.path, request).notes)
