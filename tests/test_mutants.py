"""Mistakes that somebody published, or could: each must be caught by a check that the right code passes.

The checks are those of the other files. A mutant that survives means that a test is too weak.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear, logistic, residual_matrix, slow_after
from stationary import exact_law, law_z
from tallmc._rows import Sum
from tallmc.dynamics import (
    Hamiltonian,
    HamiltonianDynamics,
    LangevinDynamics,
    LeimkuhlerMatthews,
    LeimkuhlerMatthewsDynamics,
    MalaDynamics,
    RandomWalkDynamics,
    Splitting,
    SplittingDynamics,
    Underdamped,
    UnderdampedDynamics,
)
from tallmc.dynamics.base import Moved
from tallmc.gradient import ControlVariateGradient
from tallmc.subsample.law import AliasLaw
from tallmc.subsample.replacement import WithReplacement
from tallmc.subsample.selection import Picks
from tallmc.subsample.size import AdaptiveSelection
from test_mala import invariance_z
from test_unbiased import moments_by_enumeration

STEP = 0.15
KILLED = 4.6


class NoiseTooLarge(LangevinDynamics):
    def noise(self, key, steps, like):
        return 1.1 * super().noise(key, steps, like)


class StepTooLarge(LangevinDynamics):
    def step(self, state, evaluate, step_size, noise):
        return super().step(state, evaluate, 1.05 * step_size, noise)


class DriftOfWholeStep(LangevinDynamics):
    def step(self, state, evaluate, step_size, noise):
        doubled = lambda at, to: dataclasses.replace(evaluate(at, to), gradient=2 * evaluate(at, to).gradient)
        return super().step(state, doubled, step_size, noise)


class OneNoiseForAllSteps(LangevinDynamics):
    def noise(self, key, steps, like):
        return jnp.broadcast_to(super().noise(key, 1, like), (steps, *like.shape))


class WeightsForgotten(WithReplacement):
    def picks_at(self, indices):
        return Picks(indices, jnp.full(indices.shape, self.law.inverse.shape[0] / self.size))


class MeanInsteadOfSum(WithReplacement):
    def picks_at(self, indices):
        return Picks(indices, super().picks_at(indices).weights / self.law.probabilities().shape[0])


class OneBatchForAllSteps(WithReplacement):
    def supply(self, key, steps):
        picks = super().supply(key, 1)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (steps, *leaf.shape[1:])), picks)


class ThresholdInverted(AliasLaw):
    def draw(self, words):
        flipped = words.at[..., 1].set(jnp.uint32(2**32 - 1) - words[..., 1])
        cell = (words[..., 0] >> (32 - (self.threshold.shape[0].bit_length() - 1))).astype(jnp.int32)
        return jnp.where(flipped[..., 1] >= self.threshold[cell], cell, self.alias[cell])


class SignFlipped(ControlVariateGradient):
    def residuals(self, position, rows, indices=None, memory=None):
        return self.posterior.row_gradients(position, rows) + self.posterior.row_gradients(self.anchor, rows)


class PriorForgotten(ControlVariateGradient):
    def known(self, position, memory=None):
        return self.known_at_anchor + self.posterior.prior_gradient(self.anchor)


class AnchorGradientForgotten(ControlVariateGradient):
    def known(self, position, memory=None):
        return self.posterior.prior_gradient(position)


def cast(part, kind):
    """The same fields under a mutant's methods."""
    mutant = object.__new__(kind)
    for field in dataclasses.fields(part):
        object.__setattr__(mutant, field.name, getattr(part, field.name))
    return mutant


def mutate(kernel, part: str, kind):
    return dataclasses.replace(kernel, **{part: cast(getattr(kernel, part), kind)})


def mutate_law(kernel, law):
    return dataclasses.replace(kernel, selection=dataclasses.replace(kernel.selection, law=law))


def floor_forgotten_in_the_weights(kernel):
    """Draws from the floored law, weights from the law without its floor."""
    law = kernel.selection.law
    p = law.probabilities()
    bare = (p - 0.05 / len(p)) / 0.95
    return mutate_law(kernel, eqx.tree_at(lambda of: of.inverse, law, jnp.asarray(1 / bare)))


