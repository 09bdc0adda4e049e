"""Bad input: the message names the file, the row and the remedy; the exit code is 2; the store is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from tests.support.stores import make_inputs, make_store, tree

ROWS, WIDTH = 50, 12


@dataclass(frozen=True)
class Case:
    """A user's files, the command they type, and parts of the message."""

    files: Callable[[Path], object]
    command: str
    told: tuple[str, ...]


def good_rows() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)


def with_value(value: float) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        rows = good_rows()
        rows[17, 3:6] = value
        np.save(folder / "x.npy", rows)

    return write


def all_zero(folder: Path) -> None:
    rows = good_rows()
    rows[8] = 0
    np.save(folder / "x.npy", rows)


def truncated(folder: Path) -> None:
    np.save(folder / "x.npy", good_rows())
    content = (folder / "x.npy").read_bytes()
    (folder / "x.npy").write_bytes(content[:-100])


def lying_header(folder: Path) -> None:
    np.save(folder / "x.npy", good_rows())
    content = (folder / "x.npy").read_bytes()
    (folder / "x.npy").write_bytes(content[:8] + b"\xff\xff" + content[10:60])


def with_rows(folder: Path, **files: object) -> None:
    np.save(folder / "x.npy", good_rows())
    for name, lines in files.items():
        assert isinstance(lines, list)
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def two_widths(folder: Path) -> None:
    np.save(folder / "x1.npy", good_rows())
    np.save(folder / "x2.npy", good_rows()[:, :9])


def pickled_labels(folder: Path) -> None:
    np.save(folder / "x.npy", good_rows())
    np.save(folder / "labels.npy", np.array(["a", 1] * 25, object), allow_pickle=True)


