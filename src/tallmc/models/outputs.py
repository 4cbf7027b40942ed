"""A posterior from a likelihood of outputs, a prior, rows and positive parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._core.arrays import Scalar, Vector
from .._core.errors import InvalidInput, check_number
from .._core.programs import Uncompared
from .._rows.access import PerRow
from .design import Observations
from .model import DensityModel
from .posterior import ModelPosterior, Posterior
from .predictive import AbstractDensityPredictive, split_response
from .transforms import Constraints

# The law of a response given the outputs of a function of the row, and its likelihood.
#
#     z_i = g(θ, x_i),   y_i ~ p(· | z_i)
#
# `OutputLikelihood` takes a block of rows, so that g is one matrix product per layer rather than
# one per row.


class CategoricalOutput(eqx.Module):
    """P(y = k | z) ∝ e^{z_k}. Its mean is the probability of each class."""

    def log_density(self, z: Float[Array, "n k"], y: PerRow) -> PerRow:
        """Log p(y | z) per row, with all constants."""
        chosen = jnp.arange(z.shape[1]) == y[:, None]
        return jnp.sum(jnp.where(chosen, jax.nn.log_softmax(z), 0), axis=1)

    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return jax.nn.softmax(z)

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"]) -> PerRow:
        return jax.random.categorical(key, z).astype(z.dtype)


class GaussianOutput(eqx.Module):
    """y ~ N(z, noise variance), with a single output."""

    noise_variance: Scalar

    def log_density(self, z: Float[Array, "n 1"], y: PerRow) -> PerRow:
        squares = (y - z[:, 0]) ** 2 / self.noise_variance
        return -0.5 * (squares + jnp.log(2 * np.pi * self.noise_variance))

    def mean(self, z: Float[Array, "n 1"]) -> PerRow:
        return z[:, 0]

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n 1"]) -> PerRow:
        noise = jax.random.normal(key, z.shape[:1], z.dtype)
        return z[:, 0] + jnp.sqrt(self.noise_variance) * noise


OutputLaw = CategoricalOutput | GaussianOutput


class OutputLikelihood(eqx.Module):
    """log p(y_i | g(θ, x_i)) of a block of rows."""

    outputs: Callable[[PyTree, Any], Float[Array, "n k"]]
    """g."""
    law: OutputLaw

    def __call__(self, params: PyTree, block: Observations) -> PerRow:
        return self.law.log_density(self.outputs(params, block.x), block.y)


# The law of new rows for a model whose response depends on outputs of a function of the row.


class OutputPredictive(AbstractDensityPredictive):
    """The law of the response of new rows, of which `encoders` check x and y."""

    model: DensityModel
    constraints: Constraints | None
    likelihood: OutputLikelihood
    encoders: Uncompared[tuple[Callable[[Any], Array], Callable[[Any], Array]]] = eqx.field(
        static=True
    )
    class_names: Uncompared[tuple[str, ...] | None] = eqx.field(static=True)

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.class_names.value

    def encoded(self, new_rows: Any, response: bool) -> Observations:
        if isinstance(new_rows, Observations):
            return new_rows
        given_x, given_y = split_response(new_rows, response, "be a pair (x, y)")
        encode_x, encode_y = self.encoders.value
        x = encode_x(given_x)
        if given_y is None:
            return Observations(x, jnp.full(x.shape[0], jnp.nan, self.model.dtype))
        y = encode_y(given_y)
        if y.shape != x.shape[:1]:
            raise InvalidInput("y", f"have one entry per row ({x.shape[0]})", f"shape {y.shape}")
        return Observations(x, y)

    def observed(self, block: Observations) -> PerRow:
        return block.y

    def mean(self, position: Vector, block: Observations) -> Float[Array, "n ..."]:
        return self.likelihood.law.mean(self._outputs(position, block))

    def simulate(self, key: PRNGKeyArray, position: Vector, block: Observations) -> PerRow:
        return self.likelihood.law.simulate(key, self._outputs(position, block))

    def _outputs(self, position: Vector, block: Observations) -> Float[Array, "n k"]:
        return self.likelihood.outputs(self.params(position), block.x)


# Gaussian priors whose precisions are parameters with Gamma priors.
#
#     w ~ N(μ, λ⁻¹),   λ ~ Gamma(shape, rate),   u = log λ
#
# The sampler moves u, so λ stays positive. The density of u has the Jacobian e^u.


@dataclasses.dataclass(frozen=True)
class GammaLaw:
    """Gamma(shape, rate)."""

    shape: float
    rate: float

    @classmethod
    def of(cls, parameter: str, given: Any) -> GammaLaw:
        """The law from a pair (shape, rate)."""
        if not isinstance(given, tuple) or len(given) != 2:
            raise InvalidInput(parameter, "be a pair (shape, rate) of a Gamma law", given)
        return cls(*(check_number(parameter, number, 0, low_open=True) for number in given))

    def log_density(self, precision: Float[Array, "*k"]) -> Scalar:
        """Σ log p(λ), with all constants."""
        constant = self.shape * np.log(self.rate) - gammaln(self.shape)
        return jnp.sum(constant + (self.shape - 1) * jnp.log(precision) - self.rate * precision)


def normal_log_density(
    values: Float[Array, "*n"], mean: Any, precision: Float[Any, "*k"]
) -> Scalar:
    """Σ log N(w | mean, precision⁻¹), with all constants."""
    exponents = precision * (values - mean) ** 2 + np.log(2 * np.pi) - jnp.log(precision)
    return -0.5 * jnp.sum(exponents)


def output_posterior(
    likelihood: OutputLikelihood,
    log_prior: Callable[[PyTree], Array],
    block: Observations,
    start: PyTree[Array],
    *,
    positive_names: Sequence[str],
    encode_x: Callable[[Any], Array],
    encode_y: Callable[[Any], Array],
    classes: tuple[str, ...] | None,
    description: Mapping[str, str],
) -> ModelPosterior:
    """The posterior of parameters that start at `start`; leaves named positive stay positive."""
    positive = dict.fromkeys(positive_names, "positive")
    found = Posterior(likelihood, log_prior, block, start, batched=True, transforms=positive)
    model, constraints = found.model, found.predictive.constraints
    encoders = Uncompared((encode_x, encode_y))
    predictive = OutputPredictive(model, constraints, likelihood, encoders, Uncompared(classes))
    return ModelPosterior(model, found.rows, found.quantities, predictive, description)
