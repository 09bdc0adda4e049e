"""The audit of a store: labels that the graph contradicts, near-duplicates, leaks into the evaluation, outliers."""
