"""Everything about the build that pyproject.toml cannot say: the commit is written into wheels and source distributions.

It is written into what is built, never into the source tree.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

_COMMIT = runpy.run_path(str(Path(__file__).parent / "mmdiff" / "commit.py"))


def write_commit(root: str) -> None:
    """Writes the commit of this clone below `root`; a source distribution brings its own."""
    if _COMMIT["COMMIT"]:
        (Path(root) / "mmdiff" / _COMMIT["BAKED"]).write_text(f"{_COMMIT['COMMIT']}\n", encoding="ascii")


class BuildWithCommit(build_py):
    """Copies the modules, and the commit beside them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class SourcesWithCommit(sdist):
    """Collects the sources, and the commit among them."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SourcesWithCommit})
