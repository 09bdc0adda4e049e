"""Scoring rows of a store: diffusion, logistic regression, their fusion, experiments, and plans of what calls will need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdiff.diffusion.options import AUTO, MOST_AUTO_ITERATIONS
from mmdiff.formats.errors import BadOption, Missing, Parameter, Placeholder, call, one_of
from mmdiff.formats.store.store import Checks
from mmdiff.results import Evaluation, Scores, Summary
from mmdiff.runtime.parameters import as_flag
from mmdiff.runtime.progress import Progress
from mmdiff.signatures import with_store_options
from mmdiff.store_reading import StoreReader

if TYPE_CHECKING:
    from mmdiff.runtime.executor import Executor


class StoreScorer(StoreReader):
    """The part of `Store` that makes scores."""

    def __init__(
        self,
        place: Path | str,
        *,
        memory: int,
        progress: Progress,
        dask: str | None,
        verify: Checks,
        command: str | None,
    ) -> None:
        super().__init__(place, progress, verify)
        self._memory, self._dask, self._command = memory, dask, command

    def _check_presence(self) -> None:
        """Refuses a folder without a store, and in Python a URL that does not answer; a command first looks at its options."""
        if isinstance(self._place, Path):
            try:
                self._open()
            except Missing:
                if self._command is not None:
                    raise
                message = f"{self._place}: no store here. Create it with mmdiff.open(..., create=True), or name another folder."
                raise Missing(message) from None
        elif self._command is None:
            _ = self._files

    @with_store_options
    def diffuse(
        self,
        *,
        classes: str | Sequence[Any] | None = None,
        labels: str | None = None,
        predict_nodes: bool | str | Path = False,
        name: str = "diffusion",
        announce: Callable[[Summary], None] | None = None,
        **options: Any,
    ) -> Scores:
        """Spreads the labels over the graph, and scores the test points.

        Labels are those of the seeds, of the collection, and of labels/current (`label`), as one set. With iterations="auto"
        labelled rows are held out in folds first, and the scores are those of the number of iterations with the best accuracy
        on them; `iterations_chosen` in the summary has the accuracy of each. Labels of test points are never used.

        Args:
            classes: only these classes, by number or name: a list, a comma-separated string, or a file with one a line.
            labels: a file with a label for each node (background, seeds, test nodes), -1 for none, instead of stored labels.
            predict_nodes: True keeps the best classes of every row of the collection, which `predict` needs; a .parquet path
                writes them to a file too. Without test points they are kept in any case.
            name: the scores are the artifact scores/NAME.
            announce: called with the plan of memory and disk before anything is computed.

        Returns:
            `Scores` of the test points after the last iteration; earlier ones through `at`.

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[np.arange(2).repeat(30)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, labels=["cat", *[None] * 58, "dog"]), store.add(X[[1, 58]], role="test")
        ...     _ = store.build_graph(k=8)
        ...     store.diffuse(iterations=4).predict()
        array(['cat', 'dog'], dtype=object)
        """
        from mmdiff.diffusion.stage import diffuse

        request = self._diffusion_request(classes=classes, labels=labels, predict_nodes=predict_nodes, name=name, **options)

        def told(footprint: Any) -> None:
            if announce is not None:
                announce(Summary(footprint.summary()))

        path = self._writable().path
        with self._executor() as executor:
            if _chosen_by_itself(options):
                from mmdiff.validation.evaluation import choose_iterations

                chosen = choose_iterations(path, request, self._progress, told, executor)
                request = replace(request, iterations=chosen.iterations, chosen=chosen.summary())
            outcome = diffuse(path, request, self._progress, told, executor)
        return Scores._of(outcome.artifact, Summary(outcome.summary()))

    def _diffusion_request(self, *, classes: Any = None, predict_nodes: Any = False, **options: Any) -> Any:
        from mmdiff.diffusion.stage import Request

        chosen = classes if classes is None or isinstance(classes, str) else ",".join(map(str, classes))
        given = {"classes": classes, "predict_nodes": predict_nodes, **options}
        if _chosen_by_itself(options):
            options["iterations"] = MOST_AUTO_ITERATIONS
        return Request(
            classes=chosen,
            predict_nodes=Path(predict_nodes) if as_flag(predict_nodes) is None else bool(predict_nodes),
            memory=self._memory,
            command=self._recorded("diffuse", given),
            **options,
        )

    def plan(self, command: str, **options: Any) -> Summary:
        """The memory, disk and time that a call will need; some blocks are timed, which takes seconds.

        Args:
            command: "diffuse" or "build_graph".
            options: the parameters that the call would get.

        Returns:
            A dict with bytes of memory and disk, seconds, and for a diffusion its iterations. A call that does not fit the
            memory is refused, with parameters that would fit; `notes` say where the disk is too small.

        >>> import mmdiff, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(np.random.default_rng(0).normal(size=(50, 4)))
        ...     store.plan("build_graph", k=5)["nodes"]
        50
        """
        one_of("command", command.replace("-", "_"), ("diffuse", "build_graph"))
        files = self._writable()
        if command == "diffuse":
            from mmdiff.diffusion.planning.estimate import plan_diffuse

            if _chosen_by_itself(options):
                raise BadOption(
                    Parameter("iterations", AUTO),
                    ": a plan is for a number of iterations. Give one; at most ",
                    Parameter("iterations", MOST_AUTO_ITERATIONS),
                    " are tried.",
                )
            return Summary(plan_diffuse(files.path, self._diffusion_request(**options)).summary())
        from mmdiff.building.estimate import plan_build_graph

        return Summary(plan_build_graph(files.path, self._graph_request(**options)).summary())

    def _graph_request(self, **parameters: Any) -> Any:
        from mmdiff.building.stage import Request

        one_of("device", parameters.get("device", "auto"), ("auto", "cpu", "gpu"))
        one_of("edge_weights", parameters.get("edge_weights", "constant"), ("constant", "gaussian", "meaningful"))
        return Request(**parameters, memory=self._memory, command=self._recorded("build_graph", parameters))

    def logreg(
        self,
        *,
        lr: float | None = None,
        batch_size: int | None = None,
        weight_decay: float | None = None,
        iterations: int = 1000,
        tune: bool = False,
        device: str = "auto",
        seed: int = 0,
        name: str = "logreg",
    ) -> Scores:
        """Trains a logistic regression on the labelled rows, and scores the test points with it (paper, section 4.1).

        It learns from the descriptors of the seeds as they were imported. Where rows of the collection have labels too, it
        learns from all labelled rows, in the space of the graph, and also classifies every row of the collection.

        Args:
            lr: learning rate at the start, from which it falls to 0; None is 1.
            batch_size: seeds in a batch, drawn class by class; None is 256.
            weight_decay: L2 penalty on the weights; None is 0.0003.
            iterations: number of batches.
            tune: choose lr, batch_size and weight_decay on seeds that are held out.
            device: "auto", "cpu" or "gpu".
            seed: random seed.
            name: the artifacts are models/NAME and scores/NAME.

        Returns:
            `Scores` of the test points: log-probabilities. Without test points they have no rows; the model is made all the
            same.

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[np.arange(2).repeat(30)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, role="seeds", labels=np.arange(2).repeat(30), no_background=True)
        ...     _ = store.add(X[[1, 58]], role="test")
        ...     store.logreg(iterations=50).predict()
        array([0, 1])
        """
        from mmdiff.logreg.stage import Request, logreg

        one_of("device", device, ("auto", "cpu", "gpu"))
        request = Request(
            lr=lr,
            batch_size=batch_size,
            weight_decay=weight_decay,
            iterations=iterations,
            tune=tune,
            device=device,  # type: ignore[arg-type]
            seed=seed,
            name=name,
            command=self._recorded("logreg", locals()),
        )
        outcome = logreg(self._writable().path, request, self._progress)
        made = outcome.model if outcome.scores is None else outcome.scores
        return Scores._of(made.artifact, Summary(outcome.summary()))

    def fuse(
        self,
        first: str = "scores/logreg",
        second: str = "scores/diffusion",
        *,
        weight: float | None = None,
        tune: bool = False,
        iteration: int | None = None,
        name: str = "fusion",
    ) -> Scores:
        """Fuses two scores late: weight x log-probabilities of the first + (1 - weight) x those of the second.

        Args:
            first: the scores that `weight` belongs to.
            second: the other scores.
            weight: 0 is `second` alone, 1 is `first` alone; None is 0.5.
            tune: choose the weight with the best top-5 accuracy: on the labelled test points, else on held-out labels.
            iteration: the iteration of the diffusion; None is the last.
            name: the artifact is scores/NAME.

        Returns:
            `Scores` of the test points. Where both hold the best classes of the rows of the collection, these are fused too.

        >>> import mmdiff, numpy as np, tempfile
        >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[np.arange(2).repeat(30)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, role="seeds", labels=np.arange(2).repeat(30), no_background=True)
        ...     _ = store.add(X[[1, 58]], role="test"), store.build_graph(k=8)
        ...     _ = store.diffuse(iterations=2), store.logreg(iterations=50)
        ...     store.fuse(weight=0.25).predict()
        array([0, 1])
        """
        from mmdiff.fusion.stage import Request, fuse_scores

        request = Request(
            first=first,
            second=second,
            weight=weight,
            tune=tune,
            iteration=iteration,
            name=name,
            memory=self._memory,
            command=self._recorded("fuse", locals()),
        )
        outcome = fuse_scores(self._writable().path, request, self._progress)
        return Scores._of(outcome.made.artifact, Summary(outcome.summary()))

    def evaluate(
        self,
        *scores: str,
        top: Iterable[int] = (1, 5),
        novel: str | None = None,
        per_class: bool = False,
        folds: int | None = None,
        seed: int = 0,
    ) -> Evaluation:
        """The accuracy among the best k, with 95 % bootstrap intervals: on test points, else on held-out labels.

        Where there are test points, scores are compared with their labels. Else labelled rows are held out in folds, each is
        scored without the labels of its fold, and these scores are compared with its own labels; they are kept as folds/NAME.
        Labels that `hold_out` keeps out for good take the place of folds. Methods have the options of their scores or models
        in the store; without any, the diffusion has its defaults.

        Ties never count in favour of a method, and test points of a class without seeds count as errors.

        Args:
            scores: names such as "scores/diffusion"; none evaluates all scores of the store.
            top: the values of k.
            novel: classes to report separately too: a comma-separated string, or a file with a class a line.
            per_class: report every class.
            folds: number of folds that labelled rows are held out in, also where there are test points; None is 5 where there
                are no test points, fewer where there are fewer labels.
            seed: random seed of the folds.

        Returns:
            A dict that prints as a table: `scores`, one entry each with `iterations`, `worst` classes, margins; and `notes`.

        >>> import mmdiff, numpy as np, tempfile
        >>> y = np.arange(60) // 30
        >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[y]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = mmdiff.open(folder + "/store", create=True)
        ...     _ = store.add(X, labels=y), store.add(X + 0.1, role="test", labels=y), store.build_graph(k=8)
        ...     _ = store.diffuse(iterations=1, keep_scores="last")
        ...     print(store.evaluate(top=(1,)))
        ...     print(str(store.evaluate(top=(1,), folds=5)).splitlines()[1])
        scores/diffusion, iteration 1, 60 test points: top-1 100.0 % (100.0 to 100.0)
        folds/diffusion, iteration 1, 60 held-out rows: top-1 100.0 % (100.0 to 100.0)
        """
        from mmdiff.evaluation.scores import TEST
        from mmdiff.evaluation.stage import Request, evaluate

        recorded = self._recorded("evaluate", locals())
        if folds is None and self._open().id(TEST) is not None:
            return Evaluation(evaluate(self._open(), Request(scores, top, novel, per_class), self._progress))
        from mmdiff.validation.evaluation import Request as OnLabels
        from mmdiff.validation.evaluation import evaluate_labels
        from mmdiff.validation.stage import Scheme

        request = OnLabels(scores, top, novel, per_class, Scheme(folds, seed, holdout=folds is None), self._memory, recorded)
        with self._executor() as executor:
            found = evaluate_labels(self._writable().path, request, self._progress, executor=executor)
        return Evaluation(found)

    def experiment(self, config: str | Path) -> Summary:
        """Runs the paper's protocol: all methods of a config for every n, draw and background; publishes reports/NAME.

        Args:
            config: a TOML file, as docs/experiments.md describes it.

        Returns:
            A dict with the artifact, its cells, and the mean and standard deviation over draws of every line.

        >>> import mmdiff, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         mmdiff.open(folder + "/store", create=True).experiment("no-such.toml")
        ...     except mmdiff.errors.InputError as error:
        ...         print(str(error).partition(":")[0])
        no-such.toml
        """
        from mmdiff.experiment.stage import run_experiment
        from mmdiff.runtime.dask import executor_on

        self._writable(create=True)
        file = Path(config) if self._dask is None else Path(config).absolute()
        with executor_on(self._dask, file) as executor:
            outcome = run_experiment(
                self.path, file, self._recorded("experiment", {"config": config}), self._progress, executor
            )
        return Summary(outcome.summary())

    @contextmanager
    def _executor(self) -> Iterator[Executor]:
        from mmdiff.runtime.dask import executor_on

        # Workers may have been started in another folder.
        place = self.path if self._dask is None else self.path.absolute()
        with executor_on(self._dask, place) as executor:
            yield executor

    def _recorded(self, method: str, values: Mapping[str, Any]) -> str:
        """The call as it is recorded in artifacts: with the parameters that are not defaults, arrays by their shape."""
        if self._command is not None:
            return self._command
        parameters = inspect.signature(getattr(type(self), method)).parameters
        arguments, keywords = [], {}
        for key, parameter in parameters.items():
            if key in ("self", "announce") or key not in values:
                continue
            value = values[key]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                arguments += value
                continue
            shape = getattr(value, "shape", None)
            if shape is not None:
                # A scalar of numpy is the number that it holds.
                value = Placeholder(f"<array {shape}>") if shape else value.item()
            elif isinstance(value, (list, tuple)) and any(getattr(each, "shape", None) == () for each in value):
                value = [each.item() if getattr(each, "shape", None) == () else each for each in value]
            if value is parameter.default:
                continue
            value = str(value) if isinstance(value, Path) else value
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keywords[key] = value
            else:
                arguments.append(value)
        return str(call(method, *arguments, **keywords))


def _chosen_by_itself(options: dict[str, Any]) -> bool:
    """Whether the number of iterations is to be found; it may be anything that a caller passes, such as an array."""
    iterations = options.get("iterations")
    return isinstance(iterations, str) and iterations == AUTO
