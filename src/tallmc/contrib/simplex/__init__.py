"""Points on simplices: SGRLD in the expanded mean, and the Cox–Ingersoll–Ross process."""

from .counts import dirichlet_multinomial
from .sampler import scir, sgrld_simplex
from .topics import lda, perplexity, top_words
from .transitions import AbstractGammaTransition, CoxIngersollRoss, ExpandedMean

__all__ = [
    "AbstractGammaTransition",
    "CoxIngersollRoss",
    "ExpandedMean",
    "dirichlet_multinomial",
    "lda",
    "perplexity",
    "scir",
    "sgrld_simplex",
    "top_words",
]
