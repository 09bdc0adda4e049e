"""The audit of a store: labels to doubt, near-duplicates, leaks into the evaluation, outliers."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.results import Summary
from mmdiff.store_scoring import StoreScorer


class StoreAuditor(StoreScorer):
    """The part of `Store` that audits."""

    def audit(
        self,
        what: str = "all",
        file: str | Path | IO[bytes] | None = None,
        *,
        above: float | None = None,
        scores: str = "diffusion",
    ) -> Summary:
        """Finds labels that the graph contradicts, near-duplicates, leaks into the evaluation, and outliers (docs/audit.md).

        Each part is kept as audit/PART, and found again while its inputs are the same. Labels are judged by the scores of
        held-out labels, which are made first where they are missing or stale; all else is read off the lists of neighbours.

        Args:
            what: "labels", "duplicates", "leaks" or "outliers"; "all" audits everything that the store has data for.
            file: the file to write the table of one part to, .parquet, .csv or .jsonl; or a binary stream, which gets CSV.
            above: the similarity, 0 to 1, from which on rows are near-duplicates; None finds it from the lists.
            scores: the scores whose method judges labels, and whose accuracy is given with and without leaks, such as
                "diffusion" for scores/diffusion.

        Returns:
            A dict with an entry for each part: its artifact, counts, the `worst` rows, what is `estimated`, and notes.

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(200, 16))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.concatenate([X, X[:3]])), store.build_graph(k=10)
        ...     found = store.audit("duplicates", above=0.99)["duplicates"]
        >>> found["groups"], found["rows"], found["worst"][0]["representative"]
        (3, 6, 0)
        """
        from mmdiff.auditing.stage import Request, audit

        if file is not None and not isinstance(file, str | Path) and not hasattr(file, "write"):
            raise BadOption(Parameter("file", file), ": expected the path of a file, or a stream to write to.")
        named = file is None or isinstance(file, str | Path)
        request = Request(
            what=what,
            above=above,
            scores=scores,
            memory=self._memory,
            command=self._recorded("audit", locals() | ({} if named else {"file": None})),
        )
        target = Path(file) if isinstance(file, str | Path) else file
        return Summary(audit(self._writable().path, request, target, self._progress))

    def audit_table(self, what: str) -> Any:
        """The table of a part that `audit` has made, the worst rows first.

        Args:
            what: "labels", "duplicates", "leaks" or "outliers".

        Returns:
            A `pyarrow.Table`. Labels: id, label, confidence, predicted, predicted_confidence, doubt, role. Duplicates: group,
            id, representative, similarity (to the nearest other row of the group), role. Leaks: id, role, matches (the id of
            the labelled row), matched_role, similarity. Outliers: id, similarity (the mean of its neighbours), named (the
            lists that name it), reason, role.

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(200, 16))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.concatenate([X, X[:3]])), store.build_graph(k=10), store.audit("duplicates", above=0.99)
        ...     store.audit_table("duplicates").column("id").to_pylist()
        [0, 200, 1, 201, 2, 202]
        """
        from mmdiff.auditing.stage import audit_table

        return audit_table(self._open().path, what, self._memory)
