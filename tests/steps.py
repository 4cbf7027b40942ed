"""One real step of a prepared kernel, with the gradient and the noise given.

`Kernel.step` is what the engine calls. Here the selection of rows is replaced by one that returns a
given gradient g + Kθ. On a Gaussian the step of most dynamics is affine,

    s' = As + Bg + Nξ,   with the gradient evaluated at Ps,

and steps from zero and from all unit vectors give A, B, N and P of the code itself. `step_error`
compares them with those of the papers (`laws.py`). If the noise is standard normal and independent
(`noise_z`), and the gradient has the mean and covariance that the enumeration of all batches finds
(`test_unbiased.py`), then the stationary law is the one that `stationary.exact_law` solves for. A
wrong factor in a step changes a matrix by far more than rounding, so no chain has to be run.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kept_programs import run_once
from laws import Recursion, recursion
from tallmc._engine.kernel import ChainState, Gathered
from tallmc.subsample.selection import AbstractSelection, Carried, Estimate


class GivenGradient(AbstractSelection):
    """What it draws for a step is the gradient and its spread; no rows are read."""

    slope: jax.Array
    """K: the gradient at θ is the given one plus Kθ."""
    n_rows: jax.Array
    """The number of rows that the estimate claims to have read."""

    @property
    def most_rows(self):
        return 0

    def draw(self, key, steps):
        raise AssertionError("the gradient is given")

    def estimate(self, at, gathered):
        given, spread = gathered
        value, stats = given + self.slope @ at.position, {"point": at.position}
        return Estimate(value, self.n_rows, at.carried, spread=spread, stats=stats)


def with_given_gradient(bound, slope=None, n_rows: int = 1):
    """The kernel whose steps take their gradient from the caller."""
    d = bound.posterior.dim
    slope = np.zeros((d, d)) if slope is None else slope
    selection = GivenGradient(jnp.asarray(slope), jnp.int32(n_rows))
    return dataclasses.replace(bound.kernel, selection=selection)


class Around(eqx.Module):
    """A state of the dynamics, and the gradient, spread and noise of the step that leaves it."""

    motion: Any
    gradient: np.ndarray
    spread: np.ndarray
    noise: object


def random_point(bound, seed: int = 0, rows: int = 3, **fixed) -> Around:
    """Random numbers in every array; `fixed` are fields of the state."""
    rng, dynamics, init = np.random.default_rng(seed), bound.kernel.dynamics, bound.posterior.init
    evaluate = lambda at, transition: Estimate(at, jnp.int32(0), Carried())
    motion = jax.eval_shape(lambda: dynamics.init(jax.random.key(0), init, evaluate))
    noise = jax.eval_shape(lambda: dynamics.noise(jax.random.key(0), 1, init))

    def filled(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            return jnp.asarray(rng.normal(size=leaf.shape).astype(leaf.dtype))
        return jnp.asarray(np.zeros(leaf.shape, leaf.dtype))

    given = {name: jnp.asarray(value) for name, value in fixed.items()}
    motion = dataclasses.replace(jax.tree.map(filled, motion), **given)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), noise)
    noise = jax.tree.map(np.asarray, jax.tree.map(filled, one))
    d = bound.posterior.dim
    return Around(motion, rng.normal(size=d), rng.normal(size=(rows, d)), noise)


@run_once
def steps_of_all(kernel, rows, points: Around):
    """The states after one step from each of many points, and where gradients were evaluated."""

    def one(at):
        gathered = Gathered((at.gradient, at.spread), at.noise)
        after = kernel.step(ChainState(at.motion, Carried()), gathered, jnp.int32(0), rows)
        return after.state.motion, after.stats["point"]

    return jax.vmap(one)(points)


def stacked(points: list[Around]) -> Around:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *points)


def stepped(kernel, rows, *points: Around):
    """The states after one step from each point, and where gradients were evaluated."""
    found = steps_of_all(kernel, rows, stacked(list(points)))
    return jax.tree.map(np.asarray, found)


def _is_number(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _numbers(tree, points: int) -> np.ndarray:
    """All floating-point numbers of every point, (points, k)."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if _is_number(leaf)]
    return np.concatenate([np.asarray(leaf).reshape(points, -1) for leaf in leaves], axis=1)


def _with_numbers(tree, numbers: np.ndarray):
    """The tree of one point with these numbers, one tree per row of `numbers`."""
    points, at = len(numbers), 0
    leaves, structure = jax.tree.flatten(tree)
    filled = []
    for leaf in leaves:
        if not _is_number(leaf):
            filled.append(np.broadcast_to(leaf, (points, *leaf.shape)))
            continue
        filled.append(numbers[:, at : at + leaf.size].reshape(points, *leaf.shape))
        at += leaf.size
    return jax.tree.unflatten(structure, filled)


