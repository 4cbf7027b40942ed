"""Bayesian neural networks with Gaussian priors on all weights.

    y_i ~ Categorical(softmax g(w, x_i))   or   y_i ~ N(g(w, x_i), noise variance)
    w_j ~ N(0, v)   or, with precisions,   w_j ~ N(0, v/λ_g),   λ_g ~ Gamma(shape, rate)

Each array of weights or biases is a group g. The posterior is invariant under permutations of
hidden units, so it has many equal modes.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._core.arrays import Scalar, check_numeric, layout_of, to_floats
from .._core.errors import InvalidInput, check_int, check_number
from .._rows.access import PerRow
from .design import Observations
from .outputs import (
    CategoricalOutput,
    GammaLaw,
    GaussianOutput,
    OutputLaw,
    OutputLikelihood,
    normal_log_density,
    output_posterior,
)
from .posterior import ModelPosterior

# Layers of neural networks: dense, convolutional and pooling.
#
#     dense           a(x W + b)
#     convolutional   a(Σ_{u,v} x[i + u, j + v, :] W[u, v] + b), without padding
#     pooling         the maximum over squares that do not overlap
#
# A layer is a function of its weights and of a block of rows. A convolution is a matrix product
# with the patches of the images: `vmap` over chains, each with its own weights, then is a batched
# matrix product, whereas a convolution of XLA becomes a slow grouped convolution.

Weights = dict[str, Array]
Shape = tuple[int, ...]
"""The shape of a row."""
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda z: z,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
}


class AbstractLayer(abc.ABC):
    """A function of weights and of a block of rows."""

    @abc.abstractmethod
    def start(self, rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[Weights, Shape]:
        """Random weights for rows of this shape, and the shape of the result.

        Weights have variance 2/fan-in before a ReLU and 1/fan-in otherwise; biases are zero.
        """

    @abc.abstractmethod
    def __call__(self, weights: Weights, x: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """The result for a block of rows."""


@dataclasses.dataclass(frozen=True)
class DenseLayer(AbstractLayer):
    """A dense layer; rows of several axes are flattened.

    **Arguments:**

    - `units`: the number of outputs.
    - `activation`: "identity", "relu", "sigmoid", "softmax", "softplus" or "tanh".
    """

    units: int
    activation: str = "identity"

    def __post_init__(self) -> None:
        check_int("units", self.units, 1)
        _check_activation(self.activation)

    def start(self, rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[Weights, Shape]:
        inputs = math.prod(shape)
        return _weights(rng, (inputs, self.units), inputs, self.activation, dtype), (self.units,)

    def __call__(self, weights: Weights, x: Float[Array, "n ..."]) -> Float[Array, "n units"]:
        flat = x.reshape(x.shape[0], -1)
        return ACTIVATIONS[self.activation](flat @ weights["weight"] + weights["bias"])


@dataclasses.dataclass(frozen=True)
class ConvolutionalLayer(AbstractLayer):
    """A convolution of images (height, width) or (height, width, channels), without padding.

    **Arguments:**

    - `channels`: the number of channels of the result.
    - `size`: height and width of the kernel.
    - `activation`: as in `DenseLayer`.
    """

    channels: int
    size: int
    activation: str = "identity"

    def __post_init__(self) -> None:
        check_int("channels", self.channels, 1)
        check_int("size", self.size, 1)
        _check_activation(self.activation)

    def start(self, rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[Weights, Shape]:
        height, width, channels = _image(shape, self.size)
        inputs = self.size**2 * channels
        weights = _weights(rng, (inputs, self.channels), inputs, self.activation, dtype)
        return weights, (height - self.size + 1, width - self.size + 1, self.channels)

    def __call__(self, weights: Weights, x: Float[Array, "n h w ..."]) -> Float[Array, "n i j k"]:
        images = x if x.ndim == 4 else x[..., None]
        height, width = (length - self.size + 1 for length in images.shape[1:3])
        shifted = [
            images[:, row : row + height, column : column + width]
            for row in range(self.size)
            for column in range(self.size)
        ]
        patches = jnp.concatenate(shifted, axis=-1)
        return ACTIVATIONS[self.activation](patches @ weights["weight"] + weights["bias"])


@dataclasses.dataclass(frozen=True)
class MaxPoolLayer(AbstractLayer):
    """The maximum over squares of side `size` that do not overlap. A remainder is cut off."""

    size: int

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)

    def start(self, rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[Weights, Shape]:
        height, width, channels = _image(shape, self.size)
        return {}, (height // self.size, width // self.size, channels)

    def __call__(self, weights: Weights, x: Float[Array, "n h w ..."]) -> Float[Array, "n i j k"]:
        images = x if x.ndim == 4 else x[..., None]
        n, channels = images.shape[0], images.shape[3]
        height, width = (length // self.size for length in images.shape[1:3])
        cut = images[:, : height * self.size, : width * self.size]
        squares = cut.reshape(n, height, self.size, width, self.size, channels)
        return jnp.max(squares, axis=(2, 4))


@dataclasses.dataclass(frozen=True)
class LayeredNetwork:
    """The composition of layers. The weights of layer k are named `layerk`, the last `output`."""

    layers: tuple[AbstractLayer, ...]

    @property
    def names(self) -> list[str]:
        return [*(f"layer{k}" for k in range(len(self.layers) - 1)), "output"]

    def start(self, seed: int, shape: Shape, dtype: Any) -> dict[str, Weights]:
        """Random weights for rows of this shape, without layers that have none."""
        rng, found = np.random.default_rng(seed), {}
        for name, layer in zip(self.names, self.layers, strict=True):
            found[name], shape = layer.start(rng, shape, dtype)
        return {name: weights for name, weights in found.items() if weights}

    def __call__(
        self, weights: dict[str, Weights], x: Float[Array, "n ..."]
    ) -> Float[Array, "n outputs"]:
        for name, layer in zip(self.names, self.layers, strict=True):
            x = layer(weights.get(name, {}), x)
        return x


def _weights(
    rng: np.random.Generator, shape: tuple[int, int], inputs: int, activation: str, dtype: Any
) -> Weights:
    sd = math.sqrt((2 if activation == "relu" else 1) / inputs)
    return {
        "weight": jnp.asarray(sd * rng.standard_normal(shape), dtype),
        "bias": jnp.zeros(shape[1], dtype),
    }


def _image(shape: Shape, size: int) -> tuple[int, int, int]:
    """Height, width and channels; raises unless rows are images of at least size × size."""
    if len(shape) not in (2, 3) or min(shape[:2]) < size:
        rule = f"be images of at least {size}×{size} pixels in this layer"
        raise InvalidInput("x", rule, f"rows of shape {shape}")
    height, width, *channels = shape
    return height, width, channels[0] if channels else 1


def _check_activation(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise InvalidInput("activation", f"be one of {', '.join(ACTIVATIONS)}", activation)


Network = Callable[[PyTree, Float[Array, "n ..."]], Float[Array, "n k"]]


class WeightsOnly(eqx.Module):
    """A network as a function of all parameters, which may include precisions."""

    network: Network
    has_precisions: bool = eqx.field(static=True)

    def __call__(self, params: PyTree, x: Float[Array, "n ..."]) -> Float[Array, "n k"]:
        return self.network(params["network"] if self.has_precisions else params, x)


class WeightsPrior(eqx.Module):
    """log N(w | 0, v) or, with a Gamma law, log N(w | 0, v/λ) + log Gamma(λ)."""

    variance: Scalar
    law: GammaLaw | None = eqx.field(static=True)

    def __call__(self, params: PyTree) -> Scalar:
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
    """
    rows, law, n_outputs = _rows_and_law(x, y, response, classes, noise_variance)
    shape, dtype = rows.x.shape[1:], rows.x.dtype
    network: Network
    if callable(layers):
        if init is None:
            raise InvalidInput("init", "be the weights of the function", None)
        network, weights = layers, jax.tree.map(lambda leaf: to_floats("init", leaf, dtype), init)
    else:
        for layer in layers:
            if not isinstance(layer, AbstractLayer):
                cure = "For example DenseLayer(100, 'relu'); see tallmc.models."
                raise InvalidInput("layers", "be layers or a function", layer, cure)
        network = LayeredNetwork((*layers, DenseLayer(n_outputs)))
        weights = network.start(check_int("seed", seed, 0), shape, dtype)
        if init is not None:
            layout, _ = layout_of(weights)
            weights = layout.unravel(layout.ravel(init).astype(dtype))
    variance = check_number("prior_variance", prior_variance, 0, low_open=True)
    gamma = None
    if precisions is not False and precisions is not None:
        pair = (1.0, 1.0) if precisions is True else precisions
        gamma = GammaLaw.of("precisions", pair)
    params, names = weights, []
    if gamma is not None:
        ones = jax.tree.map(lambda _: jnp.ones((), dtype), weights)
        params = {"network": weights, "precision": ones}
        names = [f"precision.{name}" for name in layout_of(weights)[0].names]
    outputs = WeightsOnly(network, gamma is not None)
    found = jax.eval_shape(outputs, params, rows.x[:2]).shape
    if found != (len(rows.x[:2]), n_outputs):
        rule = f"return an array (rows, {n_outputs})"
        raise InvalidInput("layers(weights, x)", rule, f"shape {found}")
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


