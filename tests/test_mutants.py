"""Known and plausible mistakes. Each must be caught by a check that the right code passes.

The checks are those of the other files. A mutant that survives means that a test is too weak. A
mutant whose chains fail has not been caught by a check: its statistic must be finite to count.

Most mutants differ from the right code in arrays only. They then run the compiled program of the
right code, or of the other mutants of the same class.
"""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_diverse import diverse_selection, weights_z
from test_sparse_probabilities import gradients_of, least_variance_by_enumeration

import tallmc
from experiments.li2021.theorem41 import cheapest_probabilities
from problems import linear, logistic, residual_matrix
from stationary import cast, exact_law, law_z
from steps import error_against_the_papers, noise_z
from tallmc._rows.law import AliasLaw, AliasTable
from tallmc._rows.passes import Sum
from tallmc.dynamics import (
    BAOAB,
    MALA,
    SGHMC,
    Hamiltonian,
    Langevin,
    LeimkuhlerMatthews,
    MatrixFriction,
    Microcanonical,
    RandomWalk,
)
from tallmc.dynamics.dynamics import DynamicsStep
from tallmc.gradient import AbstractGradient, ControlVariate
from tallmc.methods.subsampled.remainders import ModelRemainders, growth
from tallmc.models.families.bernoulli import Bernoulli, BernoulliProbit
from tallmc.rows import RowDraws
from tallmc.subsample.bounded_noise import AdaptiveSelection
from tallmc.subsample.selection import WithReplacement
from test_derivative_bounds import (
    change_ratios,
    growth_ratios,
    regression,
    remainders_of,
    supremum_ratios,
)
from test_exponential_integrators import bound_with, weights_error
from test_fisher_scoring import KnownFisher, fisher_step_error, with_known_fisher
from test_index_law import realised
from test_mala import metropolis_error
from test_microcanonical import orders
from test_microcanonical import prepared as microcanonical
from test_sgd import covariance_z, transcription_error
from test_steps import microcanonical_error
from test_unbiased import estimates, estimates_from, moments_by_enumeration

STEP = 0.15
KILLED = 4.6
CHAINS = 1024  # of the long runs in the slow suite


def mutate(bound, part: str, kind, **more):
    """The bound kernel with one part of its composition cast to a mutant."""
    mutant = cast(getattr(bound.kernel, part), kind, **more)
    return dataclasses.replace(bound, kernel=dataclasses.replace(bound.kernel, **{part: mutant}))


def assert_killed(z: dict[str, float]) -> None:
    assert np.isfinite(list(z.values())).all(), f"chains failed: {z}"
    assert max(z.values()) > KILLED, z


# Mutants of arrays.


def step_too_large(bound):
    return eqx.tree_at(
        lambda of: of.kernel.schedule.step_size, bound, replace_fn=lambda e: 1.05 * e
    )


def with_inverse(bound, inverse):
    """1/p in the weights replaced; the draws are as before."""
    where = lambda of: of.kernel.selection.stream.law.inverse
    return eqx.tree_at(where, bound, jnp.asarray(inverse))


def weights_forgotten(bound):
    return with_inverse(bound, np.full(bound.rows.n_rows, float(bound.rows.n_rows)))


def mean_instead_of_sum(bound):
    p = bound.kernel.selection.stream.probabilities()
    return with_inverse(bound, 1 / (len(p) * p))


def floor_forgotten_in_the_weights(bound):
    """Draws from the floored law, weights from the law without its floor."""
    p = bound.kernel.selection.stream.probabilities()
    return with_inverse(bound, 0.95 / (p - 0.05 / len(p)))


def alias_threshold_inverted(bound):
    """A cell gives its alias as often as it should give its own row."""
    where = lambda of: of.kernel.selection.stream.law.threshold
    return eqx.tree_at(where, bound, replace_fn=lambda t: jnp.uint32(2**32 - 1) - t)


