"""Searches for the mode: Newton's method, L-BFGS, and Adam and SGD on minibatches."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._core.arrays import HostMatrix, HostVector, Matrix, Scalar, Vector, dot
from .._core.errors import PreparationError, check_int, check_number, warn
from .._core.programs import quickly_compiled
from .._core.supervision import checkpoint, in_background, in_threads
from .._rows.access import RowAccess, RowBlock
from .._rows.law import Batch
from .._rows.passes import Blocks, Subset, Sum
from .._rows.probabilities import systematic_sample
from .._rows.resident import ResidentRows
from ..models.model import AbstractModel, block_hessian_of, block_potential_and_gradient
from ..models.posterior import AbstractPosterior, check_in_memory

# Counted passes over the rows of a posterior, for the search for the mode.


class Derivatives(NamedTuple):
    """f and its first two derivatives at a position."""

    value: float
    gradient: HostVector
    hessian: HostMatrix

    @property
    def finite(self) -> bool:
        return all(np.isfinite(part).all() for part in self)

    def corrected(
        self, true: Derivatives, centre: HostVector
    ) -> Callable[[Derivatives, np.ndarray], Derivatives]:
        """What makes of these derivatives at a centre the `true` ones, applied to others."""
        gradient, hessian = true.gradient - self.gradient, true.hessian - self.hessian

        def correct(found: Derivatives, at: np.ndarray) -> Derivatives:
            move = at - centre
            return Derivatives(
                found.value + (gradient + hessian @ move / 2) @ move,
                found.gradient + gradient + hessian @ move,
                found.hessian + hessian,
            )

        return correct


class CountedPasses:
    """Potential, gradient and Hessian as float64 arrays on the host, with a count of the rows read.

    With `share < 1` a pass reads n of the N rows, chosen at random, and with a `subset` its blocks;
    the potential is the estimate f₀ + (N/n) Σ f_i.

    With `double`, the passes run in float64 on a copy of the posterior, whatever its precision and
    JAX's setting.
    """

    def __init__(
        self,
        posterior: AbstractPosterior,
        share: float = 1.0,
        double: bool = False,
        subset: Subset | None = None,
    ):
        self._double = double

        def as_double(leaf: Any) -> Any:
            return jnp.asarray(leaf, jnp.float64) if eqx.is_inexact_array(leaf) else leaf

        with self._precision():
            part = posterior if share >= 1 else _random_part(posterior, share)
            self.posterior = jax.tree.map(as_double, part) if double else part
            self._subset = part.rows.subset(posterior.width) if subset is None else subset
        self.n_row_evals = 0
        self.scale = posterior.n_rows / self._subset.n_rows
        products = self._subset.n_rows * posterior.dim**2
        self._in_one_pass = products <= _FEW_PRODUCTS and posterior.model.row_cost == 1
        self._last: tuple[np.ndarray, Derivatives] | None = None

    def value_and_gradient(self, position: Any) -> tuple[float, np.ndarray]:
        """f and ∇f."""
        if self._in_one_pass:
            return self.derivatives(position)[:2]
        (high, low, rows), prior = self._pass(block_potential_and_gradient, position)
        value = self.scale * (high + low) + float(prior[0])
        return float(value), self.scale * rows + np.asarray(prior[1], np.float64)

    def likelihood(self, position: Any) -> float:
        """Σ f_i, without the prior."""
        high, low, _ = self._pass(block_potential_and_gradient, position)[0]
        return self.scale * float(high + low)

    def hessian(self, position: Any) -> np.ndarray:
        """∇²f, symmetrised."""
        if self._in_one_pass:
            return self.derivatives(position).hessian
        rows, prior = self.hessian_parts(position)
        return rows + prior

    def derivatives(self, position: Any) -> Derivatives:
        """f, ∇f and ∇²f, in one pass."""
        checkpoint()
        posterior, at = self.posterior, np.asarray(position, self.posterior.dtype)
        if self._last is not None and np.array_equal(at, self._last[0], equal_nan=True):
            return self._last[1]
        self.n_row_evals += self._subset.n_rows
        with self._precision():
            parts = in_threads(
                lambda part: derivatives_of_rows(posterior, at, part),
                self._subset.divided(_PARTS_OF_PASS),
            )
            return self._with_prior(at, [sum(of_parts) for of_parts in zip(*parts, strict=True)])

    def derivatives_and_survey(
        self, position: Any, per_row: Any, keep: Any, *args: Any
    ) -> tuple[Derivatives, list[Any]]:
        """f, ∇f and ∇²f, and the results of `AbstractRows.survey`, in one pass."""
        checkpoint()
        posterior, at = self.posterior, np.asarray(position, self.posterior.dtype)
        self.n_row_evals += self._subset.n_rows
        sums = _block_derivatives, (posterior.model, at)
        found, total = posterior.rows.survey(per_row, keep, *args, width=posterior.width, sums=sums)
        return self._with_prior(at, _in_double(total)), found

    def _with_prior(self, at: np.ndarray, rows: Sequence[Any]) -> Derivatives:
        prior = prior_derivatives(self.posterior.model, at)
        value, gradient, hessian = (
            self.scale * of_rows + np.asarray(of_prior, np.float64)
            for of_rows, of_prior in zip(rows, prior, strict=True)
        )
        found = Derivatives(float(value), gradient, (hessian + hessian.T) / 2)
        self._last = at, found
        return found

    def hessian_parts(self, position: Any) -> tuple[np.ndarray, np.ndarray]:
        """Σ ∇²f_i and ∇²f₀, each symmetrised."""
        rows, prior = self._pass(block_hessian_of, position, hessian=True)
        parts = self.scale * rows, np.asarray(prior[2], np.float64)
        return (parts[0] + parts[0].T) / 2, (parts[1] + parts[1].T) / 2

    def _pass(self, block_sum: Any, position: Any, hessian: bool = False) -> tuple[Any, Any]:
        """The sum over the rows, and the derivatives of the prior."""
        checkpoint()
        posterior = self.posterior
        self.n_row_evals += self._subset.n_rows
        with self._precision():
            at, width = np.asarray(position, posterior.dtype), posterior.width
            total = posterior.rows.reduce(
                block_sum, posterior.model, at, width=width, subset=self._subset
            )
            few = posterior.dim <= _FEW_PARAMETERS  # one program serves both
            return total.float64(), prior_derivatives(posterior.model, at, hessian or few)

    def _precision(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(True) if self._double else nullcontext()


_FEW_PRODUCTS = 2**22
"""In a Hessian: one program of passes for all derivatives then costs less than two."""
_MOST_ROWS_OF_PART = {True: 2**20, False: 2**17}
"""In memory, and in a row store, where rows by number are slow to read."""


def _random_part(posterior: AbstractPosterior, share: float) -> AbstractPosterior:
    """The posterior of about this share of the rows, one from each of as many equal ranges.

    They are whole blocks, so that passes over them need no programs of their own.
    """
    n_rows, size = posterior.n_rows, Blocks.of(posterior.n_rows, posterior.width).size
    most = _MOST_ROWS_OF_PART[posterior.rows.access >= RowAccess.TAKE]
    count = size * max(1, round(min(share * n_rows, most) / size))
    if count >= n_rows:
        return posterior
    places = np.arange(count) + np.random.default_rng(0).random(count)
    numbers = np.minimum((places * (n_rows / count)).astype(np.int64), n_rows - 1)
    rows = ResidentRows(jax.tree.map(jnp.asarray, posterior.rows.read(numbers)))
    return eqx.tree_at(lambda of: of.rows, posterior, rows, is_leaf=lambda of: of is posterior.rows)


def double_passes(posterior: AbstractPosterior) -> CountedPasses | None:
    """Passes in double precision; None if the user's functions do not work in it."""
    passes = CountedPasses(posterior, double=True)
    copy = passes.posterior
    two_rows = jax.tree.map(
        lambda row: jax.ShapeDtypeStruct((2, *row.shape), row.dtype), copy.rows.row_shapes
    )
    weights = jax.ShapeDtypeStruct((2,), np.float64)
    try:
        with jax.enable_x64(True):
            jax.eval_shape(copy.model.block_hessian, copy.init, two_rows, weights)
    except TypeError:
        return None
    return passes


