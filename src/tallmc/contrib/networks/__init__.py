"""Communities in networks: mini-batches of nodes and of their pairs."""

from .model import HeldOutPairs, held_out_pairs, link_perplexity, mixed_membership
from .sampler import mmsb_scir, mmsb_sgrld

__all__ = [
    "HeldOutPairs",
    "held_out_pairs",
    "link_perplexity",
    "mixed_membership",
    "mmsb_scir",
    "mmsb_sgrld",
]
