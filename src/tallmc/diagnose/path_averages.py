"""Exact averages along the paths of a zig-zag run.

A draw of `ZigZag` records the mean and the variance of its piece of the path. Over all pieces,

    mean = average of the means,   sd² = average of the variances + variance of the means.

Both are integrals along the path, without an error of discretisation: Monte-Carlo error remains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..core.errors import InvalidInput
from ..results.draws import Draws
from ..statistics.convergence import ess
from ..statistics.moments import moments


class PathMoments(NamedTuple):
    """Averages along paths, per parameter.

    >>> PathMoments(np.array([0.1]), np.array([1.0]), np.array([0.01])).sd
    array([1.])
    """

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    mean_error: Float[np.ndarray, " d"]
    """The Monte-Carlo standard error of `mean`."""


def path_moments(draws: Draws) -> PathMoments:
    """Means and sds of the parameters, as exact averages along the paths of a zig-zag run.

    **Arguments:**

    - `draws`: draws of `tallmc.zig_zag(...)`. Thinned draws hold the last piece of the path before
      each draw only.

    **Returns:** a `PathMoments`. Failed chains are left out.

    **Raises:** `InvalidInput` if the draws are of another method, or no chain completed.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], 10.0, noise_variance=1.0)
    >>> draws = tallmc.sample(posterior, tallmc.zig_zag(step_size=2.0), progress=False)
    >>> path_moments(draws).mean.round(1) + 0.0
    array([ 1., -1.])
    """
    stats = getattr(draws, "sample_stats", {})
    if not {"path_mean", "path_variance"} <= set(stats):
        cure = "Use sample(posterior, zig_zag(...))."
        raise InvalidInput("draws", "be those of a zig-zag process", draws, cure)
    if not draws.ok.any():
        found = f"outcomes {[outcome.name for outcome in draws.outcomes]}"
        raise InvalidInput("draws", "have a chain that completed", found)
    means = np.asarray(stats["path_mean"], np.float64)[draws.ok]
    within = np.asarray(stats["path_variance"], np.float64)[draws.ok].mean(axis=(0, 1))
    between = moments(means)
    return PathMoments(
        mean=between.mean,
        sd=np.sqrt(within + between.sd**2),
        mean_error=between.sd / np.sqrt(ess(means)),
    )