SEEDS = "import x.npy --role seeds --labels labels.txt"
CASES = {
    "NaN": Case(with_value(np.nan), "import x.npy --role test", ("x.npy, row 17", "NaN in 3 of 12 values", "--on-bad drop")),
    "Inf": Case(with_value(np.inf), "import x.npy --role test", ("x.npy, row 17", "Inf in 3 of 12 values", "--on-bad drop")),
    "too large for float32": Case(
        lambda folder: np.save(folder / "x.npy", good_rows().astype(np.float64) * 1e300),
        "import x.npy --role test",
        ("x.npy, row 0", "Inf in 12 of 12 values"),
    ),
    "NaN in the background": Case(with_value(np.nan), "import x.npy --role background --dims 4", ("x.npy, row 17", "NaN")),
    "all zero": Case(all_zero, "import x.npy --role test", ("x.npy, row 8", "all 12 values are zero", "--on-bad drop")),
    "nothing but bad rows": Case(
        lambda folder: np.save(folder / "x.npy", good_rows() * np.nan),
        "import x.npy --role test --on-bad drop",
        ("x.npy", "all 50 rows are bad"),
    ),
    "wrong width": Case(
        lambda folder: np.save(folder / "x.npy", good_rows()[:, :9]),
        "import x.npy --role test",
        ("x.npy", "rows of 9 values", "rows of 12", "use another store"),
    ),
    "widths that differ": Case(
        two_widths,
        "import x1.npy x2.npy --role test",
        ("x2.npy", "9", "x1.npy", "12"),
    ),
    "truncated": Case(truncated, "import x.npy --role test", ("x.npy", "2,400", "2,300", "truncated")),
    "header larger than the file": Case(lying_header, "import x.npy --role test", ("x.npy", "header")),
    "unknown dtype": Case(
        lambda folder: np.save(folder / "x.npy", good_rows().astype(np.complex64)),
        "import x.npy --role test",
        ("x.npy", "complex64", "float32"),
    ),
    "object array": Case(
        lambda folder: np.save(folder / "x.npy", np.array([[1, "a"], [None, 2]], object), allow_pickle=True),
        "import x.npy --role test",
        ("x.npy", "pickle", "never loads"),
    ),
    "pickled labels": Case(
        pickled_labels,
        "import x.npy --role test --labels labels.npy",
        ("labels.npy", "pickle"),
    ),
    "too few labels": Case(
        lambda folder: with_rows(folder, labels=["cat"] * 49), SEEDS, ("labels.txt", "49 labels", "50 rows", "x.npy")
    ),
    "too many ids": Case(
        lambda folder: with_rows(folder, ids=list(range(51))),
        "import x.npy --role test --ids ids.txt",
        ("ids.txt", "51 ids", "50 rows"),
    ),
    "duplicate ids": Case(
        lambda folder: with_rows(folder, ids=[*range(49), 7]),
        "import x.npy --role test --ids ids.txt",
        ("ids.txt", "id 7", "rows 7 and 49"),
    ),
    "duplicate names": Case(
        lambda folder: with_rows(folder, ids=[f"img{i % 40}" for i in range(50)]),
        "import x.npy --role test --ids ids.txt",
        ("ids.txt", "id img0", "rows 0 and 40"),
    ),
    "an empty id": Case(
        lambda folder: with_rows(folder, ids=["a", "", *range(48)]),
        "import x.npy --role test --ids ids.txt",
        ("ids.txt, row 1", "no id"),
    ),
    "seeds without labels": Case(lambda folder: with_rows(folder), "import x.npy --role seeds", ("--labels FILE",)),
    "seeds that are all unlabelled": Case(
        lambda folder: with_rows(folder, labels=[-1] * 50), SEEDS, ("labels.txt", "50 seeds are unlabelled")
    ),
    "a negative class": Case(
        lambda folder: with_rows(folder, labels=[0] * 9 + [-2] + [1] * 40), SEEDS, ("labels.txt, row 9", "label -2", "-1")
    ),
    "a class without a name": Case(
        lambda folder: with_rows(folder, labels=[0, 1, 2, 3, 4] * 10, names=["a", "b", "c"]),
        f"{SEEDS} --class-names names.txt",
        ("labels.txt, row 3", "class 3", "Add it to the class names"),
    ),
    "a name that is not among the class names": Case(
        lambda folder: with_rows(folder, labels=["a", "zebra"] * 25, names=["a", "b"]),
        f"{SEEDS} --class-names names.txt",
        ("labels.txt, row 1", "'zebra'", "not among the class names"),
    ),
    "no such file": Case(lambda _: None, "import x.npy --role test", ("x.npy", "no such file")),
    "a pattern that matches nothing": Case(lambda _: None, "import part-*.npy --role test", ("part-*.npy", "nothing matches")),
    "an unknown ending": Case(
        lambda folder: (folder / "x.xyz").write_text("1"), "import x.xyz --role test", ("x.xyz", ".npy", ".parquet::column")
    ),
    "other dimensions": Case(
        lambda folder: with_rows(folder), "import x.npy --role test --dims 5", ("--dims 5", "8 dimensions")
    ),
    "no dimensions": Case(lambda folder: with_rows(folder), "import x.npy --role background --dims 0", ("--dims 0",)),
    "fewer rows than dimensions": Case(
        lambda folder: np.save(folder / "x.npy", good_rows()[:5]),
        "import x.npy --role background --dims 8",
        ("x.npy", "8 dimensions", "there are 5", "--dims 12", "--dims 5"),
    ),
    "not normalised where all is": Case(
        lambda folder: with_rows(folder), "import x.npy --role test --no-normalize", ("--no-normalize", "models/pca")
    ),
    "no background though there is one": Case(
        lambda folder: with_rows(folder, labels=[1] * 50),
        f"{SEEDS} --no-background",
        ("--no-background", "Leave it out"),
    ),
    "class names without labels": Case(
        lambda folder: with_rows(folder, names=["a"]), "import x.npy --role test --class-names names.txt", ("--labels FILE",)
    ),
    "too large for float16": Case(
        lambda folder: np.save(folder / "x.npy", good_rows() * 1e6),
        "import x.npy --role background --no-normalize --dtype float16",
        ("x.npy, row 0", "--dtype float32"),
    ),
    "rows of nothing": Case(
        lambda folder: np.save(folder / "x.npy", good_rows()[:0]), "import x.npy --role test", ("no rows",)
    ),
    "inspecting what is not there": Case(lambda _: None, "inspect graph/W", ("graph/W", "descriptors/background")),
    "inspecting no artifact": Case(lambda _: None, "inspect ../secrets", ("../secrets", "descriptors/background")),
    "rows of what": Case(lambda _: None, "inspect --rows 1:2", ("--rows 1:2", "mmdiff inspect descriptors/seeds")),
    "rows that are no range": Case(lambda _: None, "inspect descriptors/seeds --rows 7", ("--rows 7", "A:B")),
    "rows of a model": Case(lambda _: None, "inspect models/pca --rows 0:2", ("models/pca", "descriptors/")),
    "diffusing without a graph": Case(lambda _: None, "diffuse", ("no graph", "mmdiff build-graph")),
    "verifying what is not there": Case(lambda _: None, "verify knn/BB", ("knn/BB", "not in the store")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_input_is_told_and_leaves_the_store_as_it_was(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "store", make_inputs(tmp_path / "inputs"))
    before = tree(tmp_path / "store")
    case.files(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, [*case.command.split(), "--store", "store"])
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    for part in case.told:
        assert part in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert tree(tmp_path / "store") == before


@pytest.mark.parametrize("role", ["seeds", "test"])
def test_other_roles_before_the_background_are_refused_with_the_command_that_helps(role: str, tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "inputs")
    arguments = [str(inputs.folder / "vectors.npy"), "--role", role, "--labels", str(inputs.folder / "labels.npy")]
    outcome = CliRunner().invoke(app, ["import", *arguments, "--store", str(tmp_path / "store")])
    assert outcome.exit_code == 2
    assert "mmdiff import FILE --role background" in outcome.stderr
    assert ("--no-background" in outcome.stderr) == (role == "seeds")
    assert not (tmp_path / "store").exists()


def test_a_folder_with_other_files_is_not_made_a_store(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "inputs")
    before = tree(tmp_path)
    arguments = [str(inputs.folder / "vectors.npy"), "--role", "background"]
    outcome = CliRunner().invoke(app, ["import", *arguments, "--store", str(inputs.folder)])
    assert outcome.exit_code == 2
    assert "not a store" in outcome.stderr
    assert tree(tmp_path) == before


@pytest.mark.parametrize("command", ["inspect", "verify", "gc"])
def test_where_there_is_no_store_the_user_is_told_how_to_make_one(command: str, tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, [command, "--store", str(tmp_path / "nowhere")])
    assert outcome.exit_code == 2
    assert "mmdiff import FILE --role background" in outcome.stderr
