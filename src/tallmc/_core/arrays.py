"""Arrays: to the device, linear maps of them, and pytrees, layouts and named quantities."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from .errors import InvalidInput

Scalar = Float[Array, ""]
Vector = Float[Array, " d"]  # one entry per parameter: a position, a gradient, a momentum
Matrix = Float[Array, "d d"]
HostVector = Float[np.ndarray, " d"]  # of NumPy, mostly in float64
HostMatrix = Float[np.ndarray, "d d"]
HostDraws = Float[np.ndarray, "chains draws d"]

_LARGE_ARRAY_BYTES, _CACHE_LINE_BYTES = 2**22, 64
_USE_FLOAT64 = 'Rescale, or use float64: jax.config.update("jax_enable_x64", True).'


def check_numeric(parameter: str, values: Any) -> np.ndarray | Array:
    """`values` as an array of real numbers; raises unless the library supports their dtype."""
    try:
        array = values if isinstance(values, jax.Array) else np.asarray(values)
        array = array.astype(float) if array.dtype == object else array
    except (TypeError, ValueError) as error:
        raise InvalidInput(parameter, "be numbers", str(error)) from None
    is_supported = array.dtype in (bool, np.float32, np.float64)
    if not is_supported and not np.issubdtype(array.dtype, np.integer):
        rule = "be real numbers: float32, float64, integers or booleans"
        raise InvalidInput(parameter, rule, f"dtype {array.dtype}")
    return array


def to_device(parameter: str, values: Any) -> Array:
    """`values` on the device, in the device's precision; raises if a value overflows."""
    array = check_numeric(parameter, values)
    with np.errstate(over="ignore"):
        device = _copy_to_device(array)
    if device.dtype != array.dtype and array.size:
        if np.issubdtype(array.dtype, np.integer):
            limits = np.iinfo(device.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                largest = max(abs(int(array.min())), abs(int(array.max())))
                cure = "Convert to float. " + _USE_FLOAT64
                raise InvalidInput(parameter, f"fit in {device.dtype}", largest, cure)
        else:
            _check_fits(parameter, np.asarray(device), np.asarray(array))
    return device


def _copy_to_device(array: np.ndarray | Array) -> Array:
    """A copy on the device; a JAX array is returned unchanged.

    On CPUs, NumPy allocates large copies: NumPy requests huge pages, XLA does not, and reading
    random rows then takes a quarter less time. XLA adopts NumPy's memory without another copy if
    it starts on a cache line.
    """
    if isinstance(array, jax.Array):
        return array
    if array.nbytes < _LARGE_ARRAY_BYTES or jax.default_backend() != "cpu":
        # A copy: the user may write to the original. `jnp.array` would compile a program.
        return jax.device_put(array.astype(jax.dtypes.canonicalize_dtype(array.dtype)))
    array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    aligned = aligned_empty(array.shape, array.dtype)
    aligned[...] = array
    return jax.device_put(aligned)


def on_device(values: Any, dtype: Any) -> Array:
    """Values of the library's own on the device. Unlike `jnp.asarray`, this compiles no program.

    On a CPU the array may share the memory of `values`, which must not be written to afterwards.
    """
    return jax.device_put(np.asarray(values, dtype))


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of NumPy that starts on a cache line. XLA on a CPU uses its memory as it is."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    carried = np.empty(n_bytes + _CACHE_LINE_BYTES, np.uint8)
    offset = -carried.ctypes.data % _CACHE_LINE_BYTES
    return carried[offset : offset + n_bytes].view(dtype).reshape(shape)


def to_floats(parameter: str, values: Any, dtype: Any = None) -> Float[Array, ...]:
    """`values` as floats on the device, in `dtype` if given, else in their own precision."""
    array = check_numeric(parameter, values)
    if dtype is None and np.issubdtype(array.dtype, np.floating):
        return to_device(parameter, array)
    wanted = jnp.result_type(float) if dtype is None else dtype
    double = np.asarray(array, np.float64)
    with np.errstate(over="ignore"):
        narrow = double.astype(wanted)
    _check_fits(parameter, narrow, double)
    return to_device(parameter, narrow)


def _check_fits(parameter: str, narrow: np.ndarray, wide: np.ndarray) -> None:
    """Raise if a value that is finite in `wide` is infinite in `narrow`."""
    if not np.array_equal(np.isfinite(narrow), np.isfinite(wide)):
        largest = float(np.abs(wide[np.isfinite(wide)]).max())
        raise InvalidInput(parameter, f"fit in {narrow.dtype}", largest, _USE_FLOAT64)


# Linear maps θ = C u: the identity, one scale per parameter, or a d×d matrix.

# Some accelerators round float32 factors to eleven bits unless HIGHEST is requested.
dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class AbstractLinearMap(eqx.Module):
    """A map C, applied to gradients and to moves."""

    def n_columns(self, n_rows: int) -> int:
        """The number of columns of C, which has `n_rows` rows."""
        return n_rows

    @abc.abstractmethod
    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """Cᵀ∇f."""

    @abc.abstractmethod
    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """C v."""

    @abc.abstractmethod
    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """C⁻¹ v."""

    def matrix(self, n_rows: int, dtype: Any) -> Float[Array, "d e"]:
        """C, which has `n_rows` rows."""
        return self.pull(jnp.eye(n_rows, dtype=dtype))

    # Trajectories move in coordinates in which the momentum is N(0, I); `EffectMap` has its own.
    # The potential in them is f(θ) − log |∂θ/∂u|.

    def coordinates(self, position: Vector) -> Vector:
        """The coordinates of a position, here itself."""
        return position

    def placed(self, coordinates: Vector) -> Vector:
        """The position with these coordinates."""
        return coordinates

    def flow(self, coordinates: Vector, momentum: Vector, time: Scalar) -> tuple[Vector, Vector]:
        """Coordinates and momentum after motion without a force."""
        return coordinates + time * self.push(momentum), momentum

    def force(self, coordinates: Vector, position: Vector, gradient: Vector) -> Vector:
        """The gradient of the part of the potential that `flow` leaves out, from ∇f."""
        return self.pull(gradient)

    def log_volume(self, position: Vector) -> Scalar | float:
        """log |∂θ/∂u|, up to a constant."""
        return 0.0


class IdentityMap(AbstractLinearMap):
    """C = I."""

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return gradient

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return move

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return move


class DiagonalMap(AbstractLinearMap):
    """C = diag(scale)."""

    scale: Float[Array, " d"]

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.scale * gradient

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.scale * move

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return move / self.scale


class DenseMap(AbstractLinearMap):
    """C = factor, a d×d matrix."""

    factor: Float[Array, "d d"]

    def matrix(self, n_rows: int, dtype: Any) -> Float[Array, "d e"]:
        return self.factor

    def pull(self, gradient: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return dot(gradient, self.factor)

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        # On CPUs, a row-major matrix times a vector takes a third of the time of the other order.
        return dot(self.factor, move.T).T

    def solve(self, move: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return jnp.linalg.solve(self.factor, move.T).T


# Arrays of pytrees by path, for serialisation.

Tree = TypeVar("Tree")
Value = TypeVar("Value")


def named_leaves(tree: Any) -> dict[str, Array]:
    """The arrays of `tree` by path. A random key is represented by its words."""
    return {
        path: _without_key_type(leaf)
        for path, leaf in _leaves_with_paths(tree)
        if eqx.is_array(leaf)
    }


def with_leaves(tree: Tree, leaves: Mapping[str, np.ndarray]) -> Tree:
    """`tree` with the arrays at these paths replaced; paths, shapes and dtypes must fit."""

    def replaced(path: str, leaf: Any) -> Any:
        if path not in leaves:
            return leaf
        plain, new = _without_key_type(leaf), leaves[path]
        if plain.shape != new.shape or plain.dtype != new.dtype:
            found = f"{new.dtype} {new.shape} for {path}, expected {plain.dtype} {plain.shape}"
            raise InvalidInput("store", "fit the method and the posterior", found)
        if plain is leaf:
            return on_device(new, new.dtype)
        return jax.random.wrap_key_data(on_device(new, new.dtype), impl=jax.random.key_impl(leaf))

    known = _leaves_with_paths(tree)
    unknown = set(leaves) - {path for path, leaf in known if eqx.is_array(leaf)}
    if unknown:
        found = f"unknown arrays {sorted(unknown)[:3]}"
        raise InvalidInput("store", "fit the method and the posterior", found)
    return jax.tree.unflatten(jax.tree.structure(tree), [replaced(*each) for each in known])


def _leaves_with_paths(tree: Any) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _without_key_type(leaf: Any) -> Any:
    """The words of a random key; any other leaf unchanged."""
    is_key = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


# The layout of a pytree of parameters in one flat vector.


@dataclasses.dataclass(frozen=True)
class Layout:
    """Names and shapes of the leaves. Hashable: equal layouts share compiled programs."""

    treedef: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    entries: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, compare=False)
    """Names for the entries of vectors, by leaf. Not compared: programs do not depend on them."""

    def labelled(self, entries: Mapping[str, Sequence[str]]) -> Layout:
        check_labels(entries, dict(zip(self.names, self.shapes, strict=True)))
        named = {name: tuple(map(str, labels)) for name, labels in entries.items()}
        return dataclasses.replace(self, entries={**self.entries, **named})

    @property
    def dim(self) -> int:
        """d, the length of the vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def coordinate_names(self) -> list[str]:
        """One name per entry of the vector, such as `beta[3]` or, with labels, `beta[age]`."""
        found = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            entries = self.entries.get(name) or [
                ", ".join(map(str, index)) for index in np.ndindex(*shape)
            ]
            found += [f"{name}[{entry}]" for entry in entries] if shape else [name]
        return found

    def unravel(self, vector: Float[Array | np.ndarray, "*batch d"]) -> PyTree:
        """The parameters as a pytree. Each leaf has the batch axes of `vector` in front."""
        return jax.tree.unflatten(self.treedef, list(self.split(vector).values()))

    def split(self, vector: Any) -> dict[str, Any]:
        """The leaves by name. `vector` is a NumPy or a JAX array."""
        batch, start, leaves = vector.shape[:-1], 0, {}
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            leaves[name] = vector[..., start : start + size].reshape(batch + shape)
            start += size
        return leaves

    def ravel(self, params: PyTree, parameter: str = "init") -> Float[Array, " d"]:
        """The parameters as one vector; raises if they do not fit this layout."""
        leaves, treedef = jax.tree.flatten(params)
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        if treedef != self.treedef or shapes != self.shapes:
            named = zip(self.names, self.shapes, strict=True)
            wanted = ", ".join(f"{name} {shape}" for name, shape in named)
            rule = f"have the structure and shapes of init ({wanted})"
            raise InvalidInput(parameter, rule, f"{treedef} with shapes {shapes}")
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf)) for leaf in leaves])


def check_labels(
    labels: Mapping[str, Sequence[str]], shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, Sequence[str]]:
    """The labels; raises unless they give one name per entry of vectors with these shapes."""
    for name, entries in labels.items():
        if name not in shapes:
            raise InvalidInput("labels", f"name parameters among {', '.join(shapes)}", name)
        if shapes[name] != (len(entries),):
            rule = f"have one name per entry {shapes[name]}".replace(",)", ")")
            raise InvalidInput(f"labels[{name!r}]", rule, len(entries))
    return labels


def layout_of(params: PyTree) -> tuple[Layout, Float[Array, " d"]]:
    leaves_with_paths, treedef = jax.tree.flatten_with_path(params)
    if not leaves_with_paths:
        raise InvalidInput("init", "hold at least one parameter", params)
    names, shapes, flat = [], [], []
    for path, leaf in leaves_with_paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
        values = to_device(f"init, leaf {name}", leaf)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            found, cure = f"dtype {values.dtype}", "Write 0.0 instead of 0."
            raise InvalidInput(f"init, leaf {name}", "be floating point", found, cure)
        if not np.isfinite(values).all():
            cure = "Start where the density is positive."
            raise InvalidInput(f"init, leaf {name}", "be finite", "NaN or infinity", cure)
        names.append(name)
        shapes.append(values.shape)
        flat.append(np.ravel(values))
    if len(set(names)) < len(names):
        raise InvalidInput("init", "give its leaves different names", names)
    return Layout(treedef, tuple(names), tuple(shapes)), jax.device_put(np.concatenate(flat))


# The named quantities that users see, computed from positions.
#
# A sampler moves flat, unconstrained positions. Users see quantities: parameters by name, in their
# constrained form, coefficients in the units of a table, deterministic functions of the parameters.

_BLOCK = 4096  # positions at which quantities are computed at once


class AbstractQuantities(abc.ABC):
    """Named arrays computed from positions, with names of their dimensions and entries."""

    shapes: dict[str, tuple[int, ...]]  # the shape of each quantity, for one position
    dims: dict[str, tuple[str, ...]]
    """Names of the dimensions of a quantity. Quantities that are missing have default names."""
    coords: dict[str, tuple[str, ...]]
    """Names of the entries of a dimension. Dimensions that are missing are numbered."""
    structure: Any
    """The treedef of the quantities in the user's pytree; None if they are a dict by name."""
    reads_rows: bool = False
    """Whether every draw costs a pass over rows, as for effects that are drawn given a draw."""

    @abc.abstractmethod
    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The quantities at positions (chains, draws, d); each (chains, draws, *shape)."""

    def coordinate_names(self, layout: Layout) -> list[str]:
        """One name per coordinate of a position, as messages call it."""
        return layout.coordinate_names()

    def entry_names(self) -> list[str]:
        """One name per entry of all quantities, such as `scale` or `beta[age]`."""
        return [
            f"{name}[{', '.join(entry)}]" if shape else name
            for name, shape in self.shapes.items()
            for entry in self._entries(name, shape)
        ]

    def _entries(self, name: str, shape: tuple[int, ...]) -> list[tuple[str, ...]]:
        dims = self.dims.get(name, (None,) * len(shape))
        axes = [
            self.coords.get(dim or "", tuple(map(str, range(size))))
            for dim, size in zip(dims, shape, strict=True)
        ]
        return [
            tuple(axis[at] for axis, at in zip(axes, index, strict=True))
            for index in np.ndindex(*shape)
        ]


class Parameters(AbstractQuantities):
    """The parameters as they lie in a position."""

    def __init__(self, layout: Layout):
        self.layout, self.structure = layout, layout.treedef
        self.shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self.dims = {name: (f"{name}_dim",) for name in layout.entries}
        self.coords = {f"{name}_dim": entries for name, entries in layout.entries.items()}

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        return self.layout.split(positions)


class StoredQuantities(AbstractQuantities):
    """Quantities that were computed before, such as those of a stored run."""

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        dims: Mapping[str, tuple[str, ...]],
        coords: Mapping[str, tuple[str, ...]],
        structure: Any = None,
        computed_by: AbstractQuantities | None = None,
    ):
        self.values, self.structure = dict(values), structure
        self.computed_by = computed_by
        self.shapes = {name: array.shape[2:] for name, array in values.items()}
        self.dims, self.coords = dict(dims), dict(coords)

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        for name, array in self.values.items():
            assert array.shape[:2] == positions.shape[:2], f"{name} belongs to other draws"
        return self.values


class ComputedQuantities(AbstractQuantities):
    """Quantities that a JAX function computes from one position, as a dict of arrays by name.

    `names` is the order of the quantities, that of the leaves of `structure`. JAX sorts dicts.
    """

    def __init__(
        self,
        function: Callable[[Array], dict[str, Array]],
        dim: int,
        dims: Mapping[str, tuple[str, ...]],
        coords: Mapping[str, tuple[str, ...]],
        structure: Any = None,
        names: Sequence[str] | None = None,
    ):
        example = jax.eval_shape(function, jax.ShapeDtypeStruct((dim,), jnp.zeros(()).dtype))
        self.shapes = {name: example[name].shape for name in names or example}
        self.dims, self.coords, self.structure = dict(dims), dict(coords), structure
        self._of_block = jax.jit(jax.vmap(function))

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        chains, draws, d = positions.shape
        listed, n = positions.reshape(-1, d), chains * draws
        block, kind = min(_BLOCK, max(n, 1)), positions.dtype
        found = {name: np.empty((n, *shape), kind) for name, shape in self.shapes.items()}
        for start in range(0, n, block):
            part = listed[start : start + block]
            # The last block is as long as the others, so that there is one program.
            padded = np.concatenate([part, np.repeat(part[-1:], block - len(part), axis=0)])
            for name, values in self._of_block(jnp.asarray(padded)).items():
                found[name][start : start + len(part)] = np.asarray(values)[: len(part)]
        return {name: found[name].reshape(chains, draws, *self.shapes[name]) for name in found}


_MOST_SHOWN = 1000


def shown(quantities: AbstractQuantities, positions: np.ndarray) -> np.ndarray:
    """The draws in the coordinates that users see, (chains, draws, entries), for diagnostics.

    The positions themselves if there are far more entries than parameters, such as a deterministic
    quantity per row, or if an entry has overflowed.
    """
    entries = sum(map(math.prod, quantities.shapes.values()))
    if isinstance(quantities, Parameters) or entries > max(4 * positions.shape[2], _MOST_SHOWN):
        return positions
    found = flat(quantities.of(positions))
    finite = np.isfinite(found).all(axis=(1, 2)) == np.isfinite(positions).all(axis=(1, 2))
    return found if finite.all() else positions


def flat(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """All quantities side by side, (chains, draws, entries), in the order of `entry_names`."""
    arrays = list(values.values())
    if len(arrays) == 1 and arrays[0].ndim == 3:
        return arrays[0]
    return np.concatenate(
        [array.reshape(*array.shape[:2], math.prod(array.shape[2:])) for array in arrays], axis=-1
    )
