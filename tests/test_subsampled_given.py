"""Exact accept steps with a bound of the user's: the mean and log sd of Gaussian rows."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from experiments.li2021.fig6 import uniform_gaussian_bound
from kept_programs import run_once
from problems import slow_among
from tallmc.methods.firefly import Tangent, Taylor, gaussian_bound
from tallmc.methods.subsampled.thinning import poisson_decision
from test_firefly import LIMIT, quadrature, run_z
from test_firefly_taylor import gaussian_posterior, log_likelihood, taylor_expansion
from test_subsampled import PAIRS, acceptance_z, imbalance, moments

THREE = np.array([0.3, 0.5, 0.6])
MANY = np.random.default_rng(2).normal(1.0, 1.5, size=40)


@functools.cache
def uniform_bound(low: float, high: float) -> Taylor:
    return uniform_gaussian_bound(low, high)


PER_ROW = gaussian_bound()


def bound_of(name: str, rows: np.ndarray) -> Taylor:
    return uniform_bound(rows.min(), rows.max()) if name == "uniform" else PER_ROW


@functools.cache
def prepared(name: str):
    method = tallmc.methods.subsampled_mh(bound=bound_of(name, MANY))
    return method.prepare(gaussian_posterior(MANY)).kernel


@functools.cache
def left_to_chance(name, **settings):
    """Three rows, none of which is certain."""
    posterior = gaussian_posterior(THREE)
    method = tallmc.methods.subsampled.SubsampledMH(
        **{"step_size": 1.0, **settings}, bound=bound_of(name, THREE)
    )
    bound = method.prepare(posterior).kernel
    surrogate, rule = bound.kernel.surrogate, bound.kernel.decision.rule
    constants = np.asarray(surrogate.remainders.constants(jnp.asarray(THREE)))
    decision, certain = poisson_decision(posterior, constants, rule, 1e-6, posterior.dtype)
    assert not len(certain)
    where = lambda bound: (bound.kernel.decision, bound.kernel.surrogate.certain)
    return eqx.tree_at(where, bound, (decision, certain))


@run_once
def _computed(surrogate, moves, here, there, rows):
    """Remainders, those of the expansion, changes of rows, and their caps."""
    remainders, push = surrogate.remainders, surrogate.metric.push
    centre = remainders.expansion.anchor

    @jax.vmap
    def by_expansion(move):
        position = centre + move
        of_row = lambda x: taylor_expansion(centre, position, x) - log_likelihood(position, x)
        return jax.vmap(of_row)(rows)

    return {
        "values": remainders.values(moves, rows),
        "by expansion": by_expansion(moves),
        "change": remainders.values(push(there), rows) - remainders.values(push(here), rows),
        "caps": remainders.constants(rows) * jax.vmap(remainders.growth)(here, there)[:, None],
    }


@functools.cache
def computed(name):
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-3, np.log10(5), size=(2, 1000, 1))
    here, there = rng.normal(size=(2, 1000, 2)) * sizes
    arguments = np.array([[0.3, -0.2], [-0.4, 0.5]]), here, there, MANY
    surrogate = prepared(name).kernel.surrogate
    found = _computed(surrogate, *(jnp.asarray(part) for part in arguments))
    return jax.tree.map(np.asarray, found)


@pytest.mark.parametrize("name", ["per row", "uniform"])
def test_remainders_are_those_of_the_expansion(name):
    found = computed(name)
    np.testing.assert_allclose(found["values"], found["by expansion"], atol=1e-12)


@pytest.mark.parametrize("name", ["per row", "uniform"])
def test_no_row_changes_by_more_than_its_bound(name):
    """From 10⁻³ to 5 standard deviations away from the anchor."""
    found = computed(name)
    assert (np.abs(found["change"]) <= found["caps"] * (1 + 1e-12)).all()


@pytest.mark.slow
def test_several_components_share_a_table():
    """M is the smallest factor of c_iᵀφ̄ for which the bound holds for all c_i ≥ 0."""
    kernel = prepared("per row").kernel
    remainders, anchor = kernel.surrogate.remainders, kernel.surrogate.anchor
    here, there = jnp.asarray([0.3, 1.0]), jnp.asarray([-1.0, 0.2])
    positions = anchor + kernel.surrogate.metric.push(jnp.stack([here, there]))
    grown = sum(gaussian_bound().growth(tuple(anchor), tuple(at)) for at in positions)
    slack = remainders.growth(here, there) * remainders.typical - grown
    assert slack.min() >= -1e-12
    np.testing.assert_allclose(slack.min(), 0, atol=1e-12)


SETTINGS = {
    "independent": ("per row", {}),
    "langevin": ("per row", {"proposal": "langevin", "step_size": 0.5}),
    "uniform": ("uniform", {"step_size": 0.2}),
    "tuna": ("per row", {"rule": "tuna", "chi": 0.3}),
}


@pytest.mark.parametrize("name", slow_among(["langevin", "tuna"], SETTINGS))
def test_detailed_balance_holds_over_all_numbers_of_kept_rows(name):
    bound_name, settings = SETTINGS[name]
    bound = left_to_chance(bound_name, **settings)
    for pair in PAIRS:
        assert imbalance(bound, bound.kernel, *map(np.array, pair)) < 1e-11


@pytest.mark.slow
def test_the_compiled_decision_has_the_enumerated_chance():
    bound = left_to_chance("uniform")
    assert max(acceptance_z(bound, bound.kernel)) < LIMIT


def test_enumeration_kills_a_forgotten_curvature():
    """Without the quadratic terms of the surrogate the flows differ."""
    bound = left_to_chance("per row")
    where = lambda kernel: kernel.surrogate.quadratic
    wrong = eqx.tree_at(where, bound.kernel, replace_fn=lambda matrix: matrix - jnp.eye(2))
    assert imbalance(bound, wrong, *map(np.array, PAIRS[1])) > 1e-3


@functools.cache
def truth() -> np.ndarray:
    grid, weight = quadrature(gaussian_posterior(MANY), np.array([1.0, 0.4]), np.eye(2), 3, 601)
    return weight @ moments(grid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("per row", {"step_size": 0.8}),
        ("per row", {"step_size": 0.6, "proposal": "langevin"}),
        ("per row", {"step_size": 1.0, "rule": "tuna", "chi": 0.05}),
        ("uniform", {"step_size": 0.5}),
    ],
)
def test_draws_have_the_moments_of_the_posterior(name, settings):
    method = tallmc.methods.subsampled.SubsampledMH(**settings, bound=bound_of(name, MANY))
    posterior = gaussian_posterior(MANY)
    draws = tallmc.sample(posterior, method, chains=64, n_draws=2000, burn_in=200, seed=1)
    assert draws.account.exact
    assert run_z(draws, truth(), moments) < LIMIT


def shrunken_between(inner: float) -> Taylor:
    """The bound of Gaussian rows, but a twentieth of it less than `inner` from the anchor."""
    right = gaussian_bound()

    def growth(anchor, params):
        distance = jnp.hypot(params[0] - anchor[0], params[1] - anchor[1])
        return jnp.where(distance < inner, 0.05, 1.0) * right.growth(anchor, params)

    return Taylor(right.constants, growth, is_proved=True)


def test_rows_above_a_wrong_bound_are_counted_and_end_the_claim():
    """The wrong part is inside the distance at which the bound is checked."""
    method = tallmc.methods.subsampled_mh(bound=shrunken_between(0.35))
    assert method.exact
    with pytest.warns(tallmc.SamplingWarning, match="changed by more than their caps"):
        draws = tallmc.sample(gaussian_posterior(MANY), method, chains=8, n_draws=100)
    assert not draws.account.exact
    assert "the draws are not exact" in draws.report.doubts[0]


@pytest.mark.slow
def test_an_unproved_bound_makes_no_claim():
    right = gaussian_bound()
    unproved = Taylor(right.constants, right.growth)
    assert tallmc.methods.subsampled_mh(bound=right).exact
    assert not tallmc.methods.subsampled_mh(bound=unproved).exact
    draws = tallmc.sample(
        gaussian_posterior(MANY),
        tallmc.methods.subsampled_mh(bound=unproved),
        chains=8,
        n_draws=100,
    )
    assert not draws.account.exact


def with_own_bound():
    """A posterior, and the bound from third derivatives of the logistic function below 0.0963."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2))
    y = (rng.random(500) < 0.4).astype(float)
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=10.0)

    def growth(anchor, params):
        return jnp.sum((params["beta"] - anchor["beta"]) ** 2)[None] ** 1.5

    bound = Taylor(
        lambda anchor, row: 0.0963 / 6 * jnp.linalg.norm(row.x)[None] ** 3, growth, is_proved=True
    )
    return posterior, bound


