"""Bayesian neural networks with Gaussian priors on all weights.

    y_i ~ Categorical(softmax g(w, x_i))   or   y_i ~ N(g(w, x_i), noise variance)
    w_j ~ N(0, v)   or, with precisions,   w_j ~ N(0, v/λ_g),   λ_g ~ Gamma(shape, rate)

Each array of weights or biases is a group g. The posterior is invariant under permutations of
hidden units, so it has many equal modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from ..core.arrays import check_numeric, to_floats
from ..core.errors import InvalidInput, check_int, check_number
from ..core.layout import layout_of
from .layers import AbstractLayer, LayeredNetwork
from .observations import Observations
from .output_law import AbstractOutputLaw, CategoricalOutput, GaussianOutput, OutputLikelihood
from .output_posterior import output_posterior
from .posterior import ModelPosterior
from .precisions import GammaLaw, normal_log_density

Network = Callable[[PyTree, Float[Array, "n ..."]], Float[Array, "n k"]]


class WeightsOnly(eqx.Module):
    """A network as a function of all parameters, which may include precisions."""

    network: Network
    has_precisions: bool = eqx.field(static=True)

    def __call__(self, params: PyTree, x: Float[Array, "n ..."]) -> Float[Array, "n k"]:
        return self.network(params["network"] if self.has_precisions else params, x)


class WeightsPrior(eqx.Module):
    """log N(w | 0, v) or, with a Gamma law, log N(w | 0, v/λ) + log Gamma(λ)."""

    variance: Float[Array, ""]
    law: GammaLaw | None = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        if self.law is None:
            pairs = [(leaf, jnp.ones_like(self.variance)) for leaf in jax.tree.leaves(params)]
        else:
            precisions = jax.tree.leaves(params["precision"])
            pairs = list(zip(jax.tree.leaves(params["network"]), precisions, strict=True))
        terms = [normal_log_density(leaf, 0, value / self.variance) for leaf, value in pairs]
        if self.law is not None:
            terms += [self.law.log_density(value) for _, value in pairs]
        return jnp.sum(jnp.stack(terms))


def neural_network(
    layers: Sequence[AbstractLayer] | Network,
    x: ArrayLike,
    y: ArrayLike,
    *,
    prior_variance: float = 1.0,
    precisions: bool | tuple[float, float] = False,
    response: Literal["categorical", "gaussian"] = "categorical",
    classes: int | None = None,
    noise_variance: float = 1.0,
    init: PyTree[ArrayLike] | None = None,
    seed: int = 0,
) -> ModelPosterior:
    """A Bayesian neural network for classes or numbers, w ~ N(0, prior_variance).

    **Arguments:**

    - `layers`: the hidden layers (`DenseLayer`, `ConvolutionalLayer`, `MaxPoolLayer`); a dense
      output layer is added. Or `network(weights, x)`, a function of any pytree of weights and of a
      block of rows that returns one output per row and class, together with `init`.
    - `x`: the rows, such as a matrix or images (n, height, width) or (n, height, width, channels).
    - `y`: the class (0, 1, …) or the number of each row.
    - `prior_variance`: the prior variance of weights and biases.
    - `precisions`: True or a pair (shape, rate) for w ~ N(0, prior_variance/λ) with one
      λ ~ Gamma(shape, rate) per array of weights or biases; True is Gamma(1, 1).
    - `response`: "categorical" or "gaussian".
    - `classes`: the number of classes; by default one more than the largest y.
    - `noise_variance`: the variance of a Gaussian response.
    - `init`: the weights at which chains start. By default they are random, with variance
      2/fan-in before a ReLU and 1/fan-in otherwise. Equal hidden units would stay equal.
    - `seed`: seed of the random weights.

    **Returns:** a posterior with the parameters `layer0.weight`, `layer0.bias`, …,
    `output.weight`, `output.bias`. With precisions their names begin with `network`, and the
    precisions are `precision.layer0.weight`, …. `draws.predict(x)` gives class probabilities.

    **Raises:** `InvalidInput` if the rows do not fit the layers, or y is not a class or number.

    >>> from tallmc.models import DenseLayer
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [0, 1, 1]
    >>> posterior = neural_network([DenseLayer(4, "tanh")], x, y)
    >>> posterior.layout.names
    ('layer0.bias', 'layer0.weight', 'output.bias', 'output.weight')
    >>> posterior.dim
    22
    """
    rows, law, n_outputs = _rows_and_law(x, y, response, classes, noise_variance)
    shape, dtype = rows.x.shape[1:], rows.x.dtype
    network: Network
    if callable(layers):
        if init is None:
            raise InvalidInput("init", "be the weights of the function", None)
        network, weights = layers, jax.tree.map(lambda leaf: to_floats("init", leaf, dtype), init)
    else:
        network = LayeredNetwork.of(layers, n_outputs)
        weights = network.start(check_int("seed", seed, 0), shape, dtype)
        if init is not None:
            layout, _ = layout_of(weights)
            weights = layout.unravel(layout.ravel(init).astype(dtype))
    variance = check_number("prior_variance", prior_variance, 0, low_open=True)
    gamma = _gamma_law(precisions)
    params, names = weights, []
    if gamma is not None:
        ones = jax.tree.map(lambda _: jnp.ones((), dtype), weights)
        params = {"network": weights, "precision": ones}
        names = [f"precision.{name}" for name in layout_of(weights)[0].names]
    outputs = WeightsOnly(network, gamma is not None)
    _check_outputs(outputs, params, rows, n_outputs)
    known_classes = n_outputs if response == "categorical" else None
    return output_posterior(
        OutputLikelihood(outputs, law),
        WeightsPrior(jnp.asarray(variance, dtype), gamma),
        rows,
        params,
        positive_names=names,
        encode_x=lambda new: _checked_x("new rows", new, dtype, shape),
        encode_y=lambda new: _checked_y(new, dtype, known_classes),
        classes=None if known_classes is None else tuple(map(str, range(known_classes))),
        description={"family": f"neural network, {response}", "layers": str(layers)},
    )


def _check_outputs(outputs: WeightsOnly, params: PyTree, rows: Observations, count: int) -> None:
    """Raise unless the network returns `count` outputs per row."""
    found = jax.eval_shape(outputs, params, rows.x[:2]).shape
    if found != (len(rows.x[:2]), count):
        rule = f"return an array (rows, {count})"
        raise InvalidInput("layers(weights, x)", rule, f"shape {found}")


def _rows_and_law(
    x: ArrayLike, y: ArrayLike, response: str, classes: int | None, noise_variance: float
) -> tuple[Observations, AbstractOutputLaw, int]:
    """The rows, the law of the response and the number of outputs."""
    if response not in ("categorical", "gaussian"):
        raise InvalidInput("response", 'be "categorical" or "gaussian"', response)
    inputs = _checked_x("x", x, None, None)
    dtype = inputs.dtype
    if response == "gaussian":
        variance = check_number("noise_variance", noise_variance, 0, low_open=True)
        law: AbstractOutputLaw = GaussianOutput(jnp.asarray(variance, dtype))
        targets, n_outputs = _checked_y(y, dtype, None), 1
    else:
        largest = np.asarray(check_numeric("y", y)).max(initial=0)
        n_outputs = check_int("classes", int(largest) + 1 if classes is None else classes, 2)
        law, targets = CategoricalOutput(), _checked_y(y, dtype, n_outputs)
    if targets.shape != inputs.shape[:1]:
        rule = f"have one entry per row of x ({inputs.shape[0]})"
        raise InvalidInput("y", rule, f"shape {targets.shape}")
    return Observations(inputs, targets), law, n_outputs


def _checked_x(
    parameter: str, x: Any, dtype: Any, shape: tuple[int, ...] | None
) -> Float[Array, "n ..."]:
    found = to_floats(parameter, x, dtype)
    if found.ndim < 2 or 0 in found.shape:
        rule = "have at least one row, and one axis besides the rows"
        raise InvalidInput(parameter, rule, f"shape {found.shape}")
    if shape is not None and found.shape[1:] != shape:
        raise InvalidInput(parameter, f"have rows of shape {shape}", f"shape {found.shape}")
    if not bool(jnp.all(jnp.isfinite(found))):
        raise InvalidInput(parameter, "be finite", "NaN or infinity", "Drop or impute such rows.")
    return found


def _checked_y(y: Any, dtype: Any, classes: int | None) -> Float[Array, " n"]:
    found = to_floats("y", y, dtype)
    values = np.asarray(found)
    if classes is None:
        good, rule = np.isfinite(values), "be a finite number in every row"
    else:
        good = (values >= 0) & (values < classes) & (values % 1 == 0)
        rule = f"be a class (0 to {classes - 1}) in every row"
    if found.ndim != 1 or not good.all():
        bad = f"shape {found.shape}" if found.ndim != 1 else f"{values[np.argmin(good)]:g}"
        raise InvalidInput("y", rule, bad)
    return found


def _gamma_law(precisions: bool | tuple[float, float]) -> GammaLaw | None:
    if precisions is False or precisions is None:
        return None
    return GammaLaw(1.0, 1.0) if precisions is True else GammaLaw.of("precisions", precisions)