def derivatives_of_rows(
    posterior: AbstractPosterior, at: HostVector, some: Subset | None = None
) -> tuple[np.ndarray, ...]:
    """Σ f_i, Σ ∇f_i and Σ ∇²f_i over all rows, or over some blocks."""
    found = posterior.rows.reduce(
        _block_derivatives, posterior.model, at, width=posterior.width, subset=some
    )
    return _in_double(found)


def _in_double(total: Sum) -> tuple[np.ndarray, ...]:
    high, low, gradient, hessian = total.float64()
    return high + low, gradient, hessian


def _block_derivatives(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Vector
) -> tuple[Scalar, Scalar, Vector, Matrix]:
    first = block_potential_and_gradient(block, counted, model, position)
    return *first, block_hessian_of(block, counted, model, position)


@quickly_compiled
def prior_derivatives(
    model: AbstractModel, position: Float[Any, " d"], hessian: bool = True
) -> tuple[Scalar, Vector, Matrix | None]:
    """f₀, ∇f₀ and ∇²f₀."""
    second = jax.hessian(model.prior_potential)(position) if hessian else None
    return model.prior_potential(position), model.prior_gradient(position), second


# What to tell the user when a search for the mode fails.


def first_bad_row(posterior: AbstractPosterior, position: ArrayLike) -> int | None:
    """The first row whose potential or gradient is not finite, counted from 0, or None."""
    at = jnp.asarray(position, posterior.dtype)
    return posterior.rows.first_where(_is_bad, posterior.model, at, width=posterior.width)


def _is_bad(block: RowBlock, model: AbstractModel, position: Vector) -> Bool[Array, " n"]:
    gradients = model.expand(model.row_gradients(position, block), block)
    finite = jnp.all(jnp.isfinite(gradients), axis=1)
    return ~(finite & jnp.isfinite(model.row_potentials(position, block)))


def has_columns(posterior: AbstractPosterior) -> bool:
    """Whether the rows enter the model through the columns of a design matrix."""
    return posterior.model.regression() is not None