STATIONARY = {
    "noise-scaled-by-1.1": ("sgld_cv_ps", lambda k: mutate(k, "dynamics", NoiseTooLarge)),
    "step-scaled-by-1.05": ("sgld_cv_ps", lambda k: mutate(k, "dynamics", StepTooLarge)),
    "drift-of-a-whole-step": ("sgld_cv_ps", lambda k: mutate(k, "dynamics", DriftOfWholeStep)),
    "one-noise-for-all-steps-of-a-block": ("sgld_cv_ps", lambda k: mutate(k, "dynamics", OneNoiseForAllSteps)),
    "weights-forgotten": ("sgld_cv_ps", lambda k: mutate(k, "selection", WeightsForgotten)),
    "mean-instead-of-sum": ("sgld", lambda k: mutate(k, "selection", MeanInsteadOfSum)),
    "one-batch-for-all-steps-of-a-block": ("sgld", lambda k: mutate(k, "selection", OneBatchForAllSteps)),
    "alias-threshold-inverted": ("sgld_ps", lambda k: mutate_law(k, cast(k.selection.law, ThresholdInverted))),
    "floor-forgotten-in-the-weights": ("sgld_ps", floor_forgotten_in_the_weights),
    "control-variate-sign": ("sgld_cv", lambda k: mutate(k, "gradient", SignFlipped)),
    "prior-forgotten": ("sgld_cv", lambda k: mutate(k, "gradient", PriorForgotten)),
    "anchor-gradient-forgotten": ("sgld_cv", lambda k: mutate(k, "gradient", AnchorGradientForgotten)),
}


@pytest.mark.parametrize("name", slow_after(6, STATIONARY))
def test_stationary_law_kills(name):
    method, mutation = STATIONARY[name]
    posterior = linear()
    # An anchor off the mode, so that ∇f(θ̂) matters.
    anchor = tallmc.laplace(posterior, at={"beta": np.array([0.8, 2.2])})
    kernel = tallmc.METHODS[method].make(STEP, size=4).prepare(posterior, anchor).kernel
    law = exact_law(kernel, STEP)
    z = max(law_z(mutation(kernel), law, chains=2048).values())
    assert z > KILLED, f"z = {z:.2f}"


@pytest.mark.parametrize("method", sorted({method for method, _ in STATIONARY.values()}))
def test_what_the_mutants_are_made_from_survives(method):
    posterior = linear()
    anchor = tallmc.laplace(posterior, at={"beta": np.array([0.8, 2.2])})
    kernel = tallmc.METHODS[method].make(STEP, size=4).prepare(posterior, anchor).kernel
    assert max(law_z(kernel, exact_law(kernel, STEP), chains=2048).values()) < KILLED


def test_a_wrong_step_size_is_seen_by_the_lag_not_by_the_mean():
    kernel = tallmc.ula(STEP).prepare(linear()).kernel
    z = law_z(mutate(kernel, "dynamics", StepTooLarge), exact_law(kernel, STEP))
    assert z["lag1"] > KILLED > z["mean"]


@pytest.mark.parametrize("kind", [WeightsForgotten, MeanInsteadOfSum])
def test_enumeration_kills(kind):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    kernel = mutate(tallmc.sgld_ps(0.1, size=3).prepare(posterior).kernel, "selection", kind)
    _, mean, _ = moments_by_enumeration(kernel, position)
    assert np.abs(mean - np.asarray(posterior.gradient(position))).max() > 1e-3


class AdaptiveMaskForgotten(AdaptiveSelection):
    """Weights 1/(n p_i) on the whole chunk instead of on n rows of it."""

    def estimate(self, gradient, position, memory, supply, transition):
        estimate = super().estimate(gradient, position, memory, supply, transition)
        known = gradient.known(position)
        return dataclasses.replace(estimate, gradient=known + (estimate.gradient - known) * 64 / estimate.n_rows)


def test_adaptive_mean_kills_a_forgotten_mask():
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    kernel = tallmc.asgld_cv(0.1, noise_threshold=0.5).prepare(posterior).kernel
    keys = kernel.selection.supply(jax.random.key(0), 20_000)
    exact = np.asarray(posterior.gradient(position))

    def z(kernel):
        estimates = np.asarray(jax.jit(jax.vmap(lambda key: kernel.estimate(position, key).gradient))(keys))
        return np.abs((estimates.mean(0) - exact) / (estimates.std(0) / np.sqrt(len(keys)))).max()

    assert z(kernel) < KILLED < z(mutate(kernel, "selection", AdaptiveMaskForgotten))


