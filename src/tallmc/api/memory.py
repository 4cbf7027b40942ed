"""Refuses draws that do not fit in memory, before anything is sampled."""

from __future__ import annotations

import os

import numpy as np

from ..core.errors import InvalidInput
from ..models.posterior import AbstractPosterior

_MOST_OF_MEMORY = 0.5


def check_draws_fit(posterior: AbstractPosterior, chains: int, draws: int) -> None:
    """Raise if the draws would take more than half of the memory of the machine."""
    wanted = chains * draws * posterior.dim * np.dtype(posterior.dtype).itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > _MOST_OF_MEMORY * memory:
        raise InvalidInput(
            "draws",
            f"fit in memory: {chains:,} chains × {draws:,} draws × {posterior.dim:,} parameters "
            f"take {wanted / 2**30:,.0f} GiB, and the machine has {memory / 2**30:,.0f} GiB",
            draws,
            "Ask for fewer draws with a larger thin, or pass store=. For a LocalPosterior keep "
            "fewer groups: posterior.keeping({...}).",
        )
