"""The diffusion's traffic with the disk: streaming W, spilling S, checkpoints, and batches computed by workers."""
