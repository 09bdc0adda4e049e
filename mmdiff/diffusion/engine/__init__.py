"""The iterations: states of a batch of columns, products with W, and the exact shortcuts."""
