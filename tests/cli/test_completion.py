"""Completion in shells: commands, options and the artifacts of the store, by the scripts that `--install-completion` writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmdiff

PROGRAM = Path(sys.executable).parent / "mmdiff"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    mmdiff.open(folder / "faces", create=True).add(np.eye(5))
    return folder


def completed(shell: str, line: str, folder: Path, **environment: str) -> list[str]:
    """What a shell is told when the tab key is pressed behind `line`."""
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    given = {"PATH": "/usr/bin:/bin", "_MMDIFF_COMPLETE": f"complete_{shell}", **asked, **environment}
    outcome = subprocess.run([PROGRAM], cwd=folder, env=given, capture_output=True, text=True)
    assert outcome.stderr == ""
    return outcome.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_completes_commands_and_artifacts(shell: str, place: Path) -> None:
    assert "inspect" in " ".join(completed(shell, "mmdiff ins", place))
    found = " ".join(completed(shell, "mmdiff inspect --store faces des", place))
    assert "descriptors/background" in found
    assert "models/pca" not in found


def test_artifacts_are_those_of_the_store_that_the_environment_names(place: Path) -> None:
    assert completed("bash", "mmdiff verify mod", place, MMDIFF_STORE="faces") == ["models/pca"]


def test_folders_of_stores_are_left_to_the_shell(place: Path) -> None:
    assert completed("bash", "mmdiff inspect --store fa", place) == []
    assert completed("zsh", "mmdiff inspect --store fa", place) == ["_files"]


@pytest.mark.parametrize("store", ["nowhere", "s3://bucket/store"])
def test_without_a_store_on_this_machine_nothing_is_completed(store: str, place: Path) -> None:
    assert completed("bash", f"mmdiff export --store {store} des", place) == []


@pytest.mark.parametrize(
    ("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", ".config/fish/completions/mmdiff.fish")]
)
def test_completion_installs_itself_into_the_files_of_the_shell_it_is_called_from(
    shell: str, file: str, tmp_path: Path
) -> None:
    """The shell is known by the name of the process, here that of another one: not every machine has all of them."""
    shutil.copy("/bin/sh", tmp_path / shell)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [str(tmp_path / shell), "-c", f"{PROGRAM} --install-completion; exit $?"]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout
    assert f"{shell} completion installed" in outcome.stdout
    assert (tmp_path / file).exists()
    scripts = [path.read_text() for path in tmp_path.rglob("*mmdiff*") if path.is_file()]
    assert any(f"complete_{shell}" in script for script in scripts)


def test_a_real_bash_completes_an_artifact(place: Path) -> None:
    """The script that is installed, run by bash as it does when the tab key is pressed."""
    show = subprocess.run([PROGRAM], env={"_MMDIFF_COMPLETE": "source_bash"}, capture_output=True, text=True).stdout
    press = 'COMP_WORDS=(mmdiff verify --store faces models/); COMP_CWORD=4; _mmdiff_completion mmdiff; echo "${COMPREPLY[@]}"'
    environment = {"PATH": f"{PROGRAM.parent}{os.pathsep}/usr/bin:/bin"}
    outcome = subprocess.run(["bash", "-c", show + press], cwd=place, env=environment, capture_output=True, text=True)
    assert outcome.stdout == "models/pca\n", outcome.stderr
