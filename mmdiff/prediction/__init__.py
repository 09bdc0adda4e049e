"""Answers: a class with a calibrated confidence for each row of the collection and each test point."""
