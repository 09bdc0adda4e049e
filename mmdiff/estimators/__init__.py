"""Parts of the estimators for scikit-learn: labels, neighbours of new rows, graphs that are given."""
