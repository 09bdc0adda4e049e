"""Running work: threads, memory, progress, Dask, records of runs, and finding what was made before."""
