"""Read from the source: dependencies point one way (cli -> mmdiff -> formats), one module changes files, modules are small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LAYERS = ("formats", "mmdiff", "cli")
MODULES = sorted(
    path.relative_to(ROOT)
    for layer in LAYERS
    for path in (ROOT / layer).rglob("*.py")
    if not any(parent.is_symlink() for parent in path.parents if parent != ROOT)
)
MOST_LINES = 400

# Exports go outside the store; the last two write to the standard streams.
WRITERS = ("formats/storage/seam.py", "mmdiff/export/", "formats/storage/bus_errors.py", "cli/show.py")

# Raw LLVM is written here; everything else is numba.
RAW_LLVM = ("mmdiff/kernels/llvm.py", "mmdiff/kernels/register_sums.py")

CHANGING_METHODS = {
    *("write_text", "write_bytes", "rename", "unlink", "mkdir", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod"),
    *("tofile", "savetxt"),
}
CHANGING_FUNCTIONS = {
    *(
        f"os.{name}"
        for name in ("rename", "renames", "replace", "mkdir", "makedirs", "unlink", "remove", "rmdir", "removedirs")
    ),
    *(f"os.{name}" for name in ("symlink", "link", "truncate", "ftruncate", "write", "pwrite", "writev", "posix_fallocate")),
    *(f"shutil.{name}" for name in ("rmtree", "move", "copy", "copy2", "copyfile", "copytree")),
    *(f"np.{name}" for name in ("save", "savez", "savez_compressed", "savetxt", "memmap")),
    *(f"tempfile.{name}" for name in ("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory")),
    *("zarr.create_array", "zarr.create_group", "zarr.save", "zarr.save_array"),
}


def parsed(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


def imported(module: Path) -> Iterator[str]:
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide where things come from"
            base = node.module or ""
            yield base
            if base == "mmdiff":
                yield from (f"mmdiff.{alias.name}" for alias in node.names)


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def opens_to_write(call: ast.Call) -> bool:
    """Whether a call of `open` has a mode that writes, or flags that do."""
    constants = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [node.value for node in constants if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    flags = {dotted(node) for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
    writes = any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)
    return bool(writes or flags & {"os.O_CREAT", "os.O_WRONLY", "os.O_RDWR", "os.O_TRUNC", "os.O_APPEND"})


def changes(module: Path) -> Iterator[str]:
    """Calls that create, change or remove files."""
    for node in ast.walk(parsed(module)):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        method = name.rpartition(".")[2]
        if (
            name in CHANGING_FUNCTIONS
            or ("." in name and method in CHANGING_METHODS)
            or (method == "open" and opens_to_write(node))
        ):
            yield f"{module}:{node.lineno} {name}"


def belongs_to(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def raised_texts(module: Path) -> Iterator[tuple[int, str]]:
    """The text of every message that a module raises."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


@pytest.mark.parametrize("module", [module for module in MODULES if module.parts[0] != "cli"], ids=str)
def test_only_the_command_line_spells_options_and_commands(module: Path) -> None:
    """Messages name parameters and calls (`formats/errors.py`), which read well in Python too."""
    for line, text in raised_texts(module):
        assert not re.search(r"(?<![\w-])--[a-z]|\bmmdiff [a-z]+(-[a-z]+)? (?=[A-Z-])", text), f"{module}:{line} {text!r}"


def test_there_is_something_to_read() -> None:
    assert {"formats/storage/seam.py", "mmdiff/importing/stage.py", "cli/gc.py"} <= {str(module) for module in MODULES}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_one_way(module: Path) -> None:
    names = set(imported(module))
    assert not {name for name in names if belongs_to(name, "cli") or belongs_to(name, "formats")}, (
        "write mmdiff.cli, mmdiff.formats"
    )
    ours = {name for name in names if belongs_to(name, "mmdiff")} - {"mmdiff"}
    if module.parts[0] == "formats":
        assert {name for name in ours if not belongs_to(name, "mmdiff.formats")} == set()
    if module.parts[0] == "mmdiff":
        assert {name for name in ours if belongs_to(name, "mmdiff.cli")} == set()


@pytest.mark.parametrize("module", [m for m in MODULES if str(m) not in RAW_LLVM], ids=str)
def test_raw_llvm_is_written_in_two_modules_only(module: Path) -> None:
    assert not {name for name in imported(module) if belongs_to(name, "llvmlite")}


def test_bits_of_graph_entries_have_their_names() -> None:
    """The masks of columns and of missing neighbours are written once above the formats."""
    bare = {
        str(module)
        for module in MODULES
        if module.parts[0] != "formats"
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0x7FFFFFFF, 0xFFFFFFFF)
    }
    assert bare <= {"mmdiff/kernels/constants.py", "mmdiff/kernels/register_sums.py"}


@pytest.mark.parametrize("module", [m for m in MODULES if not str(m).startswith(WRITERS)], ids=str)
def test_only_the_seam_changes_files(module: Path) -> None:
    assert list(changes(module)) == []


def test_the_check_for_changes_sees_what_the_seam_does() -> None:
    seen = {line.rpartition(" ")[2].rpartition(".")[2] for line in changes(Path("formats/storage/seam.py"))}
    assert {"open", "write", "ftruncate", "pwrite", "mkdir", "rename", "unlink", "symlink_to", "rmdir", "rmtree"} <= seen


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_module_is_small_and_says_what_it_is_for(module: Path) -> None:
    text = (ROOT / module).read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert not text or ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_nothing_is_ever_unpickled(module: Path) -> None:
    assert not {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"} & {
        name.partition(".")[0] for name in imported(module)
    }
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False
