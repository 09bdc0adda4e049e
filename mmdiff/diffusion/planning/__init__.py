"""Memory, disk and time of a diffusion, known before it runs."""
