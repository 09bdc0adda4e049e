"""When appended rows should be merged into the background, and the graph be built anew with all of them.

A completion searches all appended rows again, each time, and compares them with each other exhaustively. It stays correct
however many there are: what it costs, and the recall that it measures, say when a build is due.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmdiff.formats.store.store import Artifact
from mmdiff.knn.targets import missed_targets
from mmdiff.labels.collection import APPENDED, rows_of

# Where searches are exhaustive, n rows appended to N take 2 n N + n^2 comparisons, a build N^2: beyond an eighth, every
# completion takes more than a quarter of a build. Appended rows are not in cell order either: their neighbours lie far away.
MOST_APPENDED = 1 / 8

_REMEDY = "Merge them into the background and build the graph anew (merge_appended)."


def notes_on_appended(roles: Mapping[str, Artifact], made: Mapping[str, Artifact]) -> list[str]:
    """A sentence where it is time to merge the appended rows. `made` are the artifacts of the graph by name."""
    if "appended" not in roles or "knn/W0" not in made:
        return []
    reason = reason_to_merge(
        rows_of(roles["background"]),
        rows_of(roles["appended"]),
        _pairs(made["knn/BB"], rows_of(roles["background"])),
        reached=not missed_targets(made["knn/W0"]),
    )
    return [] if reason is None else [f"{APPENDED}: {reason}. {_REMEDY}"]


def reason_to_merge(background: int, appended: int, pairs: float, reached: bool) -> str | None:
    """Why a build with the appended rows in the background is due; None where it is not.

    `pairs` is the number of comparisons that a build takes for each row of the background, `reached` says whether the
    completion has reached its recall.
    """
    if not reached:
        return "the neighbours of appended rows were found with less recall than was asked for"
    if appended > MOST_APPENDED * background:
        return f"{appended:,} rows, more than an eighth of the {background:,} of the background"
    if appended * appended > pairs * background:
        return f"comparing {appended:,} rows with each other takes longer than a search of the background"
    return None


def _pairs(BB: Artifact, rows: int) -> float:
    """Comparisons for each row of the background, as recorded when its search was chosen; all rows where it was exhaustive."""
    tuning = BB.facts.get("tuning")
    found = tuning.get("pairs") if isinstance(tuning, dict) else None
    return float(found) if isinstance(found, int | float) else float(rows)