def how_to_help_a_search(posterior: AbstractPosterior) -> str:
    """What helps a search that did not reach the mode, as the first words of a sentence."""
    scales = "Rescale the parameters so that their posterior standard deviations are similar"
    if has_columns(posterior):
        scales = "Standardise the columns"
    return f"{scales}, use a proper prior or another init"


def in_posterior_sds(distance: float) -> str:
    """A distance from the mode in words. A large one is no distance: nothing is Gaussian there."""
    number = f"{distance:.2g}" if distance < _FAR_FROM_MODE else f"more than {_FAR_FROM_MODE}"
    return f"{number} posterior standard deviations"


_FAR_FROM_MODE = 100


def not_finite(passes: CountedPasses, position: ArrayLike, where: str) -> PreparationError:
    """The error for a potential or gradient that is not finite; it names the first bad row."""
    row = first_bad_row(passes.posterior, position)
    passes.n_row_evals += passes.posterior.n_rows
    cause = (
        "Every row is finite there, so the prior is not, or the sum over the rows overflows. "
        if row is None
        else f"The first row whose likelihood is not finite is row {row}, counted from 0. "
    )
    cure = "Start where the density is positive" + ("." if row is None else ", or mend this row.")
    return PreparationError(f"the potential or its gradient is not finite {where}. {cause}{cure}")


# The interface of an optimiser: a search for the mode with counted passes over the rows.


class SearchEnd(NamedTuple):
    """Where a search ended."""

    position: HostVector
    problem: str | None
    """Why the search did not reach the mode; None if it did."""
    definite: bool = True
    """False if the search saw a Hessian there that is not positive definite."""
    known: Derivatives | None = None
    """What the search knows about the position, if the posterior's precision has it."""


class AbstractOptimiser(abc.ABC):
    """A search for the mode of a posterior."""

    @abc.abstractmethod
    def find(self, passes: CountedPasses) -> Vector:
        """The mode, searched from `init` of the posterior."""


# Searches for the mode on uniform minibatches, with the update rules of optax.
#
# Each step draws n rows uniformly with replacement and passes the unbiased estimate
# ∇f₀(θ) + (N/n) Σ ∇f_i(θ) to the rule.


@dataclasses.dataclass(frozen=True)
class AbstractMinibatchSearch(AbstractOptimiser):
    """A search on uniform minibatches. The last iterate is taken as the mode."""

    rule: ClassVar[str]
    """The name in optax of the update rule."""

    step_size: float
    steps: int = 10_000
    size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("steps", self.steps, 1)
        check_int("size", self.size, 1)
        check_int("seed", self.seed, 0, 2**32 - 1)

    def find(self, passes: CountedPasses) -> Vector:
        start = passes.posterior.init
        end = self.search(passes, start)
        if np.isfinite(end).all():
            return end
        potential, gradient = passes.value_and_gradient(start)
        if not np.isfinite(potential) or not np.isfinite(gradient).all():
            raise not_finite(passes, start, "at init")
        raise PreparationError(
            f"{type(self).__name__} must end at a finite position; it diverged with step_size = "
            f"{self.step_size}. Use a smaller step_size, or Newton() or LBFGS()."
        )

    def search(self, passes: CountedPasses, start: Vector) -> Vector:
        """The last iterate of a search from `start`, finite or not."""
        posterior = passes.posterior
        reads = f"{type(self).__name__} reads rows by number"
        check_in_memory(posterior, reads, "Use Newton() or LBFGS().")
        passes.n_row_evals += self.steps * self.size
        step_size = jnp.asarray(self.step_size, posterior.dtype)
        key = jax.random.key(self.seed)
        return _descend(self.rule, posterior, start, step_size, self.steps, self.size, key)


@eqx.filter_jit
def _descend(
    rule: str,
    posterior: AbstractPosterior,
    start: Vector,
    step_size: Scalar,
    steps: int,
    size: int,
    key: Array,
) -> Vector:
    import optax

    solver = getattr(optax, rule)(step_size)

    def advance(carry: Any, key: Array) -> Any:
        position, state = carry
        rows = posterior.rows.take(jax.random.randint(key, (size,), 0, posterior.n_rows))
        weights = jnp.full(size, posterior.n_rows / size, posterior.dtype)
        gradient = posterior.model.sum_remainders(0, position, position, Batch(rows, weights))
        updates, state = solver.update(gradient + posterior.model.prior_gradient(position), state)
        return (optax.apply_updates(position, updates), state), None

    first = (start, solver.init(start))
    (position, _), _ = lax.scan(advance, first, jax.random.split(key, steps))
    return position


@dataclasses.dataclass(frozen=True)
class Adam(AbstractMinibatchSearch):
    """Adam on uniform minibatches (putcha-2023 and its code).

    The last iterate is taken as the mode, converged or not.

    **Arguments:**

    - `step_size`: the learning rate.
    - `steps`: how many steps to make.
    - `size`: rows per step.
    - `seed`: the seed of the minibatches.
    """

    rule = "adam"

    step_size: float = 1e-3


