"""Shared parts of the tests: naive twins, stores, graphs, killing, remote servers."""
