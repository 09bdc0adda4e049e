"""Estimators for scikit-learn: `LabelDiffusion`, a semi-supervised classifier, and `KNNTransformer`, its graph of neighbours.

They make the same graph and the same scores as `knn_graph` and `diffuse`, to the last bit, in scikit-learn's conventions:
pipelines, searches over parameters, cross-validation, several labels a row, precomputed graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from mmdiff.arrays import Graph
from mmdiff.diffusion import api
from mmdiff.diffusion.options import options_of
from mmdiff.estimators import labels, precomputed
from mmdiff.formats.errors import BadOption, Parameter, one_of
from mmdiff.formats.extras import load
from mmdiff.graph.lists import MOST_NODES
from mmdiff.graph.weights import choose
from mmdiff.knn.csr import csr_of_lists
from mmdiff.runtime.parameters import whole
from mmdiff.sklearn_fitting import FittedOnRows

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn import base
    from sklearn.utils import validation
else:
    base, validation = load("sklearn.base", "mmdiff.sklearn"), load("sklearn.utils.validation", "mmdiff.sklearn")


__all__ = ["KNNTransformer", "LabelDiffusion"]

METRICS = ("cosine", "inner_product", "precomputed", "precomputed_affinity")
_OPTIONS = (
    *("iterations", "eta", "prior", "prior_power", "gamma", "alpha", "reset_seeds", "normalize_graph"),
    *("dtype", "cols_per_batch"),
)
_ROWS = (np.float32, np.float64, np.float16, np.int8, np.uint8)

# Scores of new rows that are in memory at a time.
_BLOCK_VALUES = 1 << 22


class LabelDiffusion(base.ClassifierMixin, FittedOnRows):  # type: ignore[misc]
    """Label diffusion as a classifier of scikit-learn: a few labels are spread over all rows of a fit.

    `y` has -1 for rows without a label, or None, NaN or "" among names. A matrix of 1, 0 and -1 gives several labels a row (has
    the label, has it not, unknown). Then each label is spread on its own, against the rows that are known not to have it.

    New rows are classified by the mean of `scores_` over their `k` nearest rows of the fit, without weights, as the test points
    of a store are: the probability of a class is its share of the sum, and the largest wins. Where no label has arrived, the
    probabilities are the shares of the classes among the labels.

    Args:
        k: neighbours of each row, itself included; all rows where there are fewer.
        iterations: number of diffusion iterations. The paper uses 2 to 7.
        metric: "cosine", "inner_product", or what X is: "precomputed" for distances (rows, rows), of which the k nearest of
            each row count, or "precomputed_affinity" for weights, used as they are: a scipy.sparse matrix or an array.
            A `mmdiff.Graph` can take their place in `fit`.
        edge_weights: "constant", "gaussian" (needs sigma) or "meaningful" (needs lambda_).
        sigma: bandwidth of the Gaussian edge weights.
        lambda_: parameter of the meaningful-neighbour weights.
        eta: operator that normalises L after each iteration: "column", "row", "none", "prior" or "sinkhorn".
        prior: class prior of the operators "prior" and "sinkhorn": "uniform", "seeds", or a number for each class.
        prior_power: power that the prior is raised to.
        gamma: power that the entries are raised to in each iteration.
        alpha: share of W S in each update; the rest is Y (Zhou et al.).
        reset_seeds: reset the labelled rows to their labels after each iteration (Zhu et al.).
        normalize_graph: "row" for D^-1 A, "symmetric" for D^-1/2 A D^-1/2.
        dtype: "float32" or "bfloat16", the type of scores between iterations. "bfloat16" is not exact.
        cols_per_batch: classes computed at a time; None takes 96, "auto" all.
        recall: share of the true neighbours to find, measured on a sample.
        index: "auto", "flat" (exact), or a Faiss factory string such as "IVF4096,Flat".
        device: "auto", "cpu" or "gpu"; where a fit compares rows.
        dims: dimensions to reduce to by PCA; None is 256, or all where there are fewer.
        store: a folder for the graph, as `mmdiff.open` takes it, of this estimator alone: each fit replaces its rows, and finds
            graphs that it has made before. None keeps the graph in memory, or on disk in a temporary store where it takes more
            than half of `memory`.
        memory: the most memory to use beside X and the scores, such as "4G".
        seed: random seed.
        progress: True shows progress bars on stderr.

    Attributes:
        classes_: the classes, in ascending order; numbers from 0 for several labels a row.
        scores_: L after the last iteration, as `mmdiff.diffuse` gives it, (rows, classes). Several labels a row: two columns
            for each label, the first for rows that have it.
        label_distributions_: the rows of L, each divided by its sum; zeros where no label has arrived. Several labels a row:
            the share of the first of the two columns.
        transduction_: the best class of each row of the fit; -1, or None among names, where no label has arrived.
        graph_: the `mmdiff.Graph`.
        n_features_in_: the width of X.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 6 * np.eye(8)[np.arange(2).repeat(30)]
    >>> y = np.full(60, -1); y[0], y[59] = 3, 7
    >>> model = LabelDiffusion(k=8).fit(X, y)
    >>> model.transduction_[[1, 58]], model.predict(X[[1, 58]] + 0.1)
    (array([3, 7]), array([3, 7]))
    """

    def __init__(
        self,
        k: int = 30,
        iterations: int = 5,
        *,
        metric: str = "cosine",
        edge_weights: str = "constant",
        sigma: float | None = None,
        lambda_: float | None = None,
        eta: str = "column",
        prior: Any = None,
        prior_power: float | None = None,
        gamma: float | None = None,
        alpha: float | None = None,
        reset_seeds: bool = False,
        normalize_graph: str = "row",
        dtype: str = "float32",
        cols_per_batch: int | str | None = None,
        recall: float = 0.95,
        index: str = "auto",
        device: str = "auto",
        dims: int | None = None,
        store: str | Path | None = None,
        memory: int | str = "8G",
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.k = k
        self.iterations = iterations
        self.metric = metric
        self.edge_weights = edge_weights
        self.sigma = sigma
        self.lambda_ = lambda_
        self.eta = eta
        self.prior = prior
        self.prior_power = prior_power
        self.gamma = gamma
        self.alpha = alpha
        self.reset_seeds = reset_seeds
        self.normalize_graph = normalize_graph
        self.dtype = dtype
        self.cols_per_batch = cols_per_batch
        self.recall = recall
        self.index = index
        self.device = device
        self.dims = dims
        self.store = store
        self.memory = memory
        self.seed = seed
        self.progress = progress

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may give to this estimator."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.input_tags.pairwise = tags.input_tags.sparse = tags.input_tags.positive_only = self._given
        return tags

    @property
    def _given(self) -> bool:
        """Whether X is a graph."""
        return str(self.metric).startswith("precomputed")

    def fit(self, X: Any, y: Any) -> Self:
        """Builds the graph of the rows, and spreads their labels.

        Args:
            X: array (rows, features) without NaN, Inf or rows of zeros; or a graph, as `metric` says.
            y: a label for each row; -1, None, NaN or "" where there is none. Several labels a row as a matrix of 1, 0 and -1.

        >>> import scipy.sparse
        >>> path = scipy.sparse.csr_array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]])
        >>> LabelDiffusion(metric="precomputed_affinity").fit(path, ["a", "", "", "b"]).transduction_.tolist()
        ['a', 'a', 'b', 'b']
        """
        one_of("metric", self.metric, METRICS)
        options = options_of({name: getattr(self, name) for name in _OPTIONS})
        k = whole("k", self.k, 1, MOST_NODES, "The paper uses 30.")
        self._rows_of_fit = None
        if isinstance(X, Graph) and self._given:
            self.n_features_in_ = len(X)
        else:
            X = self._checked(X, reset=True)
        targets = labels.targets_of(y, X.shape[0])
        self.graph_ = self._graph(X, k)
        self.scores_ = api.diffuse(self.graph_.internal, targets.columns, classes=targets.width, **vars(options))
        self._targets, self.classes_ = targets, targets.classes
        self.label_distributions_ = targets.distributions(self.scores_)
        self.transduction_ = targets.transduced(self.scores_)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of new rows: the one with the largest probability, the first of equals.

        Several labels a row: a matrix of 1 and 0, 1 where the probability is above one half.

        Args:
            X: array (rows, features); for a precomputed graph, distances or affinities of (rows, rows of the fit).

        >>> X = np.eye(3)
        >>> LabelDiffusion(k=1).fit(X, ["a", "b", "c"]).predict(X[::-1] + 0.1).tolist()
        ['c', 'b', 'a']
        """
        found = [self._targets.chosen(some) for some in self._probabilities(X)]
        return np.concatenate(found)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class for new rows, in the order of `classes_`; of several labels, that of each label.

        Args:
            X: the rows, as `predict` takes them.

        >>> X = np.array([[1, 0.1], [1, 0], [0, 1]])
        >>> LabelDiffusion(k=2, eta="none", iterations=0).fit(X, [0, 1, 1]).predict_proba(X[:1])
        array([[0.5, 0.5]])
        """
        return np.concatenate([*self._probabilities(X)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of `predict` on the rows that have a label; the others are left out.

        Args:
            X: the rows, as `predict` takes them.
            y: their labels, as `fit` takes them. Several labels a row: rows of which all are known count, if all are right.
            sample_weight: a weight for each row.

        >>> LabelDiffusion(k=1).fit(np.eye(3), [0, 1, 2]).score(np.eye(3), [0, 2, -1])
        0.5
        """
        known, truth = labels.known_rows(y)
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        predicted = self.predict(load("sklearn.utils", "mmdiff.sklearn")._safe_indexing(X, known))
        return float(load("sklearn.metrics", "mmdiff.sklearn").accuracy_score(truth, predicted, sample_weight=weights))

    def _checked(self, X: Any, reset: bool) -> Any:
        if self._given:
            return validation.validate_data(self, X, reset=reset, accept_sparse="csr", dtype=(np.float64, np.float32))
        return validation.validate_data(self, X, reset=reset, dtype=_ROWS)

    def _graph(self, X: Any, k: int) -> Graph:
        if not self._given:
            return self._build(X, min(k, len(X)), self.metric == "cosine")
        if self.store is not None:
            raise BadOption(Parameter("store"), " does not go with ", Parameter("metric", self.metric), ". Leave it out.")
        weighting = choose(self.edge_weights, self.sigma, self.lambda_)  # type: ignore[arg-type]
        if weighting is not None and (isinstance(X, Graph) or self.metric == "precomputed_affinity"):
            message = " needs distances, but X holds weights already. Use ", Parameter("metric", "precomputed"), "."
            raise BadOption(Parameter("edge_weights", self.edge_weights), *message)
        if isinstance(X, Graph):
            return X
        precomputed.refuse_shape(X)
        if self.metric == "precomputed":
            return Graph(precomputed.graph_of_distances(X, min(k, X.shape[0]), weighting))
        return Graph.from_scipy(precomputed.affinities_of(X))

    def _probabilities(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """The probabilities of some rows at a time."""
        validation.check_is_fitted(self)
        near = self._near(self._checked(X, reset=False))
        step = max(1, _BLOCK_VALUES // self.scores_.shape[1])
        for start in range(0, near.shape[0], step):
            yield self._targets.probabilities(near[start : start + step] @ self.scores_)

    def _near(self, X: Any) -> csr_matrix:
        """The rows of the fit near new rows: ones, or the affinities that are given."""
        if self.metric == "precomputed_affinity":
            return precomputed.affinities_of(X)
        if self._rows_of_fit is not None:
            numbers, distances = self._rows_of_fit.of_rows(X)
        else:
            numbers, distances = precomputed.nearest_of(X, min(self.k, X.shape[1]), itself=False)
        near = csr_of_lists(numbers, distances, len(self.scores_))
        near.data[:] = 1
        return near


class KNNTransformer(base.ClassNamePrefixFeaturesOutMixin, base.TransformerMixin, FittedOnRows):  # type: ignore[misc]
    """The nearest neighbours of rows as the sparse graph of distances that scikit-learn's `KNeighborsTransformer` makes.

    Whatever takes a precomputed graph of neighbours follows it in a pipeline: `KNeighborsClassifier`, `DBSCAN`, `TSNE`,
    `Isomap`, `SpectralClustering`, `LabelDiffusion`. `HDBSCAN` wants a symmetric one: `graph.maximum(graph.T)`. Rows are
    compared by the angle between them.

    Args:
        n_neighbors: neighbours of each row beside itself; all where there are fewer rows.
        recall: share of the true neighbours to find, measured on a sample.
        index: "auto", "flat" (exact), or a Faiss factory string such as "IVF4096,Flat".
        device: "auto", "cpu" or "gpu"; where a fit compares rows.
        dims: dimensions to reduce to by PCA; None is 256, or all where there are fewer.
        store: a folder for the graph, as for `LabelDiffusion`.
        memory: the most memory to use beside X and the result, such as "4G".
        seed: random seed.
        progress: True shows progress bars on stderr.

    Attributes:
        n_samples_fit_: the number of rows of the fit, which is the width of the graph.
        graph_: the same graph as a `mmdiff.Graph`, symmetrised.
        n_features_in_: the width of X.

    >>> import numpy as np
    >>> X = np.array([[1, 0], [1, 0.1], [0, 1]])
    >>> KNNTransformer(n_neighbors=1).fit_transform(X).toarray().round(3)
    array([[0.   , 0.1  , 0.   ],
           [0.1  , 0.   , 0.   ],
           [0.   , 1.342, 0.   ]])
    """

    def __init__(
        self,
        n_neighbors: int = 30,
        *,
        recall: float = 0.95,
        index: str = "auto",
        device: str = "auto",
        dims: int | None = None,
        store: str | Path | None = None,
        memory: int | str = "8G",
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.recall = recall
        self.index = index
        self.device = device
        self.dims = dims
        self.store = store
        self.memory = memory
        self.seed = seed
        self.progress = progress

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may give to this transformer, and expect of it."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Finds the neighbours of the rows.

        Args:
            X: array (rows, features) without NaN, Inf or rows of zeros.
            y: ignored.

        >>> KNNTransformer(n_neighbors=2).fit(np.eye(5)).n_samples_fit_
        5
        """
        del y
        X = validation.validate_data(self, X, dtype=_ROWS)
        k = whole("n_neighbors", self.n_neighbors, 1, MOST_NODES - 1) + 1
        self.graph_ = self._build(X, min(k, len(X)))
        self.n_samples_fit_ = self._n_features_out = len(X)
        return self

    def transform(self, X: Any) -> csr_matrix:
        """The nearest rows of the fit of other rows: a scipy.sparse.csr_matrix of Euclidean distances between unit vectors.

        Args:
            X: array (rows, features); each row gets n_neighbors + 1 entries, in ascending order.

        >>> KNNTransformer(n_neighbors=1).fit(np.eye(3)).transform([[1, 2, 0]]).toarray().round(2)
        array([[1.05, 0.46, 0.  ]])
        """
        validation.check_is_fitted(self)
        numbers, distances = self._rows_of_fit.of_rows(validation.validate_data(self, X, reset=False, dtype=_ROWS))
        return _sorted(numbers, distances, self.n_samples_fit_)

    def fit_transform(self, X: Any, y: Any = None) -> csr_matrix:
        """The neighbours of the rows among themselves; each row begins with itself, at distance 0.

        Args:
            X: the rows, as `fit` takes them.
            y: ignored.

        >>> graph = KNNTransformer(n_neighbors=2).fit_transform(np.eye(5) + 1)
        >>> graph.shape, graph.nnz
        ((5, 5), 15)
        """
        numbers, distances = self.fit(X, y)._rows_of_fit.within()
        return _sorted(numbers, distances, itself=True)


def _sorted(numbers: NDArray[np.int64], distances: NDArray[Any], columns: int | None = None, itself: bool | None = None) -> Any:
    """The graph in float64: scipy sorts entries by column where it converts them, and scikit-learn wants them by distance."""
    return csr_of_lists(numbers, distances.astype(np.float64), columns, itself)
