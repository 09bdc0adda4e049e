"""`mmdiff logreg`: multinomial logistic regression on the seeds, the paper's baseline (section 4.1)."""
