"""The recipe: its diffusions leave exp(−H) invariant.

The direct forms of the dynamics of Table 1 take the same steps as their recipes.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import table_1
import tallmc
from problems import logistic
from tallmc.contrib.recipe import Recipe
from tallmc.dynamics import (
    SGHMC,
    Langevin,
    MatrixFriction,
    NoseHoover,
    RiemannianHamiltonian,
    RiemannianLangevin,
    metric,
)

STEP = 0.3
FRICTION = 1.7
FRICTION_MATRIX = np.array([[2.0, 0.7], [0.7, 1.1]])


def bent_metric(params):
    """A dense metric that changes with every parameter."""
    a, b = params["beta"]
    return jnp.array([[2 + a**2, 0.5 * jnp.sin(b)], [0.5 * jnp.sin(b), 1 + b**2]])


def inverse_root(posterior):
    return functools.partial(metric.inverse_root, metric.prepare_metric(bent_metric, posterior))


RECIPES = {
    "sgld": lambda posterior: table_1.sgld_recipe(2),
    "sgrld": lambda posterior: table_1.sgrld_recipe(2, inverse_root(posterior)),
    "sghmc": lambda posterior: table_1.sghmc_recipe(2, FRICTION),
    "sghmc-matrix": lambda posterior: table_1.sghmc_recipe(2, jnp.asarray(FRICTION_MATRIX)),
    "sgrhmc": lambda posterior: table_1.sgrhmc_recipe(2, inverse_root(posterior), FRICTION),
    "sgnht": lambda posterior: table_1.sgnht_recipe(2, FRICTION),
    "own": lambda posterior: Recipe(
        diffusion=lambda zeta: jnp.diag(jnp.array([1 + zeta[1] ** 2, 0.0, 2 + jnp.cos(zeta[0])])),
        curl=lambda zeta: jnp.array(
            [[0, zeta[2], 1.0], [-zeta[2], 0, jnp.sin(zeta[0])], [-1.0, -jnp.sin(zeta[0]), 0]]
        ),
        energy=lambda zeta: zeta[2] ** 2 / 2 + 0.1 * zeta[2] * zeta[0],
        auxiliary=1,
    ),
}
DIRECT = {
    "sgld": Langevin(),
    "sgrld": RiemannianLangevin(bent_metric),
    "sghmc": SGHMC(FRICTION),
    "sghmc-matrix": MatrixFriction(FRICTION_MATRIX),
    "sgrhmc": RiemannianHamiltonian(bent_metric, FRICTION),
    "sgnht": NoseHoover(FRICTION),
}


@eqx.filter_jit
def fokker_planck_residual(dynamics, posterior, zeta):
    """½ [−∇·(bπ) + Σ ∂_i∂_j (D_ij π)]/π with π = exp(−H).

    It is zero if the diffusion leaves π invariant.
    """
    model = posterior.model
    f = lambda at: model.prior_potential(at) + jnp.sum(model.row_potentials(at, posterior.data))
    H = lambda at: f(at[:2]) + dynamics.energy(at)

    def drift(at):
        return dynamics.gamma(at) - (dynamics.diffusion(at) + dynamics.curl(at)) @ jax.grad(H)(at)

    weight = lambda at: jnp.exp(H(zeta) - H(at))
    flow = jnp.trace(jax.jacfwd(lambda at: drift(at) * weight(at))(zeta))
    second = jax.jacfwd(jax.jacfwd(lambda at: dynamics.diffusion(at) * weight(at)))(zeta)
    spread = jnp.einsum("ijij->", second)
    return 0.5 * (spread - flow)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_leaves_its_law_invariant_by_the_fokker_planck_equation(name):
    posterior = logistic()
    dynamics = RECIPES[name](posterior).prepare(posterior)
    for seed in range(5):
        zeta = jnp.asarray(np.random.default_rng(seed).normal(size=2 + dynamics.auxiliary))
        assert abs(fokker_planck_residual(dynamics, posterior, zeta)) < 1e-10


def never_evaluated(position, transition):
    """The gradient for `init` of dynamics that do not evaluate it at the start."""
    raise AssertionError


@pytest.mark.parametrize("name", DIRECT)
def test_direct_form_takes_the_same_steps_as_the_recipe(name):
    posterior = logistic()
    bound = tallmc.methods.sgld(STEP, batch_size=3).prepare(posterior).kernel
    kernel, rows = bound.kernel, bound.rows
    recipe = RECIPES[name](posterior).prepare(posterior)
    direct = DIRECT[name].prepare(posterior)
    rng = np.random.default_rng(0)
    state = direct.init(jax.random.key(0), jnp.array([0.4, -0.7]), never_evaluated)
    parts = jax.tree.leaves(state)
    in_recipe = recipe.init(jax.random.key(0), state.position, never_evaluated)
    auxiliary = [jnp.atleast_1d(part) for part in parts[1:] or [jnp.zeros(0)]]
    in_recipe = type(in_recipe)(state.position, jnp.concatenate(auxiliary))
    drawn = jax.tree.map(np.asarray, kernel.draw(jax.random.key(0), 20))

    @jax.jit
    def both(state, in_recipe, drawn, noise, whole):
        batch = kernel.gather(drawn, rows).selection
        evaluate = lambda at, to: kernel.estimate(at, batch, rows)
        step = jnp.asarray(STEP / 10)
        stepped = direct.step(state, evaluate, step, noise)
        return stepped.state, recipe.step(in_recipe, evaluate, step, whole).state

    for t in range(20):
        noise = rng.normal(size=2)
        zeta = jnp.concatenate([in_recipe.position, in_recipe.auxiliary])
        root = np.asarray(_direct_root(name, posterior, state.position))
        # The recipe uses the symmetric square root of D. The noise is rotated accordingly.
        first = 0 if name in ("sgld", "sgrld") else 2
        values, axes = np.linalg.eigh(np.asarray(recipe.diffusion(zeta)))
        inverse = axes @ np.diag([0 if v < 1e-12 else v**-0.5 for v in values]) @ axes.T
        whole = inverse[:, first : first + 2] @ root @ noise
        of_step = jax.tree.map(lambda leaf, t=t: leaf[t], drawn)
        state, in_recipe = both(state, in_recipe, of_step, noise, whole)
        flat = jnp.concatenate([jnp.atleast_1d(part) for part in jax.tree.leaves(state)])
        zeta = jnp.concatenate([in_recipe.position, in_recipe.auxiliary])
        np.testing.assert_allclose(zeta, flat, rtol=1e-10, atol=1e-12)
    assert np.abs(np.asarray(state.position) - [0.4, -0.7]).min() > 0.01


def _direct_root(name, posterior, position):
    """The factor of the noise in the direct form, without √ε."""
    if name in ("sgrld", "sgrhmc"):
        return inverse_root(posterior)(position) * (np.sqrt(FRICTION) if name == "sgrhmc" else 1)
    if name == "sghmc-matrix":
        values, axes = np.linalg.eigh(FRICTION_MATRIX)
        return axes @ np.diag(np.sqrt(values)) @ axes.T
    return np.eye(2) * (1 if name == "sgld" else np.sqrt(FRICTION))


@pytest.mark.smoke
def test_sign_of_gamma_as_printed_is_killed_by_the_fokker_planck_equation():
    """nemeth-2021 has −Γ in eq. 11 and +Γ in eq. 10."""
    posterior = logistic()

    class Printed(type(RECIPES["sgrld"](posterior).prepare(posterior))):
        def gamma(self, zeta):
            return -super().gamma(zeta)

    right = RECIPES["sgrld"](posterior).prepare(posterior)
    wrong = Printed(right.diffusion, right.curl, right.energy, right.auxiliary)
    zeta = jnp.array([0.4, -0.7])
    assert abs(fokker_planck_residual(right, posterior, zeta)) < 1e-10
    assert abs(fokker_planck_residual(wrong, posterior, zeta)) > 1e-3


def test_thermostat_gets_its_minus_one_from_gamma():
    recipe = table_1.sgnht_recipe(2, FRICTION).prepare(logistic())
    gamma = recipe.gamma(jnp.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    np.testing.assert_allclose(gamma, [0, 0, 0, 0, -1], atol=1e-15)


@pytest.mark.smoke
def test_recipe_goes_through_the_driver_like_any_dynamics():
    """Langevin dynamics as a recipe has the same noise, and so the same draws."""
    settings = {"chains": 2, "n_draws": 100, "burn_in": 5, "seed": 3}
    recipe = tallmc.Method(dynamics=table_1.sgld_recipe(2), batch_size=3, step_size=0.05)
    ours = tallmc.sample(logistic(), recipe, **settings)
    direct = tallmc.sample(logistic(), tallmc.methods.sgld(0.05, batch_size=3), **settings)
    np.testing.assert_allclose(ours.positions, direct.positions, rtol=1e-9)
