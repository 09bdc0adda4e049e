"""Labels of a store that come and go, and the rows to label next. `mmdiff.store.Store` adds the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, overload

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.results import Summary
from mmdiff.store_scoring import StoreScorer


class StoreLabeller(StoreScorer):
    """The part of `Store` that changes labels; no call here changes a graph."""

    def label(
        self,
        source: str | Path | Mapping[Any, Any],
        *,
        ids: str | None = None,
        labels: str | None = None,
        separator: str | None = None,
    ) -> Summary:
        """Labels rows of the collection, by id: a batch in labels/current, which `undo_label` takes back.

        The labels of a row replace those that it had, however it got them. A label of None, or an empty one, leaves the row
        without any. New names are new classes. Graphs stay as they are: only `diffuse` has to run again.

        Args:
            source: a mapping of ids to a label, a list of labels, or None; or a file with a column of ids and one of labels:
                .csv, .parquet, or JSON lines (.jsonl). Rows that were added without ids have their row number as id.
            ids: the column of ids in the file; None is the one called id or ids.
            labels: the column of labels in the file; None is the one called label, labels or class.
            separator: text between several labels of a row in a CSV file, such as ";". Other files have lists.

        Returns:
            A dict with the numbers of `rows` that got labels and that were `removed`, and of all `labelled` rows, `classes` and
            `batches` of labels/current. `changed` is False where all rows had these labels already.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4), ids=["a", "b", "c", "d"], labels=["cat", None, None, None])
        ...     store.label({"a": None, "b": "dog", "c": ["cat", "dog"]})["labelled"]
        2
        """
        from mmdiff.formats.sources.columns.label_files import label_table, read_label_file
        from mmdiff.labelling.stage import record_labels

        path, command = self._writable().path, self._recorded("label", locals())
        if isinstance(source, Mapping):
            if ids is not None or labels is not None or separator is not None:
                given = next(name for name in ("ids", "labels", "separator") if locals()[name] is not None)
                raise BadOption(Parameter(given, locals()[given]), ": goes with a file, not with labels by id. Leave it out.")
            where = "python" if self._command is None else "command line"
            return Summary(record_labels(path, label_table(source, "labels"), where, command).summary())
        table = read_label_file(Path(source), ids, labels, separator)
        return Summary(record_labels(path, table, Path(source).name, command).summary())

    def undo_label(self) -> Summary:
        """Takes the last batch of `label` back.

        Returns:
            A dict with the numbers of all `labelled` rows, `classes` and `batches` of labels/current that are left.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4)), store.label({0: "cat"}), store.label({0: "dog", 1: "cat"})
        ...     _ = store.undo_label()
        ...     [(row["id"], row["labels"]) for row in store.labels()["labels"]]
        [(0, ['cat'])]
        """
        from mmdiff.labelling.stage import undo_labels

        return Summary(undo_labels(self._writable().path, self._recorded("undo_label", {})).summary())

    def hold_out(self, share: float, *, seed: int = 0) -> Summary:
        """Keeps a share of the labels out for good: nothing learns from them, so that results can be measured on them.

        A hash of its id decides whether a row is held out, so that it stays so as labels come and go.

        Args:
            share: of all labelled rows, at most 0.9; 0 ends it.
            seed: random seed; another one holds other rows out.

        Returns:
            A dict with the share, `holdout`, and the figures of labels/current.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4), labels=[0, 0, 1, 1])
        ...     store.hold_out(0.2)["holdout"]
        0.2
        """
        from mmdiff.labelling.stage import hold_out, holdout_of

        holdout = holdout_of(share, seed)
        command = self._recorded("hold_out", {"share": holdout.share, "seed": holdout.seed})
        return Summary(hold_out(self._writable().path, holdout, command).summary())

    def labels(self) -> Summary:
        """The labels that were recorded by `label`, with their history; labels that rows were added with are not among them.

        Returns:
            A dict with `labels`, one entry for each row: its `id`, its `labels` (none where they were removed), the `batch`
            that it has them from with its `time` and `source`, and what was `replaced`; `batches`, one entry each; and the
            share that is held out, `holdout`.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.eye(4)), store.label({2: "cat"})
        ...     [(row["id"], row["labels"], row["source"]) for row in store.labels()["labels"]]
        [(2, ['cat'], 'python')]
        """
        from mmdiff.labelling.stage import list_labels

        return Summary(list_labels(self._open()))

    @overload
    def suggest(
        self,
        n: int,
        file: None = None,
        *,
        by: str = ...,
        per_class: bool = ...,
        candidates: str | Path | Sequence[Any] | None = ...,
    ) -> Any: ...

    @overload
    def suggest(
        self,
        n: int,
        file: str | Path | IO[bytes],
        *,
        by: str = ...,
        per_class: bool = ...,
        candidates: str | Path | Sequence[Any] | None = ...,
    ) -> Summary: ...

    def suggest(
        self,
        n: int,
        file: str | Path | IO[bytes] | None = None,
        *,
        by: str = "coverage",
        per_class: bool = False,
        candidates: str | Path | Sequence[Any] | None = None,
    ) -> Any:
        """Suggests rows to label next: those whose labels would reach the most that no label reaches yet (docs/suggestions.md).

        Only the graph is needed, no label yet. Suggestions are the same for any number of threads; they go on where labels are.

        Args:
            n: how many rows to suggest; with `per_class`, for each predicted class.
            file: the file to write, .parquet, .csv or .jsonl; or a binary stream, which gets CSV; None returns a table.
            by: "coverage"; "uncertainty", rows whose present prediction is least sure and that are no look-alikes; or "mixed",
                coverage weighted by how unsure the covered rows are. The last two need `diffuse` with predict_nodes.
            per_class: suggest n rows of each class that is predicted now.
            candidates: suggest only among these rows: a file with a column of ids, or a list of ids; None is all rows of the
                collection. Labelled rows are left out.

        Returns:
            Without `file` a `pyarrow.Table`, best first, with the columns rank, id, reaches (rows that the label would newly
            reach), gain (the coverage it adds), nearest, nearest_label and similarity (of the most similar labelled row), label
            and margin (of the present prediction). Else a dict with the counts of suggestions, rows, labelled rows, and rows
            reached by the labels (`reached`) and with the suggestions (`reached_with`); the metadata of the table hold it as
            JSON under "mmdiff".

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(90, 8)) + 6 * np.eye(8)[np.arange(3).repeat(30)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, labels=["cat", *[None] * 89]), store.build_graph(k=8)
        ...     table = store.suggest(2)
        >>> sorted(row // 30 for row in table["id"].to_pylist())
        [1, 2]
        """
        from mmdiff.suggestion.stage import Request, suggest, suggest_table

        if file is not None and not isinstance(file, str | Path) and not hasattr(file, "write"):
            raise BadOption(Parameter("file", file), ": expected the path of a file, or a stream to write to.")
        request = Request(n, by, per_class, candidates, self._memory)  # type: ignore[arg-type]
        files = self._open()
        if file is None:
            return suggest_table(files, request, self._progress)
        target = Path(file) if isinstance(file, str | Path) else file
        return Summary(suggest(files, request, target, self._progress))
