"""Accuracy without test points: labelled rows are held out in folds, and scored by a run without their labels."""