# Plain stochastic gradient descent (Robbins and Monro, 1951).
#
#     θ' = θ − a ∇f̂(θ),   ∇f̂(θ) = ∇f₀(θ) + (N/n) Σ_{i∈S} ∇f_i(θ)
#
# This is SGLD with ε = 2a and without its noise (nemeth-2021, section 2.2). nemeth-2021 (section 6)
# and the talk find the mode with it. With a constant a the last iterate does not converge: in a
# direction of curvature λ, with gradient noise of variance v, its variance around the mode of a
# Gaussian is av/(λ(2 − aλ)). Relative to the posterior's variance 1/λ this is av/(2 − aλ). The
# search is stable for a < 2/λ. λ grows with the number of rows N, so a suitable a is of order 1/N;
# there is no default. Control variates are unbiased at any anchor, so an anchor that is somewhat
# off makes them noisier, not wrong.


@dataclasses.dataclass(frozen=True)
class SGD(AbstractMinibatchSearch):
    """Plain stochastic gradient descent on uniform minibatches, with a constant step size.

    The last iterate is taken as the mode, converged or not.

    **Arguments:**

    - `step_size`: a in θ' = θ − a∇f̂(θ), which must be below 2/λ for every curvature λ of f.

    The others are those of `Adam`.
    """

    rule = "sgd"


# Limited-memory BFGS on all rows, from optax; from SciPy for rows that are not in memory.


@dataclasses.dataclass(frozen=True)
class LBFGS(AbstractOptimiser):
    """Limited-memory BFGS on all rows (optax).

    **Arguments:**

    - `tolerance`: the search stops when the norm of the gradient falls below `tolerance` times its
      first value, or when rounding prevents progress.
    - `max_steps`: the search stops after this many steps, with a warning.
    """

    tolerance: float = 1e-6
    max_steps: int = 500

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, 0, low_open=True)
        check_int("max_steps", self.max_steps, 1)

    def find(self, passes: CountedPasses) -> Vector:
        posterior = passes.posterior
        end = self.search(passes, np.asarray(posterior.init, np.float64))
        if not np.isfinite(end.position).all():
            raise PreparationError(
                f"{end.problem} {how_to_help_a_search(posterior)}, use Adam, "
                "or leave out the optimiser: the default also tries several starts."
            )
        if end.problem is not None:
            warn(f"{end.problem} Raise max_steps.")
        return jnp.asarray(end.position, posterior.dtype)

    def search(self, passes: CountedPasses, start: HostVector) -> SearchEnd:
        """Search from `start`."""
        posterior = passes.posterior
        if posterior.rows.access < RowAccess.TAKE:
            return self._search_by_host(passes, start)
        position, steps, evaluations = _lbfgs(
            posterior,
            jnp.asarray(start, posterior.dtype),
            jnp.asarray(self.tolerance, posterior.dtype),
            jnp.int32(self.max_steps),
        )
        passes.n_row_evals += int(evaluations) * posterior.n_rows
        problem = None
        if not bool(jnp.all(jnp.isfinite(position))):
            problem = "L-BFGS left the region where the potential is finite."
        elif int(steps) == self.max_steps:
            problem = f"L-BFGS stopped after {self.max_steps} steps, before the mode."
        return SearchEnd(np.asarray(position, np.float64), problem)

    def _search_by_host(self, passes: CountedPasses, start: HostVector) -> SearchEnd:
        """Search with passes that the host drives, for rows that are not in memory."""
        from scipy.optimize import minimize

        _, gradient = passes.value_and_gradient(start)
        wanted = self.tolerance * float(np.abs(gradient).max())
        options = {"maxiter": self.max_steps, "gtol": wanted, "ftol": 1e-12}
        function = passes.value_and_gradient
        end = minimize(function, start, jac=True, method="L-BFGS-B", options=options)
        stopped = end.nit >= self.max_steps
        problem = f"L-BFGS stopped after {self.max_steps} steps, before the mode."
        return SearchEnd(np.asarray(end.x, np.float64), problem if stopped else None)


@eqx.filter_jit
def _lbfgs(
    posterior: AbstractPosterior, start: Vector, tolerance: Array, max_steps: Array
) -> tuple[Vector, Array, Array]:
    @jax.custom_vjp
    def potential(position: Vector) -> Scalar:
        return posterior.potential(position)

    # Differentiating the blocked sum would store the residuals of every block, so the VJP calls
    # the blocked gradient.
    potential.defvjp(
        lambda position: (posterior.potential(position), posterior.gradient(position)),
        lambda gradient, cotangent: (cotangent * gradient,),
    )

    import optax  # imported here: it is slow to import, and Newton does not need it

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(potential)
    first_norm = jnp.linalg.norm(posterior.gradient(start))

    # After three successive steps that do not lower the potential, rounding prevents progress.
    def unfinished(carry: Any) -> Array:
        _, state, step, _, stalled = carry
        norm = jnp.linalg.norm(optax.tree.get(state, "grad"))
        return (step == 0) | ((step < max_steps) & (norm > tolerance * first_norm) & (stalled < 3))

    def advance(carry: Any) -> Any:
        position, state, step, evaluations, stalled = carry
        value, gradient = value_and_grad(position, state=state)
        updates, state = solver.update(
            gradient, state, position, value=value, grad=gradient, value_fn=potential
        )
        searched = optax.tree.get(state, "num_linesearch_steps").astype(jnp.int32)
        fell = value - optax.tree.get(state, "value") > jnp.finfo(value.dtype).eps * jnp.abs(value)
        stalled = jnp.where(fell, 0, stalled + 1)
        position = optax.apply_updates(position, updates)
        return position, state, step + 1, evaluations + searched, stalled

    zero = jnp.int32(0)
    first = (start, solver.init(start), zero, jnp.int32(2), zero)
    position, _, steps, evaluations, _ = lax.while_loop(unfinished, advance, first)
    return position, steps, evaluations


