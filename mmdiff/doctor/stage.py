"""`mmdiff doctor`: the facts that a bug report needs, with a verdict on each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mmdiff.doctor.checks import Check, Verdict, check_machine, check_software
from mmdiff.doctor.disk import check_disk
from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.progress import Progress, silent


def examine(store: Path, progress: Progress = silent) -> list[Check]:
    """Checks the software, the machine, and the disk of the store."""
    return [*check_software(), *check_machine(), *check_disk(store, progress)]


def worst(checks: Iterable[Check]) -> Verdict:
    """The most serious verdict."""
    order = list(Verdict)
    return max((check.verdict for check in checks), key=order.index, default=Verdict.OK)


def as_document(checks: Iterable[Check]) -> Json:
    """The checks as plain values, by group and name."""
    checks = list(checks)
    document: Json = {"verdict": str(worst(checks))}
    for check in checks:
        document.setdefault(check.group, {})[check.name] = check.to_json()
    return document
