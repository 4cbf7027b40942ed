"""How well draws predict links of a network that they have not seen.

    perplexity = exp(−(1/n) Σ_{pairs (a,b)} log (1/T) Σ_t p(y_ab | π_t, β_t))

Li, Ahn and Welling (2016), section 5: the probability of a pair is averaged over draws before its
logarithm is taken. It is 1 for perfect predictions, and 2 for a coin.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import ArrayLike

from ..core.errors import InvalidInput
from ..models.mixed_membership import LinkPredictive
from ..results.draws import Draws
from .scores import mean_log_density


def link_perplexity(draws: Draws, pairs: ArrayLike, links: ArrayLike) -> float:
    """The perplexity of held-out pairs of nodes; smaller is better.

    **Arguments:**

    - `draws`: draws of `tallmc.models.mixed_membership`.
    - `pairs`: pairs of nodes, (n, 2).
    - `links`: 1 for each pair that is linked, 0 for the others.

    **Returns:** the perplexity, at least 1.

    **Raises:** `InvalidInput` if the draws are not those of a network, or a pair is out of range.

    >>> import tallmc
    >>> edges = [[0, 1], [0, 2], [1, 2], [2, 3], [3, 4]]
    >>> posterior = tallmc.models.mixed_membership(edges, held_out=[[3, 4], [0, 4]])
    >>> method = tallmc.mmsb_scir(0.5)
    >>> draws = tallmc.sample(posterior, method, chains=2, draws=100, burn_in=100)
    >>> 1 < link_perplexity(draws, [[3, 4], [0, 4]], [1, 0]) < 6
    True
    """
    predictive = getattr(draws, "predictive", None)
    if not isinstance(predictive, LinkPredictive):
        cure = "Stored draws need their posterior: draws.with_posterior(posterior)."
        rule = "be draws of tallmc.models.mixed_membership"
        raise InvalidInput("draws", rule, type(draws).__name__, cure)
    completed = draws.positions[draws.ok]
    if not completed.size:
        raise InvalidInput("draws", "have a chain that completed", "none")
    positions = jnp.asarray(completed.reshape(-1, completed.shape[-1]))
    rows = predictive.encode((pairs, links), response=True)
    return math.exp(-mean_log_density(predictive, positions, rows))
