"""A posterior pairs a model with rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._core.arrays import (
    AbstractQuantities,
    Layout,
    Matrix,
    Parameters,
    Scalar,
    Vector,
    check_numeric,
    layout_of,
)
from .._core.errors import InvalidInput, counted
from .._core.programs import Uncompared
from .._rows.access import AbstractRows, PerRow, RowAccess, RowBlock, RowValues
from .._rows.resident import ResidentRows, resident
from .model import AbstractModel, DensityModel, check_per_row, check_scalar
from .predictive import AbstractPredictive, DensityPredictive, RegressionPredictive
from .transforms import ConstrainedLikelihood, ConstrainedPrior, constrained, constrained_parameters


class AbstractPosterior(eqx.Module):
    """A model and the rows that it is fitted to."""

    model: eqx.AbstractVar[AbstractModel]
    rows: eqx.AbstractVar[AbstractRows]
    quantities: eqx.AbstractVar[AbstractQuantities]
    description: eqx.AbstractVar[Mapping[str, str]]
    """The model in words: family, link, priors and so on."""
    predictive: eqx.AbstractVar[AbstractPredictive | None]
    """The law of the response of new rows; None if it is unknown."""

    def __repr__(self) -> str:
        parameters = counted(self.dim, "parameter")
        words = "".join(f"; {name}: {text}" for name, text in self.description.items())
        return f"<{type(self).__name__}: {counted(self.n_rows, 'row')}, {parameters}{words}>"

    @property
    def n_rows(self) -> int:
        """N, the number of rows."""
        return self.rows.n_rows

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return self.model.dim

    @property
    def dtype(self) -> Any:
        """The precision of positions."""
        return self.model.dtype

    @property
    def init(self) -> Vector:
        """The position at which a search for the mode starts."""
        return self.model.init

    @property
    def layout(self) -> Layout:
        """The layout of the parameters in a flat position."""
        return self.model.layout

    @property
    def width(self) -> int:
        """Floats that a pass needs per row."""
        return self.model.width(self.rows)

    @property
    def draws_are_dear(self) -> bool:
        """Whether a draw takes a pass over rows that cost much, for the quantities of users."""
        return self.quantities.reads_rows and self.model.row_cost > 1

    def in_memory(self) -> Self:
        """The same posterior with its rows in memory."""
        rows = self.rows
        return eqx.tree_at(lambda p: p.rows, self, rows.in_memory(), is_leaf=lambda p: p is rows)

    @property
    def data(self) -> PyTree[Array]:
        """The arrays of the rows; raises `AttributeError` unless the rows are in memory."""
        if not isinstance(self.rows, ResidentRows):
            raise AttributeError(f"{type(self.rows).__name__} are not arrays in memory")
        return self.rows.columns

    def potential(self, position: Float[Any, " d"]) -> Scalar:
        """f(θ), minus the log posterior density, up to a constant."""
        return self.model.potential_and_gradient(position, self.rows).rounded()[0]

    def gradient(self, position: Float[Any, " d"]) -> Vector:
        """∇f(θ), exact, in one pass over all rows."""
        return self.model.potential_and_gradient(position, self.rows).rounded()[1]

    def hessian(self, position: Float[Any, " d"]) -> Matrix:
        """∇²f(θ), exact, in one pass over all rows."""
        return self.model.full_hessian(position, self.rows).rounded()

    def lipschitz(self) -> RowValues:
        """L_i per row, with ‖∇f_i(θ) − ∇f_i(θ')‖ ≤ L_i ‖θ − θ'‖ (putcha-2023, Assumption 1)."""
        return self.rows.map(_row_lipschitz, self.model, width=self.width)


class ModelPosterior(AbstractPosterior):
    """A ready-made model with its rows."""

    model: AbstractModel
    rows: AbstractRows
    quantities: AbstractQuantities = eqx.field(static=True)
    description: Mapping[str, str] = eqx.field(static=True)
    predictive: AbstractPredictive | None

    def __init__(
        self,
        model: AbstractModel,
        rows: AbstractRows,
        quantities: AbstractQuantities | None = None,
        predictive: AbstractPredictive | None = None,
        description: Mapping[str, str] | None = None,
    ):
        self.model, self.rows = model, rows
        self.quantities = Parameters(model.layout) if quantities is None else quantities
        self.description = dict(description or {})
        if predictive is None and model.regression() is not None:
            predictive = RegressionPredictive(model)
        self.predictive = predictive


class Posterior(AbstractPosterior):
    """A posterior given by two log densities, the rows and a starting point.

    Derivatives come from automatic differentiation.

    **Arguments:**

    - `log_likelihood`: `log_likelihood(params, row)`, a scalar. `params` has the structure of
      `init`. `row` has the structure of `data`, without the leading axis of the arrays.
    - `log_prior`: `log_prior(params)`, a scalar.
    - `data`: a pytree of arrays with one common leading axis, or rows from `tallmc.rows`.
    - `init`: a pytree of floats, the parameters at which the search for the mode starts.
    - `lipschitz`: Lipschitz constants of the rows' gradients, a number or one per row. Only some
      methods need them.
    - `batched`: whether `log_likelihood` takes many rows at once and returns one number per row.
    - `transforms`: constraints of parameters, by the name of a leaf of `init`: "positive",
      "simplex", "unit_interval", "ordered_vector", "positive_ordered_vector", or, with NumPyro, any
      of its constraints or transforms, such as "cholesky". The densities get constrained
      parameters, `init` holds constrained parameters, and draws are constrained. The sampler moves
      in unconstrained space: positions are unconstrained.
    - `labels`: names for the entries of vector parameters: `{"beta": ["age", "income"]}`.
    - `quantities`: the quantities shown to users, instead of the parameters.
    - `mean`: `mean(params, row)`, the mean of the response of a row, for `Draws.predict`.
    - `simulate`: `simulate(key, params, row)`, a draw of the response of a row, for
      `Draws.posterior_predictive`.

    >>> import jax.numpy as jnp, jax.scipy.stats as stats
    >>> heights = jnp.array([1.62, 1.75, 1.80, 1.68])
    >>> posterior = Posterior(
    ...     log_likelihood=lambda params, height: stats.norm.logpdf(height, params["mean"], 0.1),
    ...     log_prior=lambda params: stats.norm.logpdf(params["mean"], 1.7, 1.0),
    ...     data=heights,
    ...     init={"mean": 1.7},
    ... )
    >>> posterior.n_rows, posterior.dim
    (4, 1)
    >>> posterior.gradient(jnp.array([1.7])).round(3)  # −Σ (height − 1.7) / 0.1²
    Array([-5.], dtype=float32)

    A scale is positive:

    >>> posterior = Posterior(
    ...     log_likelihood=lambda params, height: stats.norm.logpdf(height, 1.7, params["sd"]),
    ...     log_prior=lambda params: stats.expon.logpdf(params["sd"]),
    ...     data=heights,
    ...     init={"sd": 0.1},
    ...     transforms={"sd": "positive"},
    ... )
    >>> round(float(posterior.init[0]), 2)  # log 0.1
    -2.3
    """

    model: DensityModel
    rows: AbstractRows
    quantities: AbstractQuantities = eqx.field(static=True)
    description: Mapping[str, str] = eqx.field(static=True)
    predictive: DensityPredictive
    lipschitz_constants: Float[Array, " N"] | None

    def __init__(
        self,
        log_likelihood: Callable[[PyTree, PyTree], Any],
        log_prior: Callable[[PyTree], Any],
        data: PyTree[ArrayLike] | AbstractRows,
        init: PyTree[ArrayLike],
        lipschitz: ArrayLike | None = None,
        *,
        batched: bool = False,
        transforms: Mapping[str, Any] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        quantities: AbstractQuantities | None = None,
        mean: Callable[[PyTree, PyTree], Any] | None = None,
        simulate: Callable[[Any, PyTree, PyTree], Any] | None = None,
    ):
        for name, density in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
            if not callable(density):
                raise InvalidInput(name, "be a function", density)
        constraints = None
        self.rows = data if isinstance(data, AbstractRows) else resident(data)
        if transforms:
            constraints, init = constrained(init, transforms, labels or {})
            log_likelihood = ConstrainedLikelihood(log_likelihood, constraints)
            log_prior = ConstrainedPrior(log_prior, constraints)
            quantities = quantities or constrained_parameters(constraints)
        layout, flat_init = layout_of(init)
        if not transforms:
            layout = layout.labelled(labels or {})
        self.quantities, self.description = quantities or Parameters(layout), {}
        self.model = DensityModel(
            log_likelihood=log_likelihood,
            log_prior=log_prior,
            init=flat_init,
            layout=layout,
            batched=batched,
        )
        row_shapes = Uncompared(self.rows.row_shapes)
        self.predictive = DensityPredictive(self.model, constraints, row_shapes, simulate, mean)
        self.lipschitz_constants = (
            None if lipschitz is None else _checked_lipschitz(lipschitz, self.n_rows, self.dtype)
        )
        params = jax.eval_shape(layout.unravel, flat_init)
        if batched:
            name = "log_likelihood(params, rows)"
            check_per_row(name, log_likelihood, params, self.rows.row_shapes)
        else:
            name = "log_likelihood(params, row)"
            cure = "It gets one row; sum over the axes of the row."
            check_scalar(name, cure, log_likelihood, params, self.rows.row_shapes)
        check_scalar("log_prior(params)", "For a flat prior return 0.0.", log_prior, params)

    def lipschitz(self) -> RowValues:
        given = self.lipschitz_constants
        return super().lipschitz() if given is None else given


def check_posterior(posterior: Any) -> None:
    """Raise unless `posterior` is a posterior of tallmc."""
    if not isinstance(posterior, AbstractPosterior):
        cure = "See tallmc.Posterior and tallmc.models."
        raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, cure)


def check_in_memory(posterior: AbstractPosterior, what: str, cure: str) -> None:
    """Raise unless the rows of the posterior are in memory, which `what` needs."""
    if posterior.rows.access < RowAccess.TAKE:
        rule = f"have rows in memory: {what}"
        raise InvalidInput("posterior", rule, type(posterior.rows).__name__, cure)


def _row_lipschitz(block: RowBlock, model: AbstractModel) -> PerRow:
    return model.row_lipschitz(block)


def _checked_lipschitz(lipschitz: ArrayLike, n_rows: int, dtype: Any) -> Float[Array, " N"]:
    values = np.asarray(check_numeric("lipschitz", lipschitz), np.float64)
    good = values.shape in ((), (n_rows,)) and np.all(np.isfinite(values) & (values > 0))
    if not good:
        rule = f"be positive and finite, a number or one per row ({n_rows})"
        raise InvalidInput("lipschitz", rule, f"shape {values.shape}")
    return jnp.broadcast_to(jnp.asarray(values, dtype), (n_rows,))
