"""`mmdiff build-graph`: from descriptors to the graph, stage by stage, with its memory model and its plan."""
