"""Campaigns of the long run: too long for every commit, run by `make test-long`; CI runs a small share of each.

A campaign is a module of this package with a function

    def run(scale: float, seed: int) -> dict[str, int | float | str]

that returns its figures (cases, kills, ...), raises AssertionError with all it found wrong, and writes its progress to stderr.
`scale=1.0` is the long run, 0.01 a quick look. `tests/support/` has what campaigns and ordinary tests share.
"""
