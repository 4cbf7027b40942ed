"""Firefly Monte Carlo: exact draws for logistic regression from steps that look at a few rows (Maclaurin and Adams, 2014).

Each likelihood L_i has a lower bound B_i, and each row a brightness z_i ∈ {0, 1}. The joint density

    p(θ, z) ∝ p(θ) Π_i B_i(θ) Π_{z_i=1} (L_i(θ) − B_i(θ)) / B_i(θ)

has the posterior as its marginal, since the sum over z_i of row i's factors is L_i. A step

    1. draws z_i, P(z_i = 1 | θ) = 1 − B_i/L_i, anew in a ring of ⌈fraction · N⌉ neighbouring rows that starts at a random one;
    2. moves θ given z by an exact dynamics, random-walk Metropolis or MALA, which asks for the bright rows only.

Both leave p(θ, z) invariant: the draws are exact at any step size, fraction and anchor, which decide how fast they mix. The bound
is that of `bound.py`, tight at the anchor: near it few rows are bright. With the gap g = log L − log B,

    P(z_i = 1 | θ) = 1 − e^−g,   log((L − B)/B) = log(e^g − 1).

Both steps take the gaps from one function, so that in float32 rounding perturbs log p(θ | rows) by the sum of the gaps' errors
and nothing else.

Cost: preparing the bound takes one pass. A step touches the ring once and the bright rows twice, at θ and at the proposal; to
find these it counts N bits, 32 a word.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, UInt32

from .._anchor import Anchor, Needs
from .._errors import InvalidInput, check_number
from .._kernel import AbstractKernel, ChainState, Stepped, Supply
from .._method import AbstractMethod, Prepared, prepare_anchor
from .._posterior import AbstractPosterior
from .._random import random_words
from .._rows import Sum, take_rows
from ..dynamics import MALA, RandomWalk
from ..dynamics.base import AbstractDynamics, AbstractDynamicsState, Surroundings
from ..geometry import GeometryChoice, Identity
from ..models.families import Bernoulli
from ..models.glm import GeneralisedLinear
from ..schedule import AbstractSchedule, as_schedule, in_precision
from ..subsample.bits import uniform_index
from ..subsample.selection import Estimate, Memory
from .bits import WORD, Bright, pack
from .bound import Bound, tangent_bound

_RING_CHUNK = 512
_BRIGHT_CHUNK = 64
_PROPOSALS = {"random-walk": RandomWalk(), "langevin": MALA()}


class Ring(eqx.Module):
    """Neighbouring rows, the first after the last, and a key for their new brightness."""

    start: Int[Array, ""]
    key: Key[Array, ""]


class FireflyState(AbstractDynamicsState):
    position: Float[Array, " d"]


class FireflyKernel(AbstractKernel):
    bound: Bound
    dynamics: AbstractDynamics
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    ring_size: int = eqx.field(static=True)

    @property
    def posterior(self) -> GeneralisedLinear:
        return self.bound.posterior

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def rows_ahead(self) -> int:
        return 0

    @property
    def most_rows(self) -> int:
        return self.ring_size + 2 * self.posterior.n_rows

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)

    def rows_at_start(self) -> int:
        return self.posterior.n_rows

    def init(self, key: PRNGKeyArray, position: Float[Array, " d"]) -> ChainState:
        n_rows = self.posterior.n_rows
        # A chunk of the ring may begin in any word: the words that the last one reaches beyond N stay dark.
        dark = jnp.zeros(-(-n_rows // WORD) + _RING_CHUNK // WORD, jnp.uint32)
        everywhere = Ring(jnp.int32(0), key)
        words = self._in_turn(lambda kernel, *args: kernel.resample(*args, n_rows), dark, position, everywhere)
        return ChainState(FireflyState(position), words)

    def supply(self, key: PRNGKeyArray, steps: int) -> Supply:
        start_key, step_key, noise_key = jax.random.split(key, 3)
        starts = uniform_index(random_words(start_key, (steps,)), jnp.uint32(self.posterior.n_rows))
        ring_keys, dynamics_keys = jax.random.split(step_key, (2, steps))
        noise = self.dynamics.noise(noise_key, steps, self.posterior.init)
        return Supply(Ring(starts, ring_keys), (dynamics_keys, noise))

    def gather(self, supply: Supply) -> Supply:
        return supply

    def step(self, state: ChainState, supply: Supply, step: Int[Array, ""]) -> Stepped:
        return self._in_turn(lambda kernel, *args: kernel.step_of_one(*args), state, supply, step)

    def step_of_one(self, state: ChainState, supply: Supply, step: Int[Array, ""]) -> Stepped:
        """z given θ, then θ given z."""
        bright = Bright.of(self.resample(state.memory, state.position, supply.rows, self.ring_size))
        key, noise = supply.noise
        motion = self.dynamics.init(key, state.position, lambda at, to: self.evaluate(at, bright))
        step_size = self.schedule(step).astype(state.position.dtype)
        moved = self.dynamics.step(motion, lambda at, to: self.evaluate(at, bright), step_size, noise)
        stats = {"batch_size": self.ring_size + 2 * bright.count, "bright_rows": bright.count, **moved.stats}
        return Stepped(ChainState(FireflyState(moved.state.position), bright.words), stats, jnp.int32(moved.outcome))

    def evaluate(self, position: Float[Array, " d"], bright: Bright) -> Estimate:
        """−log p(θ, z), up to a constant, and its gradient by θ: the bright rows, a chunk at a time."""
        posterior = self.posterior

        def add_chunk(chunk: Array, total: Sum) -> Sum:
            ranks = chunk * _BRIGHT_CHUNK + jnp.arange(_BRIGHT_CHUNK)
            used = ranks < bright.count
            rows = take_rows(posterior.data, jnp.where(used, bright.rows(ranks), 0))
            terms, slopes = self.bound.bright_terms(position, rows)
            return total.plus((jnp.sum(jnp.where(used, terms, 0)), posterior.combine(slopes, rows, used.astype(slopes.dtype))))

        zero = (jnp.zeros((), position.dtype), jnp.zeros_like(position))
        total = lax.fori_loop(0, -(-bright.count // _BRIGHT_CHUNK), add_chunk, Sum(zero, zero))
        known, gradient = self.bound.known(position)
        potential = Sum(total.high[0], total.low[0] + known)
        return Estimate(total.rounded()[1] + gradient, bright.count, Memory(), potential=potential)

    def resample(
        self, words: UInt32[Array, " words"], position: Float[Array, " d"], ring: Ring, size: int | Array
    ) -> UInt32[Array, " words"]:
        """z with the brightness of `size` rows from `ring.start` on drawn anew, a chunk of whole words at a time."""
        posterior, n_rows = self.posterior, self.posterior.n_rows
        readable = min(_RING_CHUNK, n_rows)

        def draw_chunk(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            chunk, row, left, words = carry
            first = row // WORD * WORD
            readable_from = jnp.minimum(first, n_rows - readable)
            rows = jax.tree.map(lambda column: lax.dynamic_slice_in_dim(column, readable_from, readable), posterior.data)
            chance = jnp.pad(self.bound.chance_bright(position, rows), (0, _RING_CHUNK - readable))
            chance = jnp.roll(chance, readable_from - first)
            bright = _fine_uniform(jax.random.fold_in(ring.key, chunk), _RING_CHUNK, chance.dtype) < chance
            end = jnp.minimum(jnp.minimum(row + left, first + _RING_CHUNK), n_rows)
            at = first + jnp.arange(_RING_CHUNK)
            drawn = (at >= row) & (at < end)
            old = lax.dynamic_slice_in_dim(words, first // WORD, _RING_CHUNK // WORD)
            new = (old & ~pack(drawn)) | pack(drawn & bright)
            words = lax.dynamic_update_slice_in_dim(words, new, first // WORD, 0)
            return chunk + 1, end % n_rows, left - (end - row), words

        carry = (jnp.int32(0), ring.start, jnp.int32(size), words)
        return lax.while_loop(lambda carry: carry[2] > 0, draw_chunk, carry)[3]

    def _in_turn(self, method: Callable[..., Any], *args: Any) -> Any:
        """Under vmap the chains go one after the other, so that each costs its own bright rows and not the most of any."""
        arrays, static = eqx.partition(self, eqx.is_array)

        @sequential_vmap
        def of_one_chain(arrays, args):  # type: ignore[no-untyped-def]
            return method(eqx.combine(arrays, static), *args)

        return of_one_chain(arrays, args)


def _fine_uniform(key: PRNGKeyArray, count: int, dtype: Any) -> Float[Array, " count"]:
    """(w + v)/2³², w a random word for each and one v ∈ [0, 1] for all: most chances of being bright are far below 2⁻²⁴.

    v decides only for a row whose w is the very one that its chance falls in; two rows of a chunk ask it at once with
    probability 2⁻⁴⁷.
    """
    words = random_words(key, (count // 2 + 1,)).reshape(-1).astype(dtype)
    return (words[:count] + words[count] * 2.0**-32) * 2.0**-32


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlyMC(AbstractMethod):
    """Firefly Monte Carlo for `logistic_regression`: exact, and a step touches `fraction` of the rows and the bright ones.

    `proposal` moves θ: "langevin" (MALA) or "random-walk", with `step_size` and `geometry` as they have them.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> posterior = tallmc.models.logistic_regression(x, x[:, 0] > 0.5, prior_variance=10.0)
    >>> draws = tallmc.sample(posterior, FlyMC(step_size=0.02), chains=2, draws=100)
    >>> bool(draws.sample_stats["bright_rows"].max() < 200)
    True
    """

    step_size: float | AbstractSchedule
    fraction: float = 0.1
    proposal: str = "langevin"
    geometry: GeometryChoice = dataclasses.field(default_factory=Identity)

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_number("fraction", self.fraction, 0, 1, low_open=True)
        if self.proposal not in _PROPOSALS:
            raise InvalidInput("proposal", f"be one of {', '.join(map(repr, _PROPOSALS))}", self.proposal)
        if not isinstance(self.geometry, GeometryChoice):
            raise InvalidInput("geometry", "be a GeometryChoice", self.geometry, "See tallmc.geometry.")

    @property
    def needs(self) -> Needs:
        return max(Needs.MODE, self.geometry.needs)

    @property
    def has_accept_step(self) -> bool:
        # Its accept step compares potentials of the bright rows, not of all.
        return False

    @property
    def axes(self) -> dict[str, str]:
        dynamics = type(_PROPOSALS[self.proposal]).__name__
        return {
            "dynamics": dynamics,
            "gradient": "of bright rows",
            "subsample": "FlyMC",
            "size": "as bright",
        }

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0) -> Prepared:
        """The anchor, and the bound that touches there."""
        if not isinstance(posterior, GeneralisedLinear) or not isinstance(posterior.family, Bernoulli):
            rule = (
                "be a logistic regression for FlyMC, since it takes a tight lower bound on each likelihood, which is known there"
            )
            raise InvalidInput("posterior", rule, _kind(posterior), "Use tallmc.models.logistic_regression, or mala for others.")
        anchor, rows = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "a method that needs the mode is prepared with one"
        geometry = self.geometry.prepare(posterior, anchor)
        kernel = FireflyKernel(
            bound=tangent_bound(posterior, anchor),
            dynamics=_PROPOSALS[self.proposal].prepare(Surroundings(posterior, geometry, None)),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
            ring_size=math.ceil(self.fraction * posterior.n_rows),
        )
        return Prepared(kernel, anchor, rows + posterior.n_rows)


def _kind(posterior: Any) -> str:
    if isinstance(posterior, GeneralisedLinear):
        return f"the {type(posterior.family).__name__} family"
    return type(posterior).__name__
