"""The summary of an audit: counts, the worst rows, what is estimated, and what it means for accuracies."""

from __future__ import annotations

import numpy as np

from mmdiff.auditing.artifact import RowNames
from mmdiff.auditing.leaking import sentences, with_and_without
from mmdiff.auditing.lists import Rows
from mmdiff.auditing.tables import Table
from mmdiff.evaluation.scores import full_name as full_score_name
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.text import count

# Rows that are shown of a part.
SHOWN = 8

# Rows of a group that are shown beside the one that represents it.
MEMBERS = 4


def summarised(store: Store, artifact: Artifact, scores: str = "diffusion") -> Json:
    """Counts of an audit, its worst rows, and notes; for leaks also what the accuracy is without them."""
    manifest = artifact.manifest
    part, facts = manifest.parameters["part"], manifest.facts
    found: Json = {key: value for key, value in facts.items() if key not in ("of", "estimated")}
    found |= {"headline": _headline(part, facts), "estimated": facts["estimated"], "notes": _notes(part, facts)}
    found["worst"] = _groups(artifact) if part == "duplicates" else Table(artifact).first(SHOWN)
    if part == "leaks":
        rows = Rows(facts["of"], None)
        name = full_score_name(scores)
        leaked = artifact.array("rows")
        found["accuracy"], why = with_and_without(store, name, rows, leaked, held_out=bool(facts["held_out_rows"]))
        found["notes"] += sentences(found["accuracy"]) + why
    return found


def _groups(artifact: Artifact) -> list[Json]:
    """The largest groups of near-duplicates, each with the ids of its first rows after the one that represents it."""
    group, names = artifact.array("group"), RowNames.of(artifact.store, artifact.facts["of"])
    found = []
    for number in range(min(SHOWN, artifact.facts["groups"])):
        first, last = np.searchsorted(group, [number, number + 1]).tolist()
        rows = artifact.array("rows")[first : min(last, first + 1 + MEMBERS)]
        represents, *others = names.ids(rows)
        found.append(
            {
                "group": number,
                "rows": last - first,
                "representative": represents,
                "role": names.names(rows[:1])[0],
                "others": others + (["..."] if last - first > len(rows) else []),
            }
        )
    return found


def _headline(part: str, found: Json) -> str:
    """The counts of a part in a line."""
    rows = found["rows"]
    if part == "labels":
        return (
            f"labels: {count(rows, 'label')} judged in {count(found['folds'], 'fold')}, "
            f"{found['contradicted']:,} of them contradicted"
        )
    if part == "outliers":
        return (
            f"outliers: {found['far']:,} far from their neighbours (mean similarity below {found['below']:g}), "
            f"{found['unnamed']:,} that no list names"
        )
    above = f"similarity of at least {found['above']:g}{', found from the lists' if found['found'] else ''}"
    if part == "duplicates":
        return f"duplicates: {count(found['groups'], 'group')} of together {count(rows, 'row')} ({above})"
    parts = [f"{found['test']:,} of {count(found['tests'], 'test point')}"] if found["tests"] else []
    if found["held_out_rows"]:
        parts.append(f"{found['held_out']:,} of {count(found['held_out_rows'], 'held-out row')}")
    return f"leaks: {' and '.join(parts)} have a near-duplicate among the labelled rows ({above})"


def _notes(part: str, facts: Json) -> list[str]:
    missed = "labels may spread on other ways" if part == "labels" else "what only they would show is missed"
    notes = [
        f"{what}: a recall of {recall:.3f} was measured: about {1 - recall:.1%} of the neighbours are not in the lists; "
        f"{missed}."
        for what, recall in facts["estimated"].items()
        if recall < 1
    ]
    if part == "labels":
        if facts["singletons"]:
            one = count(facts["singletons"], "class", "classes")
            notes.append(f"labels of {one} are not judged, since no other label of the class would be left.")
        if facts["unreached"]:
            notes.append(
                f"{count(facts['unreached'], 'label')} could not be judged: no label of another row reaches the row, or there "
                "is no other class."
            )
        if facts["contradicted"] > facts["rows"] // 5:
            notes.append(
                f"another class has the larger share for {facts['contradicted'] / facts['rows']:.0%} of the labels: most of "
                "them will be hard to predict and not wrong. Look at the first ones."
            )
        if facts["held_out"]:
            notes.append(f"{count(facts['held_out'], 'label')} held out for good are not judged.")
    if part == "duplicates" and facts["largest"] > max(100, sum(facts["of"].values()) // 100):
        notes.append(
            f"the largest group has {facts['largest']:,} rows: neighbours are joined in chains, whose ends need not be alike. "
            "A higher threshold divides it."
        )
    return notes