def _rows_and_law(
    x: ArrayLike, y: ArrayLike, response: str, classes: int | None, noise_variance: float
) -> tuple[Observations, OutputLaw, int]:
    """The rows, the law of the response and the number of outputs."""
    if response not in ("categorical", "gaussian"):
        raise InvalidInput("response", 'be "categorical" or "gaussian"', response)
    inputs = _checked_x("x", x, None, None)
    dtype = inputs.dtype
    if response == "gaussian":
        variance = check_number("noise_variance", noise_variance, 0, low_open=True)
        law: OutputLaw = GaussianOutput(jnp.asarray(variance, dtype))
        targets, n_outputs = _checked_y(y, dtype, None), 1
    else:
        largest = np.asarray(check_numeric("y", y)).max(initial=0)
        n_outputs = check_int("classes", int(largest) + 1 if classes is None else classes, 2)
        law, targets = CategoricalOutput(), _checked_y(y, dtype, n_outputs)
    if targets.shape != inputs.shape[:1]:
        rule = f"have one entry per row of x ({inputs.shape[0]})"
        raise InvalidInput("y", rule, f"shape {targets.shape}")
    return Observations(inputs, targets), law, n_outputs


def _checked_x(parameter: str, x: Any, dtype: Any, shape: Shape | None) -> Float[Array, "n ..."]:
    found = to_floats(parameter, x, dtype)
    if found.ndim < 2 or 0 in found.shape:
        rule = "have at least one row, and one axis besides the rows"
        raise InvalidInput(parameter, rule, f"shape {found.shape}")
    if shape is not None and found.shape[1:] != shape:
        raise InvalidInput(parameter, f"have rows of shape {shape}", f"shape {found.shape}")
    if not bool(jnp.all(jnp.isfinite(found))):
        raise InvalidInput(parameter, "be finite", "NaN or infinity", "Drop or impute such rows.")
    return found


def _checked_y(y: Any, dtype: Any, classes: int | None) -> PerRow:
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
