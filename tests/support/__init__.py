"""Shared parts of the tests: naive twins, stores, graphs, faults and kills, remote servers."""
