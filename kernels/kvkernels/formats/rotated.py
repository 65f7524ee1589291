"""int4 of Hadamard-rotated vectors: outlier channels are spread over all before rounding.

x -> H x / sqrt(D), then `int4` per token and head; K and V both. Keys come after RoPE, and the
rotation acts inside one head vector, so that paging and eviction are as for int4. Sources: QuaRot
(arXiv 2404.00456), vLLM's `int4_per_token_head`.
"""

from kvkernels.formats.integer import Uniform

INT4_ROTATED = Uniform("int4_rotated", 4, num_scales=2, rotated=True)
