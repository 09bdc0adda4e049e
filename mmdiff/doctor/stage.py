"""`mmdiff doctor`: what a maintainer would ask for in a bug report, with a verdict on each thing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mmdiff.doctor.checks import Check, Verdict, check_machine, check_software
from mmdiff.doctor.disk import check_disk
from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.progress import Progress, silent


def examine(store: Path, progress: Progress = silent) -> list[Check]:
    """Looks at the software, the machine, and the disk that the store is on."""
    return [*check_software(), *check_machine(), *check_disk(store, progress)]


def worst(checks: Iterable[Check]) -> Verdict:
    """The verdict on all of them."""
    order = list(Verdict)
    return max((check.verdict for check in checks), key=order.index, default=Verdict.OK)


def as_document(checks: Iterable[Check]) -> Json:
    """The checks as plain values: by group, then by name."""
    checks = list(checks)
    document: Json = {"verdict": str(worst(checks))}
    for check in checks:
        document.setdefault(check.group, {})[check.name] = check.to_json()
    return document