class ProposalRatioForgotten(MalaDynamics):
    """A Metropolis step that treats the Langevin proposal as symmetric."""

    def step(self, state, evaluate, step_size, noise):
        normal, log_uniform = noise
        proposal = state.position - step_size / 2 * state.gradient + jnp.sqrt(step_size) * normal
        estimate = evaluate(proposal, None)
        accept = log_uniform < state.potential.rounded() - estimate.potential.rounded()
        new = dataclasses.replace(state, position=proposal, gradient=estimate.gradient, potential=estimate.potential)
        return Moved(jax.tree.map(lambda a, b: jnp.where(accept, a, b), new, state), estimate, {})


class StaleGradient(MalaDynamics):
    """The gradient of the proposal kept although it was refused."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        return moved._replace(state=dataclasses.replace(moved.state, gradient=moved.estimate.gradient))


class AcceptsWhenWorse(MalaDynamics):
    def step(self, state, evaluate, step_size, noise):
        flipped = dataclasses.replace(state, potential=Sum(-state.potential.high, -state.potential.low))

        def negated(at, to):
            estimate = evaluate(at, to)
            return dataclasses.replace(estimate, potential=Sum(-estimate.potential.high, -estimate.potential.low))

        moved = super().step(flipped, negated, step_size, noise)
        potential = Sum(-moved.state.potential.high, -moved.state.potential.low)
        return moved._replace(state=dataclasses.replace(moved.state, potential=potential))


@pytest.mark.parametrize("kind", slow_after(1, [StaleGradient, ProposalRatioForgotten, AcceptsWhenWorse]))
def test_invariance_kills(kind):
    kernel = tallmc.mala(0.5).prepare(linear()).kernel
    assert invariance_z(kernel) < KILLED < invariance_z(mutate(kernel, "dynamics", kind))


def test_optimal_weights_lose_to_a_mutant_only_if_the_lemma_is_wrong():
    """The residual, not the gradient, is what the weights of a control variate must follow (eq. 14, not eq. 10)."""
    kernel = tallmc.sgld_cv(0.1, size=3).prepare(logistic()).kernel
    position = jnp.array([0.7, -1.3])
    r = np.linalg.norm(residual_matrix(kernel.gradient, position), axis=1)
    simple = tallmc.sgld(0.1, size=3).prepare(logistic()).kernel
    g = np.linalg.norm(residual_matrix(simple.gradient, position), axis=1)
    noise = lambda p: np.sum(r**2 / p)
    assert noise(g / g.sum()) > 1.05 * noise(r / r.sum())


# Dynamics with momentum. Each mistake has been published.


class BatchHeldThroughATrajectory(WithReplacement):
    """One batch for all inner steps of a trajectory of four."""

    def supply(self, key, steps):
        picks = super().supply(key, -(-steps // 4))
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, 4, axis=0)[:steps], picks)


class MomentumWithHalfItsVariance(HamiltonianDynamics):
    def noise(self, key, steps, like):
        return super().noise(key, steps, like).at[:, 0].divide(jnp.sqrt(2))


class PositionMovesFirst(HamiltonianDynamics):
    """θ' = θ + hρ with the old momentum: with a fresh one in every step the gradient never reaches θ."""

    def step(self, state, evaluate, step_size, noise):
        fresh, _ = noise
        momentum = jnp.where(state.inner == 0, fresh, state.momentum)
        estimate = evaluate(state.position, None)
        kicked = momentum - step_size / 2 * estimate.gradient
        inner = (state.inner + 1) % self.length
        return Moved(type(state)(state.position + step_size / 2 * momentum, kicked, inner), estimate, {})


class WholeKickAfterARefresh(HamiltonianDynamics):
    """ρ' = ρ − hg, θ' = θ + hρ': the first kick of a trajectory is a half too much."""

    def step(self, state, evaluate, step_size, noise):
        fresh, _ = noise
        momentum = jnp.where(state.inner == 0, fresh, state.momentum)
        estimate = evaluate(state.position, None)
        kicked = momentum - step_size / 2 * estimate.gradient
        inner = (state.inner + 1) % self.length
        return Moved(type(state)(state.position + step_size / 2 * kicked, kicked, inner), estimate, {})