class Linearised(NamedTuple):
    """Derivatives of the state after a step, and of the point of evaluation."""

    of_state: np.ndarray
    of_gradient: np.ndarray
    of_noise: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray, sizes) -> "Linearised":
        return cls(*np.split(columns.T, np.cumsum(sizes)[:-1], axis=1))


def linearised(kernel, rows, around: Around):
    """The derivatives of a step, the error of the affine map at `around`, and the states after.

    A step is compared at zero and at all unit vectors, which gives the columns of an affine map,
    and at `around`, where the affine map must be right too.
    """
    parts = [_numbers(part, 1)[0] for part in (around.motion, around.gradient, around.noise)]
    sizes, vector = [len(part) for part in parts], np.concatenate(parts)
    all_numbers = np.vstack([np.zeros_like(vector), np.eye(len(vector)), vector])
    motion, gradient, noise = np.split(all_numbers, np.cumsum(sizes)[:-1], axis=1)
    count = len(all_numbers)
    points = Around(
        _with_numbers(around.motion, motion),
        gradient,
        np.broadcast_to(around.spread, (count, *around.spread.shape)),
        _with_numbers(around.noise, noise),
    )
    after, point = steps_of_all(kernel, rows, points)
    derivatives, error = [], 0.0
    for found in (_numbers(after, count), np.asarray(point)):
        columns = found[1:-1] - found[0]
        error = max(error, np.abs(found[-1] - found[0] - vector @ columns).max())
        error = max(error, np.abs(found[0]).max())  # no constant
        derivatives.append(Linearised.of(columns, sizes))
    return *derivatives, error, after


def step_error(bound, steps: Recursion, around: Around | None = None) -> float:
    """The largest difference between a step of the kernel and a step of the recursion.

    Compared are A, B, NNᵀ and P, and a step from a random point has to be that of an affine map. A
    momentum that is redrawn is one more noise.
    """
    kernel = with_given_gradient(bound)
    around = around or random_point(bound)
    (A, B, N), of_point, error, after = linearised(kernel, bound.rows, around)
    d, expected_A, expected_N = bound.posterior.dim, steps.A, steps.N
    expected_P = np.eye(d, len(A)) if steps.P is None else steps.P
    redrawn, P_of_noise = np.zeros((len(A), d)), np.zeros_like(of_point.of_noise)
    errors = [error]
    if steps.refresh:
        place = int(around.motion.inner)
        errors.append(np.abs(np.asarray(after.inner) - (place + 1) % steps.refresh).max())
        if place == 0:
            forget = np.diag([1.0] * d + [0.0] * d)
            redrawn, P_of_noise[:, :d] = expected_A[:, d:], expected_P[:, d:]
            expected_A, expected_P = expected_A @ forget, expected_P @ forget
    noise = expected_N @ expected_N.T + redrawn @ redrawn.T
    pairs = [(A, expected_A), (B, steps.B), (N @ N.T, noise), (of_point.of_state, expected_P)]
    pairs += [(of_point.of_gradient, 0.0), (of_point.of_noise, P_of_noise)]
    errors += [np.abs(found - right).max() for found, right in pairs]
    return float(max(errors))


def error_against_the_papers(bound, step_size: float, mutant=None) -> float:
    """`step_error` of a kernel, or of a mutant of it, against the recursion of `laws.py`.

    Dynamics in trajectories are compared at the start and in the middle of one.
    """
    steps = recursion(bound.kernel.dynamics, step_size, bound.posterior.dim)
    of = bound if mutant is None else mutant
    places = range(min(steps.refresh, 2)) if steps.refresh else [None]
    fixed: list[dict[str, Any]] = [
        {} if place is None else {"inner": np.int32(place)} for place in places
    ]
    return max(step_error(of, steps, random_point(of, **at)) for at in fixed)


@run_once
def _noises(dynamics, key, steps: int, like):
    noise = dynamics.noise(key, steps, like)
    return jnp.concatenate([leaf.reshape(steps, -1) for leaf in jax.tree.leaves(noise)], axis=1)


def noise_z(dynamics, steps: int = 20_000, d: int = 2) -> float:
    """Largest |z| of mean, covariance and lag-1 covariance of the noise, which are 0, I and 0."""
    x = np.asarray(_noises(dynamics, jax.random.key(3), steps, np.zeros(d)))
    products = np.einsum("ti,tj->tij", x, x)
    lagged = np.einsum("ti,tj->tij", x[1:], x[:-1])
    z = [
        # The square of a random sign is always one.
        (sample.mean(0) - truth) / np.maximum(sample.std(0) / np.sqrt(len(sample)), 1e-9)
        for sample, truth in [(x, 0.0), (products, np.eye(x.shape[1])), (lagged, 0.0)]
    ]
    return max(float(np.abs(values).max()) for values in z)
