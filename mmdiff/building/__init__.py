"""`mmdiff build-graph`: from descriptors to the graph, stage by stage, with a memory model and an estimate."""