def prior_taken_at_the_anchor(bound):
    gradient = bound.kernel.gradient
    at_anchor = gradient.model.prior_gradient(gradient.anchor)
    where = lambda of: (of.kernel.gradient.model.prior.variance, of.kernel.gradient.known_at_anchor)
    return eqx.tree_at(where, bound, (jnp.asarray(jnp.inf), gradient.known_at_anchor + at_anchor))


def anchor_gradient_forgotten(bound):
    return eqx.tree_at(
        lambda of: of.kernel.gradient.known_at_anchor, bound, replace_fn=jnp.zeros_like
    )


# Mutants of methods.


class ScaledLangevin(Langevin):
    """Noise and drift times these factors."""

    of_noise: jax.Array
    of_drift: jax.Array

    def step(self, state, evaluate, step_size, noise):
        def scaled(at, transition):
            estimate = evaluate(at, transition)
            return dataclasses.replace(estimate, gradient=self.of_drift * estimate.gradient)

        return super().step(state, scaled, step_size, self.of_noise * noise)


def scaled_langevin(noise=1.0, drift=1.0):
    factors = {"of_noise": jnp.asarray(noise), "of_drift": jnp.asarray(drift)}
    return lambda bound: mutate(bound, "dynamics", ScaledLangevin, **factors)


class OneNoiseForAllSteps(Langevin):
    def noise(self, key, steps, like):
        return jnp.broadcast_to(super().noise(key, 1, like), (steps, *like.shape))


class OneBatchForAllSteps(WithReplacement):
    def gather_on_host(self, source):
        gather = super().gather_on_host(source)
        return lambda words: gather(np.broadcast_to(words[:1], words.shape))


class SignFlipped(ControlVariate):
    """∇f_i(θ) + ∇f_i(θ̂)."""

    def residuals(self, position, rows, indices=None, carried=None):
        at_anchor = self.model.row_gradients(self.anchor, rows)
        return self.model.row_gradients(position, rows) + at_anchor

    def residual_sum(self, position, batch, carried=None):
        return AbstractGradient.residual_sum(self, position, batch, carried)


@functools.cache
def prepared(method, **settings):
    posterior = linear()
    # The anchor is not the mode, so that ∇f(θ̂) matters.
    anchor = tallmc.anchor.find_anchor(posterior, at={"beta": np.array([0.8, 2.2])})
    return tallmc.methods.METHODS[method].make(STEP, **settings).prepare(posterior, anchor).kernel


STEPS = {
    "noise-scaled-by-1.1": ("sgld_cv_ps", {"batch_size": 4}, scaled_langevin(noise=1.1)),
    "drift-of-a-whole-step": ("sgld_cv_ps", {"batch_size": 4}, scaled_langevin(drift=2.0)),
    "step-scaled-by-1.05": ("sgld_cv_ps", {"batch_size": 4}, step_too_large),
    "step-of-ula-scaled-by-1.05": ("ula", {}, step_too_large),
}


@pytest.mark.parametrize("name", STEPS)
def test_matrices_of_the_step_kill(name):
    method, settings, mutation = STEPS[name]
    bound = prepared(method, **settings)
    assert error_against_the_papers(bound, STEP) < 1e-12
    assert 1e-3 < error_against_the_papers(bound, STEP, mutation(bound)) < np.inf


def test_moments_of_the_noise_kill_one_noise_for_all_steps_of_a_block():
    """The unmutated control is in test_steps.py."""
    assert noise_z(OneNoiseForAllSteps()) > KILLED


ESTIMATES = {
    "weights-forgotten": ("sgld_cv_ps", weights_forgotten),
    "mean-instead-of-sum": ("sgld_ps", mean_instead_of_sum),
    "alias-threshold-inverted": ("sgld_ps", alias_threshold_inverted),
    "floor-forgotten-in-the-weights": ("sgld_ps", floor_forgotten_in_the_weights),
    "prior-taken-at-the-anchor": ("sgld_cv", prior_taken_at_the_anchor),
    "anchor-gradient-forgotten": ("sgld_cv", anchor_gradient_forgotten),
    "control-variate-sign": ("sgld_cv", lambda bound: mutate(bound, "gradient", SignFlipped)),
}


