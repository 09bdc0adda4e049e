"""The tree is what `docs/architecture.md` says, and packages do not import each other in circles."""

from __future__ import annotations

import re
from pathlib import Path

from tests.project.test_imports_point_one_way import MODULES, imported
from tests.support.paths import DOCS, ROOT

# Modules of the public API that packages may use: they depend on nothing that computes.
LEAVES = {"mmdiff.text", "mmdiff.errors", "mmdiff.commit"}


def package_of(name: str) -> str | None:
    """The package directly below `mmdiff` that a module belongs to; None for the public API."""
    parts = name.split(".")
    if parts[0] != "mmdiff" or len(parts) < 2:
        return None
    folder = ROOT / parts[1] if parts[1] in ("cli", "formats") else ROOT / "mmdiff" / parts[1]
    return parts[1] if folder.is_dir() else None


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts if parts[0] == "mmdiff" else ("mmdiff", *parts))


def dependencies() -> dict[str, set[str]]:
    """For each package those that its modules import, at the top or within functions."""
    found: dict[str, set[str]] = {}
    for module in MODULES:
        own = package_of(module_name(module))
        if own is not None:
            used = {package_of(name) for name in imported(module)} - {own, None}
            found.setdefault(own, set()).update(name for name in used if name)
    return found


def test_packages_are_acyclic() -> None:
    left = dependencies()
    while left:
        free = {package for package, used in left.items() if not used & left.keys()}
        assert free, f"a circle among {sorted(left)}: {left}"
        left = {package: used for package, used in left.items() if package not in free}


def test_packages_do_not_use_the_public_door() -> None:
    """`store`, `arrays` and `kinds` stand above the packages."""
    for module in MODULES:
        if package_of(module_name(module)) in (None, "cli"):
            continue
        above = {
            name for name in imported(module) if name.startswith("mmdiff.") and package_of(name) is None and name not in LEAVES
        }
        assert not above - {"mmdiff.__version__"}, f"{module} imports {above}"


def test_the_architecture_page_lists_every_package() -> None:
    page = (DOCS / "architecture.md").read_text()
    listed = set(re.findall(r"^\| `((?:mmdiff|formats)/\w+/)` \|", page, re.MULTILINE))
    present = {
        f"{layer}/{folder.name}/"
        for layer in ("mmdiff", "formats")
        for folder in (ROOT / layer).iterdir()
        if folder.is_dir() and not folder.is_symlink() and (folder / "__init__.py").exists()
    }
    assert listed == present
    for folder in re.findall(r"`(\w+)/`", page):
        assert any((ROOT / base / folder).is_dir() for base in (".", "mmdiff", "formats")) or any(ROOT.glob(f"*/*/{folder}"))


def test_the_architecture_page_lists_the_modules_of_the_public_api() -> None:
    page = (DOCS / "architecture.md").read_text()
    for file in (ROOT / "mmdiff").glob("*.py"):
        assert file.name in page, f"docs/architecture.md does not mention {file.name}"
