"""Layers of neural networks: dense, convolutional and pooling.

    dense           a(x W + b)
    convolutional   a(Σ_{u,v} x[i + u, j + v, :] W[u, v] + b), without padding
    pooling         the maximum over squares that do not overlap

A layer is a function of its weights and of a block of rows. A convolution is a matrix product with
the patches of the images: `vmap` over chains, each with its own weights, then is a batched matrix
product, whereas a convolution of XLA becomes a slow grouped convolution.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.errors import InvalidInput, check_int

Weights = dict[str, Array]
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
    def start(
        self, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any
    ) -> tuple[Weights, tuple[int, ...]]:
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

    **Raises:** `InvalidInput` if an argument is not one of these values.

    >>> DenseLayer(100, "relu").units
    100
    """

    units: int
    activation: str = "identity"

    def __post_init__(self) -> None:
        check_int("units", self.units, 1)
        _check_activation(self.activation)

    def start(
        self, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any
    ) -> tuple[Weights, tuple[int, ...]]:
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

    **Raises:** `InvalidInput` if an argument is not one of these values.

    >>> ConvolutionalLayer(32, 5, "relu").channels
    32
    """

    channels: int
    size: int
    activation: str = "identity"

    def __post_init__(self) -> None:
        check_int("channels", self.channels, 1)
        check_int("size", self.size, 1)
        _check_activation(self.activation)

    def start(
        self, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any
    ) -> tuple[Weights, tuple[int, ...]]:
        height, width, channels = _image(shape, self.size)
        inputs = self.size**2 * channels
        weights = _weights(rng, (inputs, self.channels), inputs, self.activation, dtype)
        return weights, (height - self.size + 1, width - self.size + 1, self.channels)

    def __call__(self, weights: Weights, x: Float[Array, "n h w ..."]) -> Float[Array, "n i j k"]:
        images = x if x.ndim == 4 else x[..., None]
        height, width = (length - self.size + 1 for length in images.shape[1:3])
        patches = jnp.concatenate(
            [
                images[:, row : row + height, column : column + width]
                for row in range(self.size)
                for column in range(self.size)
            ],
            axis=-1,
        )
        return ACTIVATIONS[self.activation](patches @ weights["weight"] + weights["bias"])


@dataclasses.dataclass(frozen=True)
class MaxPoolLayer(AbstractLayer):
    """The maximum over squares of an image that do not overlap. A remainder is cut off.

    **Arguments:**

    - `size`: the side of a square.

    **Raises:** `InvalidInput` if `size` is not a positive integer.

    >>> MaxPoolLayer(2).size
    2
    """

    size: int

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)

    def start(
        self, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any
    ) -> tuple[Weights, tuple[int, ...]]:
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

    @classmethod
    def of(cls, hidden: Sequence[AbstractLayer], outputs: int) -> LayeredNetwork:
        """The network with these hidden layers and a dense output layer."""
        for layer in hidden:
            if not isinstance(layer, AbstractLayer):
                cure = "For example DenseLayer(100, 'relu'); see tallmc.models."
                raise InvalidInput("layers", "be layers or a function", layer, cure)
        return cls((*hidden, DenseLayer(outputs)))

    @property
    def names(self) -> list[str]:
        return [*(f"layer{k}" for k in range(len(self.layers) - 1)), "output"]

    def start(self, seed: int, shape: tuple[int, ...], dtype: Any) -> dict[str, Weights]:
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


def _image(shape: tuple[int, ...], size: int) -> tuple[int, int, int]:
    """Height, width and channels; raises unless rows are images of at least size × size."""
    if len(shape) not in (2, 3) or min(shape[:2]) < size:
        rule = f"be images of at least {size}×{size} pixels in this layer"
        raise InvalidInput("x", rule, f"rows of shape {shape}")
    height, width, *channels = shape
    return height, width, channels[0] if channels else 1


def _check_activation(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise InvalidInput("activation", f"be one of {', '.join(ACTIVATIONS)}", activation)