_PARTS_OF_PASS = 4
_FEW_PARAMETERS = 120
"""Every step of a search on all rows has its own Hessian if there are at most so many parameters,
or if the potential of one row costs more likelihoods than there are parameters."""
_ROWS_OF_PART, _FEWEST_OF_PART, _NEAR_MODE_OF_PART, _MOST_PASSES = 32_768, 2_048, 0.01, 8
_MOST_CORRECTIONS = 3
_MOST_HALVINGS, _ROUNDING_OF_PART, _STEPS_ON_PART = 20, 4e-7, 40
_STEPS_PER_HESSIAN = 10
_CLOSE = 0.05  # posterior sds
_MANY_ROWS = 200_000
_STALL = 10
_LEAST_FALL = 0.01
"""The search gives up when `_STALL` steps lower the potential by less than this times the squared
distance to the mode in posterior sds. One Newton step on a smooth potential lowers it by half of
the squared distance."""


@dataclasses.dataclass(frozen=True)
class Newton(AbstractOptimiser):
    """Newton's method with a line search.

    A Hessian costs several gradients. Each Hessian therefore serves several steps, and BFGS updates
    it with their gradients. With many rows, some rows with weights stand for all rows, and passes
    over all rows correct them. With many parameters, the search starts on a twentieth of the rows,
    continues on a quarter and ends on all rows.

    **Arguments:**

    - `tolerance`: the distance to the mode at which the search stops, in posterior standard
      deviations.
    - `max_steps`: the largest number of steps on each of these sets of rows.
    """

    tolerance: float = 1e-3
    max_steps: int = 100

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, 0, low_open=True)
        check_int("max_steps", self.max_steps, 1)

    def find(self, passes: CountedPasses) -> Vector:
        posterior = passes.posterior
        end = self.search(passes, np.asarray(posterior.init, np.float64))
        if end.problem is not None:
            raise PreparationError(
                f"{end.problem} {how_to_help_a_search(posterior)}, raise max_steps, "
                "or leave out the optimiser: the default also tries L-BFGS and Adam."
            )
        return jnp.asarray(end.position, posterior.dtype)

    def search(self, passes: CountedPasses, start: HostVector, near: float = 0.0) -> SearchEnd:
        """Search from `start`, with many rows on a part of them first.

        A search that passes over many rows may end `near` the mode, if that is above the tolerance.
        """
        posterior, position = passes.posterior, start
        rows_of_part = _rows_of_part(posterior.model)
        cheap = posterior.dim <= _FEW_PARAMETERS or posterior.model.row_cost > posterior.dim
        if posterior.n_rows >= 2 * rows_of_part and cheap:
            found = self._with_a_part(passes, start, max(near, self.tolerance))
            if found is not None:
                return found
        elif posterior.n_rows >= _MANY_ROWS:
            for share in (0.05, 0.25):
                part = CountedPasses(posterior, share)
                # The mode of these rows is about √scale posterior sds away from the mode of all
                # rows, so a more accurate search would not help.
                position = self.descend(part, position, tolerance=0.3 * part.scale**0.5).position
                passes.n_row_evals += part.n_row_evals
        return self.descend(passes, position)

    def _with_a_part(
        self, passes: CountedPasses, start: HostVector, tolerance: float
    ) -> SearchEnd | None:
        """The mode by a few passes, each followed by a search on some rows; None if that fails.

        The rows with their weights stand for all rows. A pass at θ₀ corrects their gradient and
        Hessian there, so that they add only what is of third and higher order in θ − θ₀.
        """
        posterior = passes.posterior
        end = None
        if posterior.rows.access < RowAccess.TAKE and _has_leverages(posterior):
            some = _for_sums_of_squares(posterior)
            keep, squares = _draw_by_leverage(passes, some)
            position = self._mode_of_blocks(passes, some, start)
            here, found = passes.derivatives_and_survey(
                position, _leverages, keep, posterior.model.regression(), squares
            )
            of_part = _derivatives_of_batch(posterior, _drawn_batch(passes, found))
            if _is_by_chance(here, posterior, some.n_rows):
                end = self._corrected_search(passes, of_part, position, here, tolerance)
        else:
            of_part = _derivatives_of_part(passes, start)
        if end is None:
            # The blocks may lack what matters, as the rare events of a sorted store: the part does
            # not. Far from the mode of 21 correlated effects, 60 steps are short and cost a tenth
            # of a pass.
            position = self.search_part(of_part, start, 1.0, posterior.model, self.max_steps)
            position = _rounded(position, posterior)
            here = passes.derivatives(position)
            end = self._corrected_search(passes, of_part, position, here, tolerance)
        return end

    def _corrected_search(
        self,
        passes: CountedPasses,
        of_part: Callable[[np.ndarray], Derivatives],
        position: HostVector,
        here: Derivatives,
        tolerance: float,
    ) -> SearchEnd | None:
        """The mode by searches on a part, each corrected by a pass; None if one leads uphill."""
        posterior = passes.posterior
        rounding = 64 * float(jnp.finfo(posterior.dtype).eps) / posterior.n_rows**0.5
        for _ in range(_MOST_PASSES):
            direction, definite = descent_direction(here.hessian, here.gradient)
            if not definite or not here.finite:
                return None
            if np.sqrt(direction @ here.gradient) < tolerance:
                return SearchEnd(position, None, True, here)
            candidate = self._corrected_mode(posterior, of_part, position, here)
            there = passes.derivatives(candidate)
            if not there.value <= here.value + rounding * abs(here.value):
                return None
            position, here = candidate, there
        return None

    def _corrected_mode(
        self,
        posterior: AbstractPosterior,
        of_part: Callable[[np.ndarray], Derivatives],
        position: HostVector,
        here: Derivatives,
    ) -> HostVector:
        """The mode of a part whose derivatives at `position` are made those of more rows."""
        correct = of_part(position).corrected(here, position)

        def corrected(at: np.ndarray) -> Derivatives:
            return correct(of_part(at), at)

        found = self.search_part(corrected, position, _NEAR_MODE_OF_PART, posterior.model)
        return _rounded(found, posterior)

    def _mode_of_blocks(self, passes: CountedPasses, some: Subset, start: HostVector) -> HostVector:
        """About the mode of the rows of some blocks, by rows of them that a pass corrects."""
        posterior = passes.posterior
        of_blocks = CountedPasses(posterior, subset=some)
        numbers = _spread_over(some, min(_ROWS_OF_PART, some.n_rows))
        weights = np.full(len(numbers), posterior.n_rows / len(numbers))
        batch = posterior.rows.batch_of(numbers, weights, posterior.dtype)
        of_few = _derivatives_of_batch(posterior, batch)
        position = self.search_part(of_few, start, 1.0, posterior.model, self.max_steps)
        position = _rounded(position, posterior)
        for _ in range(_MOST_CORRECTIONS):
            here = of_blocks.derivatives(position)
            if not here.finite or not descent_direction(here.hessian, here.gradient)[1]:
                break
            position = self._corrected_mode(posterior, of_few, position, here)
            if _is_by_chance(here, posterior, len(numbers)):
                break
        passes.n_row_evals += len(numbers) + of_blocks.n_row_evals
        return position

    def search_part(
        self,
        derivatives: Callable[[np.ndarray], Derivatives],
        position: HostVector,
        tolerance: float,
        model: AbstractModel,
        most_steps: int = _STEPS_ON_PART,
    ) -> HostVector:
        """The mode of a function whose derivatives cost little, as far as steps lead downhill."""
        here = derivatives(position)
        for _ in range(most_steps):
            checkpoint()
            direction, _ = descent_direction(here.hessian, here.gradient)
            if not here.finite or direction @ here.gradient < tolerance**2:
                break
            direction = model.step_share(direction) * direction
            allowed = here.value + _ROUNDING_OF_PART * abs(here.value)
            for halvings in range(_MOST_HALVINGS):
                candidate = position - 0.5**halvings * direction
                there = derivatives(candidate)
                if there.finite and there.value <= allowed:
                    break
            else:
                break
            position, here = candidate, there
        return position

    def descend(
        self, passes: CountedPasses, position: HostVector, tolerance: float | None = None
    ) -> SearchEnd:
        """Step until √(∇fᵀ H⁻¹ ∇f) is below `tolerance`, or rounding prevents progress."""
        tolerance = self.tolerance if tolerance is None else tolerance
        value, gradient = passes.value_and_gradient(position)
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            raise not_finite(passes, position, "at init")
        hessian, hessian_age = passes.hessian(position), 0
        smallest, since_smallest, definite, values = np.inf, 0, True, [value]
        # In double precision, steps without progress come from a curved valley, not from rounding.
        patience = 3 if passes.posterior.dtype == np.float32 else 12
        for _ in range(self.max_steps):
            direction, definite = descent_direction(hessian, gradient)
            decrement = float(np.sqrt(max(direction @ gradient, 0.0)))
            since_smallest = 0 if decrement < smallest else since_smallest + 1
            smallest = min(smallest, decrement)
            if decrement < tolerance or (smallest < _CLOSE and since_smallest >= patience):
                if definite or hessian_age == 0:
                    return SearchEnd(position, None, definite)
                # An updated Hessian that is not positive definite says little about the distance.
                hessian, hessian_age = passes.hessian(position), 0
                smallest, since_smallest = np.inf, 0
                continue
            if len(values) > _STALL and values[-_STALL - 1] - value < _LEAST_FALL * smallest**2:
                break
            if hessian_age >= _STEPS_PER_HESSIAN:
                hessian, hessian_age = passes.hessian(position), 0
                continue
            found = _line_search(passes, position, value, direction, decrement)
            if found is None:
                if hessian_age == 0:
                    break
                hessian, hessian_age = passes.hessian(position), 0
                continue
            candidate, value, new_gradient = found
            hessian = _bfgs_update(hessian, candidate - position, new_gradient - gradient)
            position, gradient, hessian_age = candidate, new_gradient, hessian_age + 1
            values.append(value)
        if smallest < _CLOSE:
            return SearchEnd(position, None, definite)
        problem = (
            f"Newton's method did not reach the mode in {len(values) - 1} steps: "
            f"it is {in_posterior_sds(decrement)} away."
        )
        return SearchEnd(position, problem, definite)


