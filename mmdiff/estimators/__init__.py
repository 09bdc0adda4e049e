"""What the estimators for scikit-learn are made of: labels, neighbours of new rows, graphs that are given."""