class MomentumNeverRefreshed(HamiltonianDynamics):
    def step(self, state, evaluate, step_size, noise):
        return super().step(dataclasses.replace(state, inner=jnp.int32(1)), evaluate, step_size, noise)


class FrictionForgotten(UnderdampedDynamics):
    """The noise of friction without its drag."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        drag = step_size / 2 * self.friction * state.momentum
        return moved._replace(state=dataclasses.replace(moved.state, momentum=moved.state.momentum + drag))


class NoiseOfOneFriction(UnderdampedDynamics):
    """√(γh) where √(2γh) belongs."""

    def noise(self, key, steps, like):
        return super().noise(key, steps, like) / jnp.sqrt(2)


class OldNoiseForgotten(LeimkuhlerMatthewsDynamics):
    """Two halves of the same noise: Langevin dynamics again."""

    def step(self, state, evaluate, step_size, noise):
        return super().step(dataclasses.replace(state, noise=noise), evaluate, step_size, noise)


class KickOfAWholeStepTwice(SplittingDynamics):
    def step(self, state, evaluate, step_size, noise):
        doubled = lambda at, to: dataclasses.replace(evaluate(at, to), gradient=2 * evaluate(at, to).gradient)
        return super().step(state, doubled, step_size, noise)


MOMENTUM = {
    "batch-held-through-a-trajectory": (Hamiltonian(4, 1.0), 0.3, lambda k: mutate(k, "selection", BatchHeldThroughATrajectory)),
    "momentum-with-half-its-variance": (Hamiltonian(4, 1.0), 0.3, lambda k: mutate(k, "dynamics", MomentumWithHalfItsVariance)),
    "position-moves-first": (Hamiltonian(1), 0.3, lambda k: mutate(k, "dynamics", PositionMovesFirst)),
    "whole-kick-after-a-refresh": (Hamiltonian(1), 0.3, lambda k: mutate(k, "dynamics", WholeKickAfterARefresh)),
    "momentum-never-refreshed": (Hamiltonian(4, 1.0), 0.3, lambda k: mutate(k, "dynamics", MomentumNeverRefreshed)),
    "friction-forgotten": (Underdamped(6.0), 0.2, lambda k: mutate(k, "dynamics", FrictionForgotten)),
    "noise-of-one-friction": (Underdamped(6.0), 0.2, lambda k: mutate(k, "dynamics", NoiseOfOneFriction)),
    "old-noise-forgotten": (LeimkuhlerMatthews(), 0.15, lambda k: mutate(k, "dynamics", OldNoiseForgotten)),
    "kick-of-a-whole-step-twice": (Splitting(3.0), 0.2, lambda k: mutate(k, "dynamics", KickOfAWholeStepTwice)),
}


@pytest.mark.parametrize("name", slow_after(5, MOMENTUM))
def test_joint_law_kills(name):
    """Their unmutated controls are in test_stationary_law.py."""
    dynamics, step, mutation = MOMENTUM[name]
    kernel = tallmc.Method(dynamics=dynamics, size=4, step_size=step).prepare(linear()).kernel
    z = law_z(mutation(kernel), exact_law(kernel, step))
    assert not max(z.values()) < KILLED, z


class AcceptsEverything(RandomWalkDynamics):
    def step(self, state, evaluate, step_size, noise):
        return super().step(state, evaluate, step_size, (noise[0], jnp.asarray(-jnp.inf)))


class PotentialOfTheProposalKept(RandomWalkDynamics):
    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        return moved._replace(state=dataclasses.replace(moved.state, potential=moved.estimate.potential))


@pytest.mark.parametrize("kind", slow_after(0, [AcceptsEverything, PotentialOfTheProposalKept]))
def test_invariance_of_the_random_walk_kills(kind):
    kernel = tallmc.random_walk(0.5).prepare(linear()).kernel
    assert invariance_z(kernel) < KILLED < invariance_z(mutate(kernel, "dynamics", kind))
