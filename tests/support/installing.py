"""Wheels, and environments that hold nothing but what is put into them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.support.paths import ROOT

_NAME = re.compile(r"[\w.-]+")


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution of this clone, and the wheel that is built from it, without network.

    They are built in a copy: setuptools keeps files of its own beside the sources, which other tests read.
    """
    source = folder / "source"
    for name in ("mmdiff", "cli", "formats"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / ".git").symlink_to(ROOT / ".git")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-2000:] + outcome.stderr[-2000:]
    assert not (source / "mmdiff" / "_commit.txt").exists(), "the build wrote the commit into the sources"
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def base_distributions() -> set[str]:
    """The distributions that `pip install mmdiff` brings along, without extras."""
    found: set[str] = set()
    waiting = ["mmdiff"]
    while waiting:
        name = waiting.pop()
        for requirement in distribution(name).requires or ():
            wanted = _NAME.match(requirement)
            assert wanted is not None
            # Optional parts, and what other systems need, are not installed here or not asked for.
            if "extra ==" in requirement or wanted[0] in found or not _installed(wanted[0]):
                continue
            found.add(wanted[0])
            waiting.append(wanted[0])
    return found


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


class Environment:
    """A fresh environment with the wheel and its dependencies, without extras.

    Dependencies are links to those of this environment, which takes no time. So are the compiled kernels: compiling them
    once more would take half a minute.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.bin = folder / "bin"
        self._packages = next(folder.glob("lib/python*/site-packages"))
        for name in base_distributions():
            self.add(name)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet", "--no-index"]
        subprocess.run([*pip, "--no-deps", "--no-compile", str(wheel)], check=True, capture_output=True)
        self.package = self._packages / "mmdiff"
        self._link_kernels()

    def add(self, name: str) -> None:
        """Makes a distribution of this environment visible in the other one."""
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not top.endswith(".pth") and not (self._packages / top).is_symlink():
                (self._packages / top).symlink_to(Path(str(distribution(name).locate_file(top))))

    def _link_kernels(self) -> None:
        """Lets numba find its cache, which it keys by the time and size of the source."""
        for module in self.package.rglob("*.py"):
            source = ROOT / "mmdiff" / module.relative_to(self.package)
            if module.read_bytes() == source.read_bytes():
                os.utime(module, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
            cache = module.parent / "__pycache__"
            if not cache.exists():
                (source.parent / "__pycache__").mkdir(exist_ok=True)
                cache.symlink_to((source.parent / "__pycache__").resolve())

    def run(self, *words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment, in a folder outside the clone."""
        program = str(self.bin / words[0])
        given = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(cwd), "COLUMNS": "200", **environment}
        return subprocess.run([program, *words[1:]], cwd=cwd, env=given, capture_output=True, text=True)
