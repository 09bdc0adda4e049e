"""The Makefile finds a Python that mmdiff runs on, or says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FIND = ROOT / "packaging" / "find-python"


def pretend(folder: Path, name: str, version: tuple[int, int], venv: bool = True) -> None:
    """A command that answers as a Python of this version would: the questions are asked of the Python of this test."""
    missing = "" if venv else "sys.modules['venv'] = None; "
    script = f"import sys; sys.version_info = {(*version, 0)}; {missing}exec(sys.argv[2])"
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{script}" "$@"\n')
    program.chmod(0o755)


def find(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", FIND, *names], env={"PATH": str(folder)}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("present", "found"),
    [
        ({"python3.11": (3, 11), "python3.13": (3, 13)}, "python3.11"),
        ({"python3.13": (3, 13), "python3": (3, 9)}, "python3.13"),
        ({"python3.12": (3, 12), "python3": (3, 12)}, "python3.12"),
        ({"python3": (3, 15)}, "python3"),
        ({"python3": (3, 10), "python": (3, 11)}, "python"),
    ],
)
def test_any_python_from_3_11_on_is_found(tmp_path: Path, present: dict[str, tuple[int, int]], found: str) -> None:
    for name, version in present.items():
        pretend(tmp_path, name, version)
    assert find(tmp_path).stdout == f"{found}\n"


def test_a_python_without_venv_or_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    pretend(tmp_path, "python3.11", (3, 11), venv=False)
    pretend(tmp_path, "python3.13", (3, 13))
    # Shims of version managers exist for versions that they refuse to start.
    (tmp_path / "python3.12").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.12").chmod(0o755)
    assert find(tmp_path).stdout == "python3.13\n"


def test_without_a_python_one_sentence_says_what_is_needed(tmp_path: Path) -> None:
    pretend(tmp_path, "python3", (3, 9))
    pretend(tmp_path, "python3.12", (3, 12), venv=False)
    outcome = find(tmp_path)
    assert (outcome.returncode, outcome.stdout) == (1, "")
    assert outcome.stderr.count("\n") == 1
    assert "needs Python 3.11 or newer" in outcome.stderr
    assert "python3 is 3.9" in outcome.stderr
    assert "python3.12 (3.12) has no venv" in outcome.stderr
    assert "make PYTHON=" in outcome.stderr


def test_a_python_that_is_named_is_the_only_one_looked_at(tmp_path: Path) -> None:
    for name, version in {"python3.11": (3, 11), "old": (3, 8)}.items():
        pretend(tmp_path, name, version)
    assert find(tmp_path, "python3.11").stdout == "python3.11\n"
    assert "none of old is one, old is 3.8" in find(tmp_path, "old").stderr


def test_make_stops_where_no_python_is_found(tmp_path: Path) -> None:
    """In a copy of the Makefile, so that the environment of this clone stays."""
    for file in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    outcome = subprocess.run(["make", "check", "PYTHON=nonsense"], cwd=tmp_path, capture_output=True, text=True)
    assert outcome.returncode == 2
    assert "none of nonsense is one" in outcome.stderr
    assert not (tmp_path / ".venv").exists()