def test_a_bound_of_the_user_takes_the_place_of_the_models():
    posterior, bound = with_own_bound()
    kernel = tallmc.methods.subsampled_mh(bound=bound).prepare(posterior).kernel.kernel
    constants = run_once(kernel.surrogate.remainders.constants)(posterior.data)
    lengths = np.linalg.norm(np.asarray(posterior.data.x), axis=1)
    ratios = np.asarray(constants) / lengths**3
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)
    assert ratios[0] > 0


@pytest.mark.slow
def test_draws_with_a_bound_of_the_user_are_those_with_the_models():
    posterior, bound = with_own_bound()
    by_user, by_model = (
        tallmc.sample(
            posterior, tallmc.methods.subsampled_mh(bound=of), chains=16, n_draws=400, seed=1
        )
        for of in (bound, None)
    )
    assert by_user.account.exact and by_model.account.exact
    means = [np.asarray(draws.positions).mean(axis=1) for draws in (by_user, by_model)]
    error = np.sqrt(sum(of.var(axis=0, ddof=1) / len(of) for of in means))
    assert (np.abs(means[0].mean(axis=0) - means[1].mean(axis=0)) < LIMIT * error).all()


NEGATIVE = Taylor(lambda anchor, x: -jnp.ones(1), lambda anchor, params: jnp.ones(1))
SHRINKING = Taylor(
    lambda anchor, x: jnp.ones(1), lambda anchor, params: (anchor[0] - params[0])[None]
)
TOO_SMALL = Taylor(
    gaussian_bound().constants, lambda anchor, params: 0.3 * gaussian_bound().growth(anchor, params)
)


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (NEGATIVE, r"finite and not negative.*row 0"),
        (SHRINKING, r"`growth` that is not negative"),
        (TOO_SMALL, r"bound every remainder.*more for row"),
        (
            Taylor(lambda anchor, x: jnp.ones(2), lambda anchor, params: jnp.ones(3)),
            r"same length.*shapes \(2,\) and \(3,\)",
        ),
    ],
)
def test_bad_bounds_are_refused(bound, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        tallmc.methods.subsampled_mh(bound=bound).prepare(gaussian_posterior(MANY))


def test_single_precision_is_refused():
    with jax.enable_x64(False):
        posterior = gaussian_posterior(dtype=np.float32)
        with pytest.raises(tallmc.InvalidInput, match="double precision for a Taylor bound"):
            tallmc.methods.subsampled_mh(bound=gaussian_bound()).prepare(posterior)


def test_bounds_of_another_kind_or_order_are_refused():
    with pytest.raises(tallmc.InvalidInput, match=r"bound must be Taylor.*Tangent\(\) does not"):
        tallmc.methods.subsampled_mh(bound=Tangent())
    with pytest.raises(tallmc.InvalidInput, match="order must be 2 with a bound"):
        tallmc.methods.subsampled_mh(order=3, bound=gaussian_bound())


@pytest.mark.slow
def test_rows_beyond_the_support_end_the_claim():
    """A likelihood that is NaN at some parameters, with a bound that is finite there."""
    posterior = tallmc.Posterior(
        log_likelihood=lambda mean, x: jnp.where(mean > 1.5, jnp.nan, -((x - mean) ** 2) / 2),
        log_prior=lambda mean: -(mean**2) / 2,
        data=np.array([0.5, 1.0, 1.5]),
        init=np.zeros(()),
    )
    bound = Taylor(lambda anchor, x: jnp.ones(1), lambda anchor, mean: jnp.ones(1), is_proved=True)
    with pytest.warns(tallmc.SamplingWarning, match="changed by more than their caps"):
        draws = tallmc.sample(
            posterior, tallmc.methods.subsampled_mh(bound=bound), chains=8, n_draws=100
        )
    assert not draws.account.exact
