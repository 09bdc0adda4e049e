"""Answers from a store: a class with a calibrated confidence for every row, as a table or a file."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, overload

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.results import Summary
from mmdiff.store_scoring import StoreScorer


class StorePredictor(StoreScorer):
    """The part of `Store` that predicts."""

    @overload
    def predict(self, file: None = None, *, scores: str = ..., min_confidence: float = ..., rows: str = ...) -> Any: ...

    @overload
    def predict(
        self, file: str | Path | IO[bytes], *, scores: str = ..., min_confidence: float = ..., rows: str = ...
    ) -> Summary: ...

    def predict(
        self,
        file: str | Path | IO[bytes] | None = None,
        *,
        scores: str = "diffusion",
        min_confidence: float = 0.0,
        rows: str = "all",
    ) -> Any:
        """Answers: a class with a calibrated confidence for each row of the collection, then for each test point.

        A confidence is the probability that the class is right, as labels tell that were held out (docs/predictions.md). Where
        the scores of held-out labels are missing or stale, they are made first.

        Args:
            file: the file to write, .parquet, .csv or .jsonl; or a binary stream, which gets CSV; None returns a table.
            scores: the scores to predict from, such as "diffusion" for scores/diffusion.
            min_confidence: predictions of less confidence, 0 to 1, get no label.
            rows: "collection", "test", or "all" that the scores have.

        Returns:
            Without `file` a `pyarrow.Table` with the columns id, label, confidence, margin, second, second_confidence,
            iteration and source ("given" or "predicted"); `.to_pandas()` or `polars.from_arrow(...)` take it. Else a dict with
            the counts of rows, the share that is labelled, the expected precision, and what held-out labels say; the metadata
            of the table hold it as JSON under "mmdiff".

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[np.arange(2).repeat(30)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, labels=["cat", "cat", *[None] * 56, "dog", "dog"])
        ...     _ = store.build_graph(k=8), store.diffuse(iterations=4)
        ...     table = store.predict()
        >>> table["label"][20].as_py(), table["source"][20].as_py(), table["source"][0].as_py()
        ('cat', 'predicted', 'given')
        """
        from mmdiff.prediction.stage import Request, predict, predict_table

        if file is not None and not isinstance(file, str | Path) and not hasattr(file, "write"):
            raise BadOption(Parameter("file", file), ": expected the path of a file, or a stream to write to.")
        request = Request(
            scores=scores,
            min_confidence=min_confidence,
            rows=rows,  # type: ignore[arg-type]
            memory=self._memory,
            command=self._recorded("predict", locals() | ({} if isinstance(file, str | Path) else {"file": None})),
        )
        path = self._writable().path
        if file is None:
            return predict_table(path, request, self._progress)
        target = Path(file) if isinstance(file, str | Path) else file
        return Summary(predict(path, request, target, self._progress))