def mean_error(bound) -> float:
    """The error of the mean of the estimate over every batch, at a point away from the anchor.

    The probabilities are those of the alias table, not those that the weights assume.
    """
    law, position = bound.kernel.selection.stream.law, jnp.array([0.7, -1.3])
    n_rows = bound.rows.n_rows
    p = np.full(n_rows, 1 / n_rows)
    if isinstance(law, AliasLaw):
        p = realised(AliasTable(np.asarray(law.threshold), np.asarray(law.alias), p))
    selection = bound.kernel.selection
    batches = np.array(list(itertools.product(range(n_rows), repeat=selection.size)))
    drawn = selection.completed(selection.stream.at(jnp.asarray(batches)))
    values = estimates_from(bound.kernel.gradient, bound.rows, position, drawn, None)
    mean = np.prod(p[batches], axis=1) @ np.asarray(values)
    return np.abs(mean - np.asarray(bound.posterior.gradient(position))).max()


@pytest.mark.parametrize("name", ESTIMATES)
def test_enumeration_of_all_draws_kills(name):
    method, mutation = ESTIMATES[name]
    bound = prepared(method, batch_size=2)
    assert mean_error(bound) < 1e-9 < 1e-2 < mean_error(mutation(bound)) < np.inf


# Long runs see what one step does not show, and mistakes of every other kind.
STATIONARY = {
    "weights-forgotten": ("sgld_cv_ps", weights_forgotten),
    "noise-scaled-by-1.1": ("sgld_cv_ps", scaled_langevin(noise=1.1)),
    "one-batch-for-all-steps-of-a-block": (
        "sgld",
        lambda bound: mutate(bound, "selection", OneBatchForAllSteps),
    ),
}
SHORT = {"chains": 256, "steps": 300}


@pytest.mark.parametrize("name", STATIONARY)
def test_stationary_law_kills(name):
    """The unmutated controls are in test_stationary_law.py."""
    method, mutation = STATIONARY[name]
    bound = prepared(method, batch_size=4)
    assert_killed(law_z(mutation(bound), exact_law(bound, STEP), **SHORT))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sgld_cv_ps", "sgld_ps", "sgld_cv", "sgld"])
def test_what_the_mutants_are_made_from_survives(method):
    bound = prepared(method, batch_size=4)
    z = law_z(bound, exact_law(bound, STEP), chains=CHAINS)
    assert max(z.values()) < KILLED, z


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATES)
def test_stationary_law_kills_wrong_estimates(name):
    method, mutation = ESTIMATES[name]
    bound = prepared(method, batch_size=4)
    assert_killed(law_z(mutation(bound), exact_law(bound, STEP), chains=CHAINS))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "settings"), [("sgld_cv_ps", {"batch_size": 4}), ("ula", {})])
def test_a_step_scaled_by_105_percent_is_seen_by_the_lag_not_by_the_mean(method, settings):
    bound = prepared(method, **settings)
    z = law_z(step_too_large(bound), exact_law(bound, STEP), chains=4 * CHAINS)
    assert_killed(z)
    assert z["lag1"] > KILLED > z["mean"]


class WeightsForgotten(WithReplacement):
    def completed(self, drawn):
        n_rows = len(self.stream.probabilities())
        return RowDraws(drawn.indices, jnp.full(drawn.indices.shape, n_rows / self.size))


class MeanInsteadOfSum(WithReplacement):
    def completed(self, drawn):
        weights = super().completed(drawn).weights
        return RowDraws(drawn.indices, weights / len(self.stream.probabilities()))


