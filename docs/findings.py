"""Whether the paper's findings hold on Tiny ImageNet: the first table of docs/results.md, from the results of the study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import mean, stdev
from typing import Any

Line = dict[str, Any]
Results = dict[str, Any]


def findings(results: dict[str, Results]) -> Iterator[tuple[str, str, str]]:
    """Claims of the paper, whether they hold here, and the figures."""
    one, all_of = (results[name]["lines"] for name in ("table1", "novel"))
    tests = results["novel"]["tests"]["test"]["all"]
    yield _few_seeds(all_of, tests)
    yield _many_seeds(all_of, tests)
    yield _fusion(all_of)
    plain = {line["background"]: line for line in one if line["method"] == "constant, column-wise"}
    yield _none_is_worse(one, plain)
    yield _weights_change_little(one, plain)
    yield _reset(one, plain, results["table1"]["tests"]["validation"]["all"])
    yield _early_stopping(results["nonzero"]["lines"])
    yield _when_full(results["nonzero"]["lines"])
    yield _larger_is_better(all_of, tests)
    yield _thirty_neighbors(results["k_by_size"]["lines"])
    yield _weight_grows(results["fusion"]["lines"])


def _gap(better: Line, worse: Line, tests: int) -> tuple[float, float, int]:
    """The difference in points over draws: mean, standard deviation, and the number of draws in which it is positive."""
    gaps = [100 * (a - b) / tests for a, b in zip(better["hits"], worse["hits"], strict=True)]
    return mean(gaps), stdev(gaps), sum(gap > 0 for gap in gaps)


def _verdict(gaps: Iterable[tuple[float, float, int]]) -> str:
    """Yes if every gap exceeds its deviation, narrowly if all are positive, in part if some are."""
    found = list(gaps)
    if all(gap > deviation for gap, deviation, _ in found):
        return "yes"
    if all(gap > 0 for gap, _, _ in found):
        return "narrowly"
    return "**in part**" if any(gap > 0 for gap, _, _ in found) else "**no**"


def _in_words(gap: tuple[float, float, int], draws: int) -> str:
    return f"{gap[0]:+.2f} ± {gap[1]:.2f} points, better in {gap[2]} of {draws} draws"


def _few_seeds(lines: list[Line], tests: int) -> tuple[str, str, str]:
    found = []
    for n in (1, 2):
        diffusion, regression = _pair(lines, n, "in-domain")
        gap = _gap(diffusion, regression, tests)
        words = _in_words(gap, len(diffusion["hits"]))
        found.append((gap, f"n = {n}: {figure_of(diffusion)} against {figure_of(regression)} ({words})"))
    verdict = _verdict(gap for gap, _ in found)
    return "in-domain diffusion beats logistic regression at n = 1 and 2", verdict, "; ".join(words for _, words in found)


def _many_seeds(lines: list[Line], tests: int) -> tuple[str, str, str]:
    regression = one(lines, "test", 20, "logreg", None)
    diffusions = [line for line in lines if (line["group"], line["n"], line["method"]) == ("test", 20, "diffusion")]
    figures = "; ".join(f"{line['background']} {figure_of(line)}" for line in diffusions)
    verdict = _verdict(_gap(regression, line, tests) for line in diffusions)
    return "logistic regression wins at n = 20", verdict, f"{figure_of(regression)} against diffusion: {figures}"


def _fusion(lines: list[Line]) -> tuple[str, str, str]:
    """Fusion against the better of its parts, within a standard deviation."""
    short, better = [], []
    for line in lines:
        if line["group"] == "test" and line["method"] == "fusion":
            best = max(_pair(lines, line["n"], line["background"]), key=lambda other: other["top5"][0])
            gap = line["top5"][0] - best["top5"][0]
            better.append(gap)
            if gap < -max(line["top5"][1], best["top5"][1]):
                short.append(f"{line['background']}, n = {line['n']}: {gap:+.2f}")
    above = sum(gap > 0 for gap in better)
    span = f"{min(better):+.2f} to {max(better):+.2f} points"
    figures = f"fusion minus the better one: {span}, above it in {above} of {len(better)} cases"
    return (
        "fusion is at least as good as the better of its parts everywhere (within a standard deviation)",
        _yes(not short),
        figures + ("" if not short else f"; below by more than a deviation: {'; '.join(short)}"),
    )


def _none_is_worse(lines: list[Line], plain: dict[str, Line]) -> tuple[str, str, str]:
    others = {line["background"]: line for line in lines if line["method"] == "eta none"}
    gaps = [plain[background]["top5"][0] - others[background]["top5"][0] for background in plain]
    figures = "; ".join(f"{where}: {figure_of(plain[where])} against {figure_of(others[where])}" for where in plain)
    return "column normalisation beats none by a wide margin", _yes(min(gaps) > 5), figures


def _weights_change_little(lines: list[Line], plain: dict[str, Line]) -> tuple[str, str, str]:
    gaps = {
        method: [line["top5"][0] - plain[line["background"]]["top5"][0] for line in lines if line["method"] == method]
        for method in ("Gaussian weights", "meaningful neighbours")
    }
    figures = "; ".join(f"{method}: {', '.join(f'{gap:+.2f}' for gap in own)} points" for method, own in gaps.items())
    largest = max(abs(gap) for own in gaps.values() for gap in own)
    return "edge weighting changes little", _yes(largest < 1), f"{figures} ({', '.join(plain)})"


def _reset(lines: list[Line], plain: dict[str, Line], tests: int) -> tuple[str, str, str]:
    """Resetting with as many iterations to choose from as the plain method has, and with more."""
    gaps, figures = [], []
    for method, most in (("seeds reset", 10), ("seeds reset, up to 20 iterations", 20)):
        for where, own in plain.items():
            other = one(lines, "validation", own["n"], method, where)
            gaps.append(_gap(own, other, tests))
            figures.append(f"{where}, up to {most} iterations: {figure_of(other)} against {figure_of(own)}")
    return "resetting seeds hurts", _verdict(gaps), "; ".join(figures)


def _early_stopping(lines: list[Line]) -> tuple[str, str, str]:
    own = [line for line in lines if line["variant"] == {"k": 30}]
    losses = [max(line["curve"]) - line["curve"][-1] for line in own]
    figures = "; ".join(
        f"{line['background']}: best after {line['at']}, after {len(line['curve']) - 1} lower by {loss:.2f} points"
        for line, loss in zip(own, losses, strict=True)
    )
    return "early stopping matters", _yes(min(losses) > 0.5), f"k = 30, n = 2: {figures}"


def _larger_is_better(lines: list[Line], tests: int) -> tuple[str, str, str]:
    """Accuracy without a background, with 2,000 images and with all."""
    gaps, figures = [], []
    for n in dict.fromkeys(line["n"] for line in lines):
        own = [one(lines, "test", n, "diffusion", size) for size in ("none", "out-of-domain:2000", "out-of-domain")]
        gaps.append(_gap(own[-1], own[0], tests))
        means = ", ".join(f"{line['top5'][0]:.2f}" for line in own)
        figures.append(f"n = {n}: {means} ({gaps[-1][0]:+.2f} ± {gaps[-1][1]:.2f})")
    return "accuracy grows with the out-of-domain background", _verdict(gaps), f"none, 2,000, 20,000: {'; '.join(figures)}"


def _thirty_neighbors(lines: list[Line]) -> tuple[str, str, str]:
    own = [line for line in lines if line["group"] == "test"]
    figures, gains = [], []
    for where in dict.fromkeys(line["background"] for line in own):
        by_k = {line["variant"]["k"]: line["top5"][0] for line in own if line["background"] == where}
        best = max(by_k, key=lambda k: by_k[k])
        gains.append(by_k[best] - by_k[30])
        figures.append(f"{where}: best at k = {best}, {gains[-1]:+.2f} points over k = 30")
    return "k = 30 is the best trade-off of accuracy and cost", _yes(max(gains) < 0.25), "; ".join(figures)


def _when_full(lines: list[Line]) -> tuple[str, str, str]:
    """The first iteration with 90 % non-zero entries, compared with the best one."""
    figures, apart = [], []
    for line in lines:
        if line["variant"]["k"] >= 10:
            full = next(place for place, share in enumerate(line["nonzero"]) if share > 90)
            apart.append(abs(full - line["at"]))
            figures.append(f"{line['background']}, k = {line['variant']['k']}: {full} and {line['at']}")
    verdict = "yes" if max(apart) <= 1 else "**in part**" if min(apart) <= 1 else "**no**"
    claim = "accuracy peaks when L has filled up (k of at least 10)"
    return claim, verdict, f"iteration of 90 % non-zero entries and best iteration: {'; '.join(figures)}"


def _weight_grows(lines: list[Line]) -> tuple[str, str, str]:
    figures, verdicts = [], []
    for where in ("in-domain", "out-of-domain"):
        weights = [line["at"] for line in lines if line["method"] == "fusion" and line["background"] == where]
        figures.append(f"{where}: {', '.join(f'{weight:g}' for weight in weights)}")
        verdicts.append(weights == sorted(weights) and weights[-1] > weights[0])
        grown = weights[-1] > weights[0]
    verdict = "yes" if all(verdicts) else "**in part**" if grown else "**no**"
    return "the fusion weight of the regression grows with n", verdict, "; ".join(figures)


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _pair(lines: list[Line], n: int, background: str) -> tuple[Line, Line]:
    """The lines of diffusion and logistic regression."""
    return one(lines, "test", n, "diffusion", background), one(lines, "test", n, "logreg", None)


def one(lines: list[Line], group: str, n: int, method: str, background: str | None) -> Line:
    wanted = (group, n, method, background)
    return next(line for line in lines if (line["group"], line["n"], line["method"], line["background"]) == wanted)


def figure_of(line: Line, name: str = "top5") -> str:
    """A mean over draws and its standard deviation."""
    return "{:.2f} ± {:.2f}".format(*line[name])
