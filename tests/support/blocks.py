"""Runs the code blocks of a page of documentation, one after the other, as a reader would.

python -m tests.support.blocks PAGE     in a folder with the files that the page expects

Blocks of `python`, `sh` and `toml` are code. `<!-- not run: REASON -->` above a block leaves it out, as do
`<!-- runs on FILES -->` and `<!-- runs with LIBRARY -->`, where another test runs it. `<!-- before ... -->` holds commands that
a page needs but does not show. All blocks share one process, in which commands of mmdiff run as well, so that each of them does
not load everything anew; other commands of the shell get a process of their own.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(
    r"(?ms)^<!-- before\n(?P<before>.*?)^-->$"
    r"|(?:^ *<!-- (?:not run: |runs (?=on |with ))(?P<reason>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$"
)


class Block(NamedTuple):
    """A block of code, its language, and the reason why it is not run, if there is one."""

    language: str
    code: str
    reason: str | None


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, with the hidden commands before them."""
    found = []
    for block in _BLOCK.finditer(page):
        before, reason, _, language, code = block.groups()
        found.append(Block("sh", before, None) if before is not None else Block(language, code, reason))
    return found


def run(block: Block) -> None:
    """Runs a block in this process and in the present folder."""
    if block.language == "toml":
        tomllib.loads(block.code)
    elif block.language == "python" and block.code.startswith(">>>"):
        raise ValueError("an example with >>> belongs into a docstring, where it is tested")
    elif block.language == "python":
        exec(compile(block.code, "a block of code", "exec"), {"__name__": "__main__"})
    elif block.language == "sh":
        for line in block.code.replace("\\\n", " ").splitlines():
            _run_line(line)


def _run_line(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[:1] != ["mmdiff"] or any(word in ("|", ">", "&&") for word in words):
        subprocess.run(["bash", "-euc", line], check=True)
        return
    from mmdiff.cli import app

    try:
        app(words[1:])
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{line} ended with exit code {ended.code}") from None


def main() -> None:
    for block in blocks_of(Path(sys.argv[1]).read_text()):
        if block.reason is None:
            run(block)


if __name__ == "__main__":
    main()