@pytest.mark.parametrize("kind", [WeightsForgotten, MeanInsteadOfSum])
def test_enumeration_kills(kind):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    bound = tallmc.methods.sgld_ps(0.1, batch_size=3).prepare(posterior).kernel
    exact = np.asarray(posterior.gradient(position))
    error = lambda of: np.abs(moments_by_enumeration(of, position)[1] - exact).max()
    mutants_error = error(mutate(bound, "selection", kind))
    assert error(bound) < 1e-11 < 1e-3 < mutants_error < np.inf


class KnownPartOfTheOtherSide(ControlVariate):
    """Beyond the radius, the residuals change and the known part does not."""

    def known(self, position, carried=None):
        return ControlVariate.known(self._with(radius=None), position)


class DistanceWithoutCovariance(ControlVariate):
    """A radius in the units of the parameters."""

    def is_near(self, position):
        return jnp.sum((position - self.anchor) ** 2) <= self.radius**2


def test_enumeration_kills_a_known_part_of_the_other_side_of_the_radius():
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    method = tallmc.Method(gradient=ControlVariate(radius=0.5), batch_size=3, step_size=0.1)
    bound = method.prepare(posterior).kernel
    exact = np.asarray(posterior.gradient(position))
    error = lambda of: np.abs(moments_by_enumeration(of, position)[1] - exact).max()
    mutant = mutate(bound, "gradient", KnownPartOfTheOtherSide)
    assert error(bound) < 1e-11 < 1e-3 < error(mutant) < np.inf


def test_border_kills_a_distance_without_covariance():
    posterior = linear()
    gradient = ControlVariate(radius=1.0).prepare(posterior, tallmc.anchor.find_anchor(posterior))
    mutant = cast(gradient, DistanceWithoutCovariance)
    beyond = gradient.anchor + 1.01 * jnp.linalg.inv(gradient.whitening)[:, 1]
    assert not gradient.is_near(beyond) and mutant.is_near(beyond)


class AdaptiveMaskForgotten(AdaptiveSelection):
    """Weights 1/(n p_i) on the whole chunk instead of on n rows of it."""

    def estimate(self, at, gathered):
        estimate = super().estimate(at, gathered)
        residual = (estimate.gradient - at.known) * 64 / estimate.n_rows
        return dataclasses.replace(estimate, gradient=at.known + residual)


def test_adaptive_mean_kills_a_forgotten_mask():
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    bound = tallmc.methods.asgld_cv(0.1, noise_threshold=0.5).prepare(posterior).kernel
    words = bound.kernel.selection.draw(jax.random.key(0), 20_000)
    exact = np.asarray(posterior.gradient(position))

    def z(bound):
        found = np.asarray(estimates(bound, position, words))
        return np.abs((found.mean(0) - exact) / (found.std(0) / np.sqrt(len(words)))).max()

    assert z(bound) < KILLED < z(mutate(bound, "selection", AdaptiveMaskForgotten)) < np.inf


