"""Stochastic-gradient Langevin dynamics that move the groups of the drawn rows only.

The parameters are φ, which all rows share, and z_g, one vector per group; f₀(φ) = −log p(φ) and
f_g(φ, z_g) = −log p(z_g | φ). A step draws n rows with replacement with probabilities p_i. They
touch a set T of groups, group g with the probability q_g. The step moves φ and the touched groups:

    q_g = 1 − (1 − Σ_{i∈g} p_i)ⁿ
    z_g ← z_g − (ε/2) M_g [∇_z f_g + q_g Σ_{draws i∈g} ∇_z f_i/(n p_i)] + √(εM_g) η_g,   g ∈ T
    φ ← φ − (ε/2) M₀ [∇f₀ + Σ_{g∈T} ∇_φ f_g/q_g + Σ_{draws i} ∇_φ f_i/(n p_i)] + √(εM₀) η₀

The sum over the draws of group g has the mean Σ_{i∈g} ∇f_i, and it is zero if g ∉ T. Given that g
is touched, its mean is therefore the whole sum divided by q_g, and the bracket is unbiased
for ∇_z f. Prior and noise are counted in full, because both are absent in the steps that leave the
group alone. Without the factor q_g, a group with few rows would believe its rows 1/q_g times over.
With a prior that is scaled by N/n like the likelihood, it would believe its prior too much.

The draws of the rows do not depend on the state. To first order in ε, the mean of a function h
changes by ε Σ_g q_g [−½ ∇_g f·M_g∇_g h + ½ tr(M_g ∇²_g h)] per step, with q = 1 for φ. Every term
leaves exp(−f) invariant, so the law of the chain tends to the posterior as ε → 0: a random scan, in
which group g runs at the speed q_g. At fixed ε the bias is of order ε: that of the discretisation,
and that of the noise of the gradient. A touched group usually has a single draw, which stands for
its n_g rows. This inflates its variance by about (ε/4) n_g² M_g Var_i(∇f_i), relative to the
variance of an exact gradient, so keep εM_g n_g small against the inverse curvature of a row.

The sum over T estimates Σ_g ∇_φ f_g over all groups. It has the covariance Σ_g (1/q_g − 1)
∇_φ f_g ∇_φ f_gᵀ, up to the small dependence between groups. For a `NormalGroups` prior, sums of z
and z² over all groups are kept up to date, and the term has no noise.

Cost: n rows and at most n groups of each kind per step, at any number of groups. Memory holds the
parameters of all groups, with their mean and variance over the run. Ahn et al. (2015) move the
touched users and items of a matrix factorisation in this way.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.errors import InvalidInput, check_int
from ...core.supervision import stage
from ...dynamics import Langevin
from ...dynamics.base import Curvature, Suggestion
from ...engine.kernel import BoundKernel
from ...models.local import LocalPosterior
from ...models.posterior import AbstractPosterior, check_posterior
from ...rows.probabilities import probabilities
from ...schedule import as_schedule, in_precision
from ..base import AbstractReadingMethod, PreparedMethod
from .curvature import inverse_curvature
from .kernel import GroupConstants, LocalKernel
from .touched import touch_probabilities


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalSGLD(AbstractReadingMethod):
    """Langevin dynamics of a `LocalPosterior`, of which a step moves the groups of its rows.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: n, the rows per step.
    - `preconditioned`: whether M is the inverse curvature of each parameter at the start, measured
      in one pass over all rows. Step sizes are then relative to it. Otherwise M = 1.
    - `weights`: positive weights of the rows, to which p is proportional; None for equal ones.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.LocalSGLD(step_size=0.01, size=10).exact
    False
    """

    step_size: Any
    size: int
    preconditioned: bool = False
    weights: Any = None

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_int("size", self.size, 1)
        if not isinstance(self.preconditioned, bool):
            raise InvalidInput("preconditioned", "be True or False", self.preconditioned)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.NOTHING

    @property
    def exact(self) -> bool:
        return False

    @property
    def unseen_by_pairs(self) -> None:
        return None

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": "Langevin, touched groups",
            "gradient": "Simple, touched groups",
            "subsample": "Uniform" if self.weights is None else "Preferential",
            "size": "fixed",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        return Langevin().suggest(curvature)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Compute how often groups are touched and, if wanted, the curvature at the start."""
        check_posterior(posterior)
        if not isinstance(posterior, LocalPosterior):
            cure = "Make it with tallmc.LocalPosterior or tallmc.models.mixed_effects."
            rule = "have parameters of groups for local_sgld"
            raise InvalidInput("posterior", rule, type(posterior).__name__, cure)
        if anchor is not None:
            raise InvalidInput("anchor", "be left out for local_sgld", "an anchor")
        n_rows, dtype = posterior.n_rows, posterior.dtype
        p = None if self.weights is None else _probabilities(self.weights, n_rows)
        shared_metric, metrics, rows_read = None, dict[str, Array](), 0
        if self.preconditioned:
            stage("measuring the curvature of all groups")
            shared_metric, metrics = inverse_curvature(posterior)
            rows_read = n_rows
        known = {}
        for kind, init in posterior.group_init.items():
            q = touch_probabilities(
                np.full(n_rows, 1 / n_rows) if p is None else p,
                posterior.rows.columns.groups[kind],
                len(init),
                self.size,
            )
            known[kind] = GroupConstants(
                init=init,
                touch_probability=jnp.asarray(q, dtype),
                metric=metrics.get(kind),
                kept=jnp.asarray(posterior.kept[kind], jnp.int32),
            )
        kernel = LocalKernel(
            visible=posterior.model,
            densities=posterior.densities,
            groups=known,
            shared_metric=shared_metric,
            stream=posterior.rows.stream(p, dtype),
            schedule=in_precision(as_schedule(self.step_size), dtype),
            rest=posterior.init,
            burn_in=np.array(0, np.int32),
            size=self.size,
        )
        return PreparedMethod(BoundKernel(kernel, posterior), None, rows_read)


def _probabilities(weights: Any, n_rows: int) -> np.ndarray:
    if np.shape(weights) != (n_rows,):
        raise InvalidInput("weights", f"have one number per row ({n_rows})", np.shape(weights))
    return probabilities(weights, floor=0.0)
