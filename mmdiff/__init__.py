"""mmdiff: out-of-core label diffusion over the k-nearest-neighbour graph of up to 10^8 embeddings.

`mmdiff` computes, `mmdiff.formats` knows the disk, `mmdiff.cli` talks to people; imports point from cli to mmdiff to formats.
The method is that of Douze, Szlam, Hariharan and Jegou, "Low-shot learning with large-scale diffusion", CVPR 2018.
"""

__version__ = "0.1.0"