class StaleGradient(MALA):
    """The gradient of the proposal is kept although the proposal was refused."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        stale = dataclasses.replace(moved.state, gradient=moved.estimate.gradient)
        return moved._replace(state=stale)


class ProposalRatioForgotten(MALA):
    """A Metropolis step that treats the Langevin proposal as symmetric."""

    def step(self, state, evaluate, step_size, noise):
        normal, log_uniform = noise
        proposal = state.position - step_size / 2 * state.gradient + jnp.sqrt(step_size) * normal
        estimate = evaluate(proposal, None)
        accept = log_uniform < state.potential.rounded() - estimate.potential.rounded()
        new = dataclasses.replace(
            state, position=proposal, gradient=estimate.gradient, potential=estimate.potential
        )
        kept = jax.tree.map(lambda new, old: jnp.where(accept, new, old), new, state)
        return DynamicsStep(kept, estimate, {})


def negated(total: Sum) -> Sum:
    return jax.tree.map(jnp.negative, total)


class AcceptsWhenWorse(MALA):
    """The sign of the potential is wrong in the accept step."""

    def step(self, state, evaluate, step_size, noise):
        flipped = dataclasses.replace(state, potential=negated(state.potential))

        def evaluate_flipped(at, transition):
            estimate = evaluate(at, transition)
            return dataclasses.replace(estimate, potential=negated(estimate.potential))

        moved = super().step(flipped, evaluate_flipped, step_size, noise)
        right = dataclasses.replace(moved.state, potential=negated(moved.state.potential))
        return moved._replace(state=right)


class AcceptsEverything(RandomWalk):
    def step(self, state, evaluate, step_size, noise):
        return super().step(state, evaluate, step_size, (noise[0], jnp.asarray(-jnp.inf)))


class PotentialOfTheProposalKept(RandomWalk):
    """The potential of the proposal is kept although the proposal was refused."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        stale = dataclasses.replace(moved.state, potential=moved.estimate.potential)
        return moved._replace(state=stale)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("mala", StaleGradient),
        ("mala", ProposalRatioForgotten),
        ("mala", AcceptsWhenWorse),
        ("random_walk", AcceptsEverything),
        ("random_walk", PotentialOfTheProposalKept),
    ],
)
def test_detailed_balance_kills(method, kind):
    """The unmutated controls are in test_mala.py."""
    bound = tallmc.methods.METHODS[method].make(0.7).prepare(linear()).kernel
    error = metropolis_error(mutate(bound, "dynamics", kind), drifts=method == "mala")
    assert 1e-2 < error < np.inf


def test_optimal_weights_follow_the_residual_not_the_gradient():
    """The weights of a control variate are those of eq. 14, not those of eq. 10."""
    posterior, position = logistic(), jnp.array([0.7, -1.3])

    def norms(method):
        gradient = method.prepare(posterior).kernel.composition.gradient
        return np.linalg.norm(residual_matrix(gradient, posterior.rows, position), axis=1)

    r, g = (
        norms(tallmc.methods.sgld_cv(0.1, batch_size=3)),
        norms(tallmc.methods.sgld(0.1, batch_size=3)),
    )
    noise = lambda p: np.sum(r**2 / p)
    assert noise(g / g.sum()) > 1.05 * noise(r / r.sum())


def test_a_transcription_kills_descent_with_momentum(monkeypatch):
    with_momentum = lambda step_size: optax.sgd(step_size, momentum=0.5)
    monkeypatch.setattr(optax, "with_momentum", with_momentum, raising=False)
    assert transcription_error("with_momentum") > 1e-3


@pytest.mark.slow
def test_law_of_the_end_kills_descent_with_momentum(monkeypatch):
    """Descent with momentum is not plain: the law of its end is wider."""
    with_momentum = lambda step_size: optax.sgd(step_size, momentum=0.5)
    monkeypatch.setattr(optax, "with_momentum", with_momentum, raising=False)
    assert covariance_z("with_momentum", 0.002, of_step_size=0.002) > KILLED


class NoiseOfAQuarter(KnownFisher):
    """Noise of covariance B/ε, as if ε were that of dθ = −∇f dt + √2 dB, in place of 4B/ε."""

    def step(self, state, evaluate, step_size, noise):
        return super().step(state, evaluate, step_size, noise / 2)


class GradientNoiseForgotten(KnownFisher):
    """γ = (n + 1)/n in place of (n + N)/n."""

    def step(self, state, evaluate, step_size, noise):
        right = cast(self, KnownFisher, n_rows=jnp.ones(()))
        return KnownFisher.step(right, state, evaluate, step_size, noise)


