"""Makes the site out of the pages of the repository, which are written to be read there as well.

The README is the first page; CONTRIBUTING and CHANGELOG are pages too. Links from page to page are kept. A link to a file
of the source, which is not part of the site, becomes the name of the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]

# Files of the root that are pages of the site.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

_FENCE = re.compile(r"(?ms)^(```.*?^```)$")
_LINK = re.compile(r"(!?)\[((?:\[[^\]]*\]|[^\[\]])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_SIGNATURE = re.compile(r"(?m)^```python\n([\w.]+)\((.{70,})\)\n```$")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def on_files(files: Any, config: Any) -> Any:
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    own = page.file.src_uri
    if own == PAGES["README.md"]:
        page.meta["hide"] = ["navigation"]
    # The path in the repository, which links are relative to.
    source = next((name for name, made in PAGES.items() if made == own), f"docs/{own}")
    known = {file.src_uri for file in files if file.inclusion.is_included()}
    parts = _FENCE.split(_SIGNATURE.sub(_one_parameter_a_line, markdown))
    parts[::2] = [_relinked(text, source, known) for text in parts[::2]]
    return _with_room_before_lists("".join(parts))


def _one_parameter_a_line(found: re.Match[str]) -> str:
    """A signature that is too long for a line of the site."""
    name, parameters = found.groups()
    lines = "".join(f"    {parameter},\n" for parameter in re.split(r", (?=[\w*]+(?:=|, |$))", parameters))
    return f"```python\n{name}(\n{lines})\n```"


def _relinked(text: str, source: str, known: set[str]) -> str:
    def link(found: re.Match[str]) -> str:
        image, label, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = PAGES.get(path, path.removeprefix("docs/"))
        if place in known and (path in PAGES or path.startswith("docs/")):
            return f"{image}[{label}]({place}{anchor or ''})"
        if not (ROOT / path).exists():
            return found[0]
        return label if label.startswith("`") or "/" not in label else f"`{label}`"

    return _LINK.sub(link, text)


def _with_room_before_lists(text: str) -> str:
    """A list may follow a sentence or a block of code at once on the pages, but not in Python-Markdown."""
    lines: list[str] = []
    in_code = False
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if not in_code and _ITEM.match(line) and before.strip() and not _ITEM.match(before) and not before.startswith(" "):
            lines.append("")
        in_code ^= line.startswith("```")
        lines.append(line)
    return "\n".join(lines)