def _derivatives_of_part(
    passes: CountedPasses, start: HostVector
) -> Callable[[np.ndarray], Derivatives]:
    """The derivatives of some rows with weights, which stand for all rows."""
    posterior, first = passes.posterior, np.asarray(start, passes.posterior.dtype)
    if posterior.model.row_cost > 1:  # few rows, and the program of a pass is slow to compile
        part = CountedPasses(posterior, _rows_of_part(posterior.model) / posterior.n_rows)

        def counted(at: np.ndarray) -> Derivatives:
            found = part.derivatives(at)
            passes.n_row_evals, part.n_row_evals = passes.n_row_evals + part.n_row_evals, 0
            return found

        return counted
    if posterior.rows.access >= RowAccess.TAKE:
        one_block = posterior.rows.subset(posterior.width, 1)
        in_background(lambda: derivatives_of_rows(posterior, first, one_block))
    return _derivatives_of_batch(posterior, _part(passes))


def _derivatives_of_batch(
    posterior: AbstractPosterior, batch: Batch
) -> Callable[[np.ndarray], Derivatives]:
    def of_batch(at: np.ndarray) -> Derivatives:
        rounded = np.asarray(at, posterior.dtype)
        found = _batch_derivatives(posterior.model, rounded, batch)
        value, gradient, hessian = (np.asarray(part, np.float64) for part in found)
        return Derivatives(float(value), gradient, hessian)

    return of_batch