@pytest.mark.parametrize("kind", [NoiseOfAQuarter, GradientNoiseForgotten])
def test_matrices_of_the_step_of_fisher_scoring_kill(kind):
    """The unmutated control is in test_fisher_scoring.py."""
    fisher = np.array([[3.0, 1.0], [1.0, 2.0]])
    bound = tallmc.methods.sgfs(0.2, batch_size=4, window=None).prepare(linear()).kernel
    mutant = with_known_fisher(bound, fisher, kind)
    assert 1e-3 < fisher_step_error(mutant, fisher, 0.2, 4) < np.inf


# Dynamics with momentum. Each mistake has been published.


class BatchHeldThroughATrajectory(WithReplacement):
    """One batch for all inner steps of a trajectory of four."""

    def gather_on_host(self, source):
        gather = super().gather_on_host(source)
        return lambda words: gather(np.repeat(words[::4], 4, axis=0)[: len(words)])


class OtherMomentum(Hamiltonian):
    """At the start of a trajectory, ρ ← (kept) ρ + (of_fresh) ξ; it should be ξ."""

    kept: jax.Array
    of_fresh: jax.Array

    def step(self, state, evaluate, step_size, noise):
        fresh, injected = noise
        wrong = self.kept * state.momentum + self.of_fresh * fresh
        return super().step(state, evaluate, step_size, jnp.stack([wrong, injected]))


def other_momentum(kept, of_fresh):
    factors = {"kept": jnp.asarray(kept), "of_fresh": jnp.asarray(of_fresh)}
    return lambda bound: mutate(bound, "dynamics", OtherMomentum, **factors)


class EulerKick(Hamiltonian):
    """Whole Euler steps: θ' = θ + h ρ̄ and ρ' = ρ − hg, with ρ̄ a mixture of ρ and ρ'.

    With ρ̄ = ρ and a fresh momentum in every step the gradient never reaches θ. With ρ̄ = ρ' the
    first kick of a trajectory is a half too much.
    """

    of_old: jax.Array

    def step(self, state, evaluate, step_size, noise):
        fresh, _ = noise
        momentum = jnp.where(state.inner == 0, fresh, state.momentum)
        estimate = evaluate(state.position, None)
        kicked = momentum - step_size / 2 * estimate.gradient
        mixed = self.of_old * momentum + (1 - self.of_old) * kicked
        inner = (state.inner + 1) % self.length
        moved = type(state)(state.position + step_size / 2 * mixed, kicked, inner)
        return DynamicsStep(moved, estimate, {})


def euler_kick(of_old):
    return lambda bound: mutate(bound, "dynamics", EulerKick, of_old=jnp.asarray(of_old))


class ScaledFriction(SGHMC):
    """The drag of friction and its noise times these factors."""

    of_drag: jax.Array
    of_noise: jax.Array

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, self.of_noise * noise)
        missing = (1 - self.of_drag) * step_size / 2 * self.friction * state.momentum
        momentum = moved.state.momentum + missing
        return moved._replace(state=dataclasses.replace(moved.state, momentum=momentum))


def scaled_friction(drag=1.0, noise=1.0):
    factors = {"of_drag": jnp.asarray(drag), "of_noise": jnp.asarray(noise)}
    return lambda bound: mutate(bound, "dynamics", ScaledFriction, **factors)


