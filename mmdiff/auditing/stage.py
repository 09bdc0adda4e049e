"""`mmdiff audit`: labels that the graph contradicts, near-duplicates, leaks into the evaluation, and outliers.

Each part is an artifact, `audit/PART`, with the worst rows first. Near-duplicates, leaks and outliers are read off the lists of
neighbours in one pass for all that are to be made; labels are judged by `folds/NAME`, which is made where it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.auditing.artifact import FAR, KIND, PARTS, SCHEMA, UNNAMED, full_name, open_audit, write
from mmdiff.auditing.doubts import doubts
from mmdiff.auditing.lists import BLOCK_ENTRIES, Lists, Rows, graph_recalls, open_lists, open_test_lists, rounding_of
from mmdiff.auditing.scanning import Matches, Pairs, Scan, near_pairs, ordered_groups, roots_of
from mmdiff.auditing.summary import summarised
from mmdiff.auditing.tables import WRITERS, Table, writer_of
from mmdiff.auditing.thresholds import duplicates_above, far_below, sampled
from mmdiff.diffusion.problem import open_graph
from mmdiff.evaluation.scores import full_name as full_score_name
from mmdiff.export.target import check_place, whole_file
from mmdiff.formats.errors import BadLabels, BadOption, Missing, Parameter, call, one_of
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.graph.lists import Block
from mmdiff.labels.label_set import LabelSet, read_label_set
from mmdiff.prediction.held_out import Making, default_held_out, held_out_scores
from mmdiff.runtime.find_or_make import Made, Run, input_of, make
from mmdiff.runtime.parameters import number, text
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.threads import cores
from mmdiff.text import first_sentence

WHAT = ("all", *PARTS)

# Bytes of each node during the pass, for what a part collects and for its row; of each entry of a block in work; and of each
# row of a result while it is put in order.
_NODE_BYTES = {"duplicates": 12, "leaks": 18, "outliers": 8}
_ROW_BYTES = 4
_ENTRY_BYTES = 32
_RESULT_BYTES = 96

# Bytes of a row of a table in memory, beside its text.
_TABLE_BYTES = 64


@dataclass(frozen=True)
class Request:
    """The part to audit, or all. Without `above` the similarity of near-duplicates is found from the lists."""

    what: str = "all"
    above: float | None = None
    scores: str = "diffusion"
    memory: int = 8 << 30
    command: str = "mmdiff audit"


@explaining
def audit(path: Path, request: Request, target: Path | IO[bytes] | None = None, progress: Progress = silent) -> Json:
    """Makes or finds the audits, and writes the table of the one that was asked for to a file, or as CSV to a stream."""
    request, store = _checked(request), Store.open(path)
    if target is not None and request.what == "all":
        raise BadOption(
            Parameter("what", request.what), f": a file holds the table of one part. Choose from {', '.join(PARTS)}."
        )
    writer = None if target is None else writer_of(target) if isinstance(target, Path) else WRITERS[".csv"]
    if isinstance(target, Path):
        check_place(target, store)
    audits = Audits(store, request, progress)
    found, notes = audits.run(PARTS if request.what == "all" else (request.what,))
    summary: Json = {part: audits.summary(made) for part, made in found.items()}
    if writer is not None and target is not None:
        table = Table(found[request.what].artifact)
        if isinstance(target, Path):
            with whole_file(target) as stream:
                writer(table, stream)
            summary[request.what] |= {"file": str(target), "file_bytes": target.stat().st_size}
        else:
            writer(table, target)
    return summary | {"notes": notes}


@explaining
def audit_table(path: Path, part: str, memory: int) -> Any:
    """The table of a part that was audited, in memory."""
    one_of("what", part, PARTS)
    table = Table(open_audit(Store.open(path), part))
    needed = table.rows * _TABLE_BYTES
    if needed > memory:
        raise BadOption(
            Parameter("memory", memory),
            f": a table of {table.rows:,} rows takes about {needed:,} bytes. Allow more, or have a file written by ",
            call("audit", part),
            ".",
        )
    return table.arrow()


class Audits:
    """The audits of a store for one request."""

    def __init__(self, store: Store, request: Request, progress: Progress) -> None:
        self.store, self.request, self.progress = store, request, progress
        if request.scores != Request.scores:
            store.open_artifact(full_score_name(request.scores))
        self.W = open_graph(store)
        self.rows = Rows.read(store, self.W)

    def run(self, parts: Iterable[str]) -> tuple[dict[str, Made], list[str]]:
        """The artifacts of the parts, and notes on those that this store cannot have, where all were asked for."""
        plans = {"labels": self._labels, "duplicates": self._duplicates, "leaks": self._leaks, "outliers": self._outliers}
        ready, left_out = [], {}
        for part in parts:
            try:
                ready.append(plans[part]())
            except (Missing, BadLabels, BadOption) as error:
                if self.request.what != "all" or (isinstance(error, BadOption) and error.parameter is not None):
                    raise
                left_out[part] = error
        if not ready:
            raise next(iter(left_out.values()))
        command = self.request.command
        with Publication(self.store.path, [full_name(plan.part) for plan in ready], command) as publication:
            scanned = Scanned(self, {plan.part for plan in ready if publication.find(plan.recipe) is None})
            found = {
                plan.part: make(
                    publication,
                    full_name(plan.part),
                    plan.recipe,
                    Run(command),
                    lambda draft, plan=plan: plan.fill(draft, scanned),  # type: ignore[misc]
                )
                for plan in ready
            }
        return found, [f"{part} are not audited: {first_sentence(error)}" for part, error in left_out.items()]

    def summary(self, made: Made) -> Json:
        """The result for a part: counts, the worst rows, and notes for the user."""
        of_run = {key: value for key, value in made.summary().items() if key != "facts"}
        return of_run | summarised(self.store, made.artifact, self.request.scores)

    @cached_property
    def lists(self) -> Lists:
        """The lists of all nodes; refused where there are none to compare rows by."""
        return open_lists(self.store, self.W)

    def _labels(self) -> Plan:
        making = Making(self.store, self.request.memory, self.request.command, self.progress)
        name = full_score_name(self.request.scores)
        labels = read_label_set(self.store, self.W)
        if self.store.id(name) is None and name == "scores/diffusion":
            known = default_held_out(making)
        else:
            known = held_out_scores(making, self.store.open_artifact(name), labels)
        parameters: Json = {"scores": name, "method": known.method, "iteration": known.iteration, "weight": known.weight}

        def fill(draft: Draft, _: Scanned) -> Json:
            rows = known.rows
            judged = doubts(known.values, rows.labels, known.method, rows.rows)
            arrays: dict[str, NDArray[Any]] = {
                "rows": rows.rows[judged.places],
                "labels": judged.labels,
                "predicted": judged.predicted,
                "confidence": judged.confidence,
                "predicted_confidence": judged.predicted_confidence,
                "doubt": judged.doubt,
            }
            rows.classes.write(draft)
            facts = rows.artifact.manifest.facts
            return write(
                draft,
                self.rows,
                arrays,
                graph_recalls(self.store, self.W),
                contradicted=judged.contradicted,
                unreached=len(rows.rows) - len(judged.places),
                singletons=facts["singletons"],
                classes=facts["classes"],
                folds=facts["folds"],
                held_out=int(labels.held_out.sum()),
            )

        inputs = {f"folds{place or ''}": input_of(artifact) for place, artifact in enumerate(known.artifacts)}
        return Plan("labels", parameters, {**inputs, "W": input_of(self.W)}, fill)

    def _duplicates(self) -> Plan:
        lists = self.lists

        def fill(draft: Draft, scanned: Scanned) -> Json:
            groups = scanned.scan.groups
            nodes = groups.grouped
            self._refuse_little(len(nodes))
            rows = self.rows.of_nodes(nodes)
            places, group, representative = ordered_groups(rows, roots_of(groups.parents, nodes), groups.links[nodes])
            sizes = np.bincount(group)
            arrays: dict[str, NDArray[Any]] = {
                "rows": rows[places],
                "group": group,
                "representative": representative,
                "similarity": groups.nearest[nodes[places]],
            }
            return write(
                draft,
                self.rows,
                arrays,
                lists.estimated,
                above=scanned.above,
                found=self.request.above is None,
                groups=len(sizes),
                largest=int(sizes.max(initial=0)),
                surplus=len(group) - len(sizes),
            )

        return Plan("duplicates", {"above": self.request.above}, {**lists.inputs, "W": input_of(self.W)}, fill)

    def _leaks(self) -> Plan:
        lists = self.lists
        tests = open_test_lists(self.store, self.W)
        labels = read_label_set(self.store, self.W)
        if tests is None and not labels.held_out.any():
            raise Missing(
                f"{self.store.path}: there are neither test points nor labels that are held out for good, so that nothing can "
                "leak. Hold some out: ",
                call("hold_out", 0.2),
            )

        def fill(draft: Draft, scanned: Scanned) -> Json:
            matches, _ = scanned.matches, scanned.scan
            if tests is not None:
                self._match_test_points(tests, matches, scanned.limit)
            best = matches.best
            order = np.lexsort((best.nodes, -best.similarities))
            best = best.take(order)
            arrays: dict[str, NDArray[Any]] = {"rows": best.nodes, "matches": best.neighbors, "similarity": best.similarities}
            on_test = int((best.nodes >= self.rows.first_test).sum())
            return write(
                draft,
                self.rows,
                arrays,
                lists.estimated | ({} if tests is None else tests.estimated),
                above=scanned.above,
                found=self.request.above is None,
                test=on_test,
                tests=0 if tests is None else tests.lists.nodes,
                held_out=len(best.nodes) - on_test,
                held_out_rows=int(labels.held_out.sum()),
            )

        inputs = {**lists.inputs, **({} if tests is None else tests.inputs), **labels.inputs, "W": input_of(self.W)}
        return Plan("leaks", {"above": self.request.above}, inputs, fill)

    def _match_test_points(self, tests: Lists, matches: Matches, limit: float) -> None:
        def work(start: int, block: Block) -> Pairs:
            return near_pairs(*block, start, limit, nodes=False)

        for pairs in tests.blocks(work, "auditing lists of test points", self.progress):
            matches.add_test_points(pairs)

    def _outliers(self) -> Plan:
        lists = self.lists
        if lists.lists.k < 2:
            raise Missing(
                f"{self.W.name}: made with lists of 1 neighbour, which hold nothing but the row itself. Build it with more: ",
                call("build_graph", k=30),
            )

        def fill(draft: Draft, scanned: Scanned) -> Json:
            means, named = scanned.scan.means, scanned.scan.named
            reasons = ((means < scanned.far) * FAR + (named == 0) * UNNAMED).astype(np.uint8)
            nodes = np.flatnonzero(reasons)
            self._refuse_little(len(nodes))
            rows = self.rows.of_nodes(nodes)
            order = np.lexsort((rows, means[nodes]))
            nodes = nodes[order]
            arrays: dict[str, NDArray[Any]] = {
                "rows": rows[order],
                "similarity": means[nodes],
                "named": named[nodes].astype(np.int64),
                "reasons": reasons[nodes],
            }
            return write(
                draft,
                self.rows,
                arrays,
                lists.estimated,
                below=scanned.far,
                far=int((reasons & FAR > 0).sum()),
                unnamed=int((reasons & UNNAMED > 0).sum()),
            )

        return Plan("outliers", {}, {**lists.inputs, "W": input_of(self.W)}, fill)

    def _refuse_little(self, results: int) -> None:
        """Refuses results that cannot be put in order within the memory."""
        needed = results * _RESULT_BYTES
        if needed > self.request.memory:
            raise BadOption(
                Parameter("memory", self.request.memory),
                f": {results:,} rows were found, which take about {needed:,} bytes to put in order. Allow more, or ask for "
                "more similar rows with ",
                Parameter("above", 0.99),
                ".",
            )


@dataclass(frozen=True)
class Plan:
    """The making of a part: its recipe, and the function that writes it from the pass over the lists."""

    part: str
    parameters: Json
    inputs: Json
    fill: Callable[[Draft, Scanned], Json]

    @property
    def recipe(self) -> Recipe:
        return Recipe(KIND, SCHEMA, {"part": self.part, **self.parameters}, self.inputs)


@dataclass
class Scanned:
    """The one pass over the lists for all parts that are to be made; it begins when the first of them needs it."""

    audits: Audits
    parts: set[str]

    @cached_property
    def _sample(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        return sampled(self.audits.lists)

    @cached_property
    def above(self) -> float:
        """The similarity from which on rows are near-duplicates: the user's, or that of the rule."""
        given = self.audits.request.above
        return duplicates_above(self._sample[0]) if given is None else given

    @property
    def limit(self) -> float:
        """The same, for similarities as they are stored: those of equal rows may fall short of 1."""
        return min(self.above, 1 - rounding_of(self.audits.store))

    @cached_property
    def far(self) -> float:
        """The mean similarity below which rows are far from their neighbours."""
        return far_below(self._sample[1])

    @cached_property
    def matches(self) -> Matches:
        """The leaks: complete once the lists have been read."""
        return _matches(self.audits.store, self.audits.W, self.audits.rows, self.audits.lists.nodes)

    @cached_property
    def scan(self) -> Scan:
        audits, nodes = self.audits, self.audits.lists.nodes
        self._refuse_little_memory(nodes)
        scan = Scan.of(
            nodes,
            groups="duplicates" in self.parts,
            matches=self.matches if "leaks" in self.parts else None,
            outliers="outliers" in self.parts,
        )
        scan.run(audits.lists, self.limit, audits.progress)
        return scan

    def _refuse_little_memory(self, nodes: int) -> None:
        memory, blocks = self.audits.request.memory, 2 * cores() * _ENTRY_BYTES * BLOCK_ENTRIES
        needed = blocks + nodes * (_ROW_BYTES + sum(_NODE_BYTES.get(part, 0) for part in self.parts))
        if needed > memory:
            raise BadOption(
                Parameter("memory", memory),
                f": the audit of {nodes:,} rows takes about {needed:,} bytes. Allow more, or audit one part at a time.",
            )


def _matches(store: Store, W: Artifact, rows: Rows, nodes: int) -> Matches:
    """The leaks: pairs of labelled nodes and nodes that are held out for good, or are test points."""
    labels: LabelSet = read_label_set(store, W)
    node_of_row = rows.node_of_row(nodes)
    evaluated, labelled = np.zeros(nodes, bool), np.zeros(nodes, bool)
    evaluated[node_of_row[labels.rows[labels.held_out]]] = True
    evaluated[nodes - W.manifest.facts["test"] :] = True
    labelled[node_of_row[labels.used().rows]] = True
    return Matches(rows, evaluated, labelled)


def _checked(request: Request) -> Request:
    one_of("what", request.what, WHAT)
    above = None if request.above is None else number("above", request.above, 0, 1, "For example 0.98.")
    return replace(request, above=above, scores=text("scores", request.scores))