def _rounded(at: HostVector, posterior: AbstractPosterior) -> np.ndarray:
    """A position as the posterior's precision has it."""
    return np.asarray(np.asarray(at, posterior.dtype), np.float64)


def _is_by_chance(here: Derivatives, posterior: AbstractPosterior, n_rows: int) -> bool:
    """Whether the mode is as near as that of a sample of so many rows would be.

    It is farther where such rows say little of a parameter, as of that of a rare column: a point
    that they lead to is then no better than a guess.
    """
    direction, definite = descent_direction(here.hessian, here.gradient)
    variance = posterior.dim * posterior.n_rows / min(n_rows, _ROWS_OF_PART)
    return here.finite and definite and bool(direction @ here.gradient < 4 * variance)


def _rows_of_part(model: AbstractModel) -> int:
    return max(_ROWS_OF_PART // model.row_cost, _FEWEST_OF_PART)


def _has_leverages(posterior: AbstractPosterior) -> bool:
    return posterior.model.regression() is not None and posterior.model.row_cost == 1


def _part(passes: CountedPasses) -> Batch:
    """Rows of which half are uniform and half in proportion to what they say of their columns."""
    posterior = passes.posterior
    if (regression := posterior.model.regression()) is None:
        within = np.arange(_ROWS_OF_PART) + np.random.default_rng(0).random(_ROWS_OF_PART)
        numbers = (within * (posterior.n_rows / _ROWS_OF_PART)).astype(int)
        weights = np.full(_ROWS_OF_PART, posterior.n_rows / _ROWS_OF_PART)
        return _drawn_batch(passes, [(numbers, weights)])
    keep, squares = _draw_by_leverage(passes, _for_sums_of_squares(posterior))
    found = posterior.rows.survey(_leverages, keep, regression, squares, width=posterior.width)
    passes.n_row_evals += posterior.n_rows
    return _drawn_batch(passes, found)


def _draw_by_leverage(passes: CountedPasses, some: Subset) -> tuple[Any, Float[np.ndarray, " c"]]:
    """What draws rows by their leverages, and the columns' sums of squares, from some blocks."""
    posterior, n_rows = passes.posterior, passes.posterior.n_rows
    regression, width = posterior.model.regression(), posterior.width
    squares = posterior.rows.reduce(_column_squares, regression, width=width, subset=some).float64()
    squares *= n_rows / some.n_rows
    passes.n_row_evals += some.n_rows
    # Somewhat less, because every shard has a whole number of them. The leverages of a column add
    # up to 1.
    half, n_columns = 0.98 * _ROWS_OF_PART / 2, max(1, int(np.count_nonzero(squares)))
    keep = functools.partial(_drawn_part, half / n_rows, half / n_columns)
    return keep, squares.astype(posterior.dtype)


def _drawn_batch(passes: CountedPasses, drawn: Sequence[tuple[np.ndarray, np.ndarray]]) -> Batch:
    """The rows with these numbers and weights, in parts."""
    numbers, weights = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    passes.n_row_evals += len(numbers)
    return passes.posterior.rows.batch_of(numbers, weights, passes.posterior.dtype)


def _spread_over(some: Subset, count: int) -> Int[np.ndarray, " k"]:
    """Numbers of rows of one block each of all shards, at random and evenly spread."""
    starts = np.cumsum([0, *(of.n_rows for of, _ in some.blocks)])
    cut = [(of.start(number), of.counted(number)) for of, (number,) in some.blocks]
    first = [start + begin + of.start for start, (begin, of) in zip(starts, cut, strict=False)]
    ends = np.cumsum([of.stop - of.start for _, of in cut])
    within = (np.arange(count) + np.random.default_rng(0).random(count)) * (ends[-1] / count)
    block = np.searchsorted(ends, within, side="right")
    return np.asarray(first)[block] + (within - np.append(0, ends)[block]).astype(int)


def _for_sums_of_squares(posterior: AbstractPosterior) -> Subset:
    """All rows in memory; of every shard of a row store a block, which is about an eighth."""
    every = posterior.rows.subset(posterior.width)
    if posterior.rows.access >= RowAccess.TAKE:
        return every
    random = np.random.default_rng(0)
    return Subset(tuple((of, (int(random.integers(of.count)),)) for of, _ in every.blocks))


_MOST_OF_SHARD = 2048


def _drawn_part(
    uniform: float, per_leverage: float, first: int, leverages: Float[np.ndarray, " n"]
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and weights of rows drawn from those from number `first` on.

    They are about as many as those that `uniform` gives alone, twice. Where a column was not seen
    in the sums of squares, the chances are scaled so that they are not many more.
    """
    with np.errstate(over="ignore"):
        chances = np.minimum(uniform + per_leverage * leverages, 1.0)
    chances *= min(1.0, max(4 * uniform * len(chances), _MOST_OF_SHARD) / chances.sum())
    drawn = systematic_sample(chances, np.random.default_rng(first).random())
    return first + drawn, 1 / chances[drawn]


def _column_squares(block: RowBlock, counted: Bool[Array, " n"], regression: Any) -> Vector:
    return regression.columns(block).squared().sums(counted.astype(regression.dtype))


def _leverages(block: RowBlock, regression: Any, squares: Float[Any, " c"]) -> Float[Array, " n"]:
    """Σ_j x_ij²/Σ_k x_kj²."""
    shares = 1 / jnp.maximum(squares, jnp.finfo(squares.dtype).tiny)
    return regression.columns(block).squared() @ shares


@quickly_compiled
def _batch_derivatives(
    model: AbstractModel, position: Float[Any, " d"], batch: Batch
) -> tuple[Scalar, Vector, Matrix]:
    value = dot(batch.weights, model.row_potentials(position, batch.rows))
    gradient = model.sum_remainders(0, position, position, batch)
    hessian = model.block_hessian(position, batch.rows, batch.weights)
    return (
        value + model.prior_potential(position),
        gradient + model.prior_gradient(position),
        hessian + jax.hessian(model.prior_potential)(position),
    )


def _line_search(
    passes: CountedPasses,
    position: np.ndarray,
    value: float,
    direction: np.ndarray,
    decrement: float,
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Halve the step until the potential falls enough, up to rounding; None if it never does."""
    posterior = passes.posterior
    step, rounding = 1.0, 64 * float(jnp.finfo(posterior.dtype).eps) / posterior.n_rows**0.5
    # So near the mode, single precision hardly sees the potential fall.
    is_close = decrement < _CLOSE and posterior.dtype == np.float32
    for _ in range(4 if is_close else 40):
        candidate = position - step * direction
        new_value, gradient = passes.value_and_gradient(candidate)
        if new_value <= value - 1e-4 * step * decrement**2 + rounding * abs(value):
            return candidate, new_value, gradient
        step /= 2
    return None


def _bfgs_update(hessian: np.ndarray, step: np.ndarray, gradient_change: np.ndarray) -> np.ndarray:
    """The BFGS update of `hessian`, which then maps `step` to `gradient_change`."""
    curvature, product = step @ gradient_change, hessian @ step
    along = step @ product
    if curvature <= 1e-8 * abs(along) or along <= 0:
        return hessian
    added = np.outer(gradient_change, gradient_change) / curvature
    return hessian + added - np.outer(product, product) / along


def descent_direction(hessian: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, bool]:
    """H⁻¹ ∇f, and whether H is positive definite. If not, |eigenvalues| replace its eigenvalues.

    An infinite H, at a kink of the density, is replaced by the identity. In all cases the potential
    falls along minus this direction.
    """
    if not np.isfinite(hessian).all():
        return gradient, False
    try:
        root = np.linalg.cholesky(hessian)
        return np.linalg.solve(root.T, np.linalg.solve(root, gradient)), True
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(hessian)
        size = np.maximum(np.abs(values), 1e-8 * np.abs(values).max() or 1.0)
        return vectors @ ((vectors.T @ gradient) / size), False