class DiagonalOfTheFriction(MatrixFriction):
    """The drag of the diagonal of C, with the noise of the whole matrix."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        between = self.friction - jnp.diag(jnp.diag(self.friction))
        momentum = moved.state.momentum + step_size / 2 * between @ state.momentum
        return moved._replace(state=dataclasses.replace(moved.state, momentum=momentum))


class FrictionForItsRoot(MatrixFriction):
    """Noise C ξ in place of C^½ ξ."""

    def step(self, state, evaluate, step_size, noise):
        wrong = cast(self, MatrixFriction, root=self.friction)
        return wrong.step(state, evaluate, step_size, noise)


class OldNoiseForgotten(LeimkuhlerMatthews):
    """Two halves of the same noise: Langevin dynamics again."""

    def step(self, state, evaluate, step_size, noise):
        return super().step(dataclasses.replace(state, noise=noise), evaluate, step_size, noise)


class KickOfAWholeStepTwice(BAOAB):
    def step(self, state, evaluate, step_size, noise):
        def doubled(at, transition):
            estimate = evaluate(at, transition)
            return dataclasses.replace(estimate, gradient=2 * estimate.gradient)

        return super().step(state, doubled, step_size, noise)


MOMENTUM = {
    "momentum-with-half-its-variance": (
        Hamiltonian(4, 1.0),
        0.3,
        other_momentum(0.0, np.sqrt(0.5)),
    ),
    "momentum-never-refreshed": (Hamiltonian(4, 1.0), 0.3, other_momentum(1.0, 0.0)),
    "position-moves-first": (Hamiltonian(1, 0.0), 0.3, euler_kick(1.0)),
    "whole-kick-after-a-refresh": (Hamiltonian(1, 0.0), 0.3, euler_kick(0.0)),
    "half-of-the-drag-forgotten": (SGHMC(6.0), 0.2, scaled_friction(drag=0.5)),
    "noise-of-one-friction": (SGHMC(6.0), 0.2, scaled_friction(noise=np.sqrt(0.5))),
    "diagonal-of-the-friction": (
        MatrixFriction([[8.0, 4.0], [4.0, 5.0]]),
        0.2,
        lambda bound: mutate(bound, "dynamics", DiagonalOfTheFriction),
    ),
    "friction-for-its-root": (
        MatrixFriction([[8.0, 4.0], [4.0, 5.0]]),
        0.2,
        lambda bound: mutate(bound, "dynamics", FrictionForItsRoot),
    ),
    "old-noise-forgotten": (
        LeimkuhlerMatthews(),
        0.15,
        lambda bound: mutate(bound, "dynamics", OldNoiseForgotten),
    ),
    "kick-of-a-whole-step-twice": (
        BAOAB(3.0),
        0.2,
        lambda bound: mutate(bound, "dynamics", KickOfAWholeStepTwice),
    ),
}


def with_momentum(dynamics, step):
    return tallmc.Method(dynamics=dynamics, batch_size=4, step_size=step).prepare(linear()).kernel


@pytest.mark.parametrize("name", MOMENTUM)
def test_matrices_of_the_step_kill_mistakes_with_the_momentum(name):
    """Their unmutated controls are in test_steps.py."""
    dynamics, step, mutation = MOMENTUM[name]
    bound = with_momentum(dynamics, step)
    assert 1e-2 < error_against_the_papers(bound, step, mutation(bound)) < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTUM)
def test_joint_law_kills(name):
    dynamics, step, mutation = MOMENTUM[name]
    bound = with_momentum(dynamics, step)
    assert_killed(law_z(mutation(bound), exact_law(bound, step), chains=CHAINS))


def test_joint_law_kills_a_batch_that_is_held_through_a_trajectory():
    """Only a run draws the rows of several steps. The control is in test_stationary_law.py."""
    bound = with_momentum(Hamiltonian(4, 1.0), 0.3)
    mutant = mutate(bound, "selection", BatchHeldThroughATrajectory)
    assert_killed(law_z(mutant, exact_law(bound, 0.3), **SHORT))


class EulersWeights(BAOAB):
    """The exponential weights of Euler steps, used with another integrator."""

    def step(self, state, evaluate, step_size, noise):
        h = step_size / 2
        sd = jnp.sqrt(2 * self.friction * h)
        at_rest = h * self.friction * state.momentum / sd
        as_euler = lambda at, move: evaluate(at, move._replace(at_rest=at_rest, scale=h / sd))
        return super().step(state, as_euler, step_size, noise)


def test_densities_of_the_moves_kill_the_weights_of_another_integrator():
    bound = bound_with(BAOAB(1.3))
    right = bound.kernel.dynamics
    mutants_error = weights_error(cast(right, EulersWeights), bound)
    assert weights_error(right, bound) < 1e-9 < 1e-2 < mutants_error < np.inf


def test_enumeration_of_vertices_kills_costs_that_are_not_squared():
    """Theorem 4.1 of li-2021 with ‖b_i‖ in place of ‖b_i‖²."""
    gradients = gradients_of(10, 3, seed=1)
    errors = len(gradients) * gradients - gradients.sum(axis=0)
    norms = np.linalg.norm(errors, axis=1)
    least = least_variance_by_enumeration(gradients)
    excess = lambda costs: cheapest_probabilities(costs, errors) @ norms**2 / least - 1
    assert abs(excess(norms**2)) < 1e-9 < 1e-3 < excess(norms) < np.inf


class CanonicalForce(Microcanonical):
    """The factor d/(d − 1) of the force is forgotten."""

    def step(self, state, evaluate, step_size, noise):
        def weaker(at, transition):
            estimate = evaluate(at, transition)
            d = at.shape[0]
            return dataclasses.replace(estimate, gradient=estimate.gradient * (d - 1) / d)

        return super().step(state, weaker, step_size, noise)


class NoiseOfOneSign(Microcanonical):
    """Injected noise that prefers some directions."""

    def step(self, state, evaluate, step_size, noise):
        return super().step(state, evaluate, step_size, jnp.abs(noise))


@pytest.mark.parametrize("kind", [CanonicalForce, NoiseOfOneSign])
def test_the_formulas_of_the_paper_kill_other_microcanonical_forces(kind):
    """The unmutated control is in test_steps.py."""
    assert 1e-2 < microcanonical_error(lambda bound: mutate(bound, "dynamics", kind)) < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CanonicalForce, NoiseOfOneSign])
def test_quadrature_kills_other_microcanonical_forces(kind):
    right = microcanonical()
    mutant = cast(right, kind)
    assert min(orders(right).values()) > 2.8 > 2.3 > min(orders(mutant).values())


@pytest.mark.parametrize("name", ["determinantal", "poisson-disk"])
def test_inclusion_probabilities_kill_the_weights_of_uniform_draws(name):
    """Diversified batches as in the original papers, which weight all rows alike."""
    selection = diverse_selection(name)
    mutant = dataclasses.replace(selection, inverse=jnp.full_like(selection.inverse, 5 / 3))
    z, mutants_z = (weights_z(of) for of in (selection, mutant))
    assert z < KILLED < mutants_z < np.inf


# Bounds of exact accept steps.


class FirstTurningPointForgotten(Bernoulli):
    def turning_points(self, order, y):
        return super().turning_points(order, y)[1:]


class LastTurningPointForgotten(BernoulliProbit):
    def turning_points(self, order, y):
        return super().turning_points(order, y)[:-1]


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("kind", [FirstTurningPointForgotten, LastTurningPointForgotten])
def test_a_grid_kills_a_forgotten_turning_point(kind, order):
    right, wrong = kind.__base__(), kind()
    assert supremum_ratios(right, order, 1.0).min() > 1 - 1e-12
    assert supremum_ratios(wrong, order, 1.0).min() < 0.99


class HalfTheBound(ModelRemainders):
    def constants(self, rows):
        return super().constants(rows) / 2


@pytest.mark.parametrize("order", [1, 2, 3])
def test_changes_of_rows_kill_half_the_bound(order):
    right = remainders_of("poisson", order)
    wrong = cast(right, HalfTheBound)
    largest = lambda of: change_ratios(of, regression("poisson").data)[0].max()
    assert largest(right) <= 1 < largest(wrong) < np.inf


@pytest.mark.parametrize("order", [1, 2, 3])
def test_suprema_kill_a_growth_of_one_order_less(order):
    one_less = lambda order, here, there: growth(order - 1, here, there)
    right, wrong = growth_ratios(order)[0], growth_ratios(order, one_less)[0]
    assert right.min() > 1 - 1e-6 > wrong.min()
