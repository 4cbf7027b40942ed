"""Local SGLD: groups of which a step moves those of its rows only."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest
from local_law import MixedModel, Rules, affine_step, batches, stationary_law

import tallmc
from problems import linear
from tallmc._core.random import derived_keys, key_of, standard_normal
from tallmc._engine.kernel import Gathered, NewChain
from tallmc._engine.run import Run, chain_keys
from tallmc._rows.law import Batch
from tallmc.contrib.groups import NO_ROW, Local, NormalGroups, touched_groups

STEP, SIZE = 0.05, 2


def model():
    rng = np.random.default_rng(3)
    groups = np.array([0, 0, 0, 1, 2, 2])
    x = rng.normal(size=6)
    return MixedModel(x, x + np.array([1.0, -1.0, 0.5])[groups] + rng.normal(size=6), groups)


def posterior(m, exact_totals=True, **options):
    law = NormalGroups(lambda shared: (shared["zmu"], m.effect_variance**0.5))
    density = law if exact_totals else law.log_density
    return tallmc.contrib.groups.LocalPosterior(
        lambda shared, local, row: stats.norm.logpdf(
            row["y"], row["x"] * shared["beta"] + local["effect"], m.noise_variance**0.5
        ),
        lambda shared: sum(
            stats.norm.logpdf(shared[name], 0.0, m.prior_variance**0.5) for name in ("beta", "zmu")
        ),
        {"x": m.x, "y": m.y},
        {"beta": 0.3, "zmu": -0.2},
        {"effect": Local(m.groups, np.array([0.5, -0.4, 0.1]), density)},
        **options,
    )


WEIGHTS = [None, np.array([1.0, 2.0, 2.0, 1.0, 1.5, 2.0])]


def probabilities(weights):
    return np.full(6, 1 / 6) if weights is None else weights / weights.sum()


@pytest.mark.parametrize("exact_totals", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_batch_makes_the_step_of_the_formulas(weights, exact_totals):
    """All batches of two rows; noise is known, because the key is."""
    m, p = model(), probabilities(weights)
    post = posterior(m, exact_totals)
    kernel = (
        tallmc.contrib.groups.local_sgld(STEP, SIZE, weights=weights).prepare(post).kernel.kernel
    )
    start = np.asarray(post.init)
    key = key_of(jnp.array([3, 4], jnp.uint32))
    step = jax.jit(lambda rows, w: _step(kernel, post, rows, w, key))
    for rows, _ in batches(m, p, SIZE):
        moved = np.asarray(step(jnp.array(rows), 1 / (SIZE * p[list(rows)])))
        rules = Rules(exact_totals=exact_totals)
        A, b, variances = affine_step(m, rows, p, STEP, np.ones(m.dim), rules)
        noise = np.sqrt(np.diag(variances)) * _known_noise(key, rows, m)
        np.testing.assert_allclose(moved, A @ start + b + noise, atol=1e-12)


def _step(kernel, post, rows, weights, key):
    carried = kernel.start_memory(post.init[None], post.rows)
    carried = jax.tree.map(lambda leaf: leaf[0], carried)
    state = kernel.init(NewChain(key, post.init, carried, None), post.rows)
    batch = Batch(post.rows.take(rows), weights)
    return kernel.step(state, Gathered(batch, key), jnp.int32(0), post.rows).state.position


def _known_noise(key, rows, m):
    """The noise of the step: that of the shared parameters, and one per slot."""
    shared_key, group_key = derived_keys(key, 2)
    shared = np.asarray(standard_normal(shared_key, (2,), jnp.float64))
    slots = np.asarray(standard_normal(group_key, (len(rows),), jnp.float64))
    found = np.zeros(m.dim)
    found[0], found[-1] = shared
    for slot, row in enumerate(rows):  # the last row of a group has its slot
        found[1 + m.groups[row]] = slots[slot]
    return found


def test_stationary_law_tends_to_the_posterior():
    """With every choice right, the exact law at ε has a bias of order ε."""
    m, p = model(), probabilities(None)
    mean, covariance = m.posterior()
    for exact_totals in (True, False):
        errors = []
        for step_size in (4e-3, 2e-3):
            found = stationary_law(m, p, SIZE, step_size, rules=Rules(exact_totals=exact_totals))
            np.testing.assert_allclose(found[0], mean, atol=0.03)
            errors.append(np.abs(found[1] - covariance).max())
        assert errors[0] < 0.05
        assert 1.8 < errors[0] / errors[1] < 2.2


@pytest.mark.smoke
@pytest.mark.parametrize(
    "rules",
    [
        Rules(factor=False),
        Rules(prior_scale=3.0),
        Rules(add_duplicates=False),
        Rules(move_all=True),
    ],
)
def test_mistakes_change_the_limit(rules):
    """The mutants: each has another law as ε → 0."""
    m, p = model(), probabilities(None)
    mean, covariance = m.posterior()
    found = stationary_law(m, p, SIZE, 1e-3, rules=rules)
    difference = max(
        np.abs(found[0] - mean).max() / np.sqrt(np.diag(covariance)).min(),
        np.abs(np.diag(found[1]) / np.diag(covariance) - 1).max(),
    )
    assert difference > 0.1


@pytest.mark.parametrize("exact_totals", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_chains_have_the_stationary_law(weights, exact_totals):
    m, p = model(), probabilities(weights)
    method = tallmc.contrib.groups.local_sgld(STEP, SIZE, weights=weights)
    draws = tallmc.sample(
        posterior(m, exact_totals), method, chains=64, n_draws=400, thin=5, burn_in=400
    )
    mean, covariance = stationary_law(m, p, SIZE, STEP, rules=Rules(exact_totals=exact_totals))
    check_law(draws.positions, mean, covariance)


def check_law(positions, mean, covariance):
    """Means and second moments, with errors from the chains."""
    centred = positions - mean
    first = centred.mean(axis=1)
    second = np.einsum("cdi,cdj->cij", centred, centred) / positions.shape[1]
    for found, exact in ((first, 0.0), (second, covariance)):
        error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
        assert (np.abs(found.mean(axis=0) - exact) / error).max() < 4.6


def test_dense_and_local_methods_agree_with_the_posterior():
    """The same posterior: SGLD on all parameters, and local SGLD, at small steps."""
    m = model()
    post = posterior(m)
    exact_mean, exact_covariance = m.posterior()
    dense = tallmc.sample(
        post, tallmc.methods.ula(0.02), chains=32, n_draws=400, thin=25, burn_in=2000
    )
    few = tallmc.contrib.groups.local_sgld(0.02, SIZE)
    local = tallmc.sample(post, few, chains=32, n_draws=400, thin=25, burn_in=4000)
    for draws in (dense, local):
        assert draws.layout.names == ("beta", "effect", "zmu")
        means = draws.positions.mean(axis=1)
        error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
        bias = np.abs(means.mean(axis=0) - exact_mean)
        assert (bias < 4.6 * error + 0.02 * np.sqrt(np.diag(exact_covariance))).all()
    law = stationary_law(m, probabilities(None), SIZE, 0.02, rules=Rules(exact_totals=True))
    check_law(local.positions, *law)


def test_preconditioner_is_the_larger_of_curvature_and_squared_gradients():
    m = model()
    post = posterior(m)
    kernel = (
        tallmc.contrib.groups.local_sgld(0.1, 2, preconditioned=True).prepare(post).kernel.kernel
    )
    start = np.asarray(post.init)
    terms = [(m.row(i)[0], m.row(i)[0] @ start - m.row(i)[1]) for i in range(6)]
    terms += [(m.group(g), m.group(g) @ start) for g in range(3)]
    terms += [(m.shared(), m.shared() @ start)]
    hessian = sum(np.diag(H) for H, _ in terms)
    squares = sum(g**2 for _, g in terms)
    expected = 1 / np.maximum(hessian, squares)
    # φ's own prior has both parameters in one term, but the squares are by parameter.
    found = np.concatenate(
        [
            kernel.shared_metric[:1],
            kernel.groups["effect"].metric,
            kernel.shared_metric[1:],
        ]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_preconditioned_chains_have_the_stationary_law():
    m, p = model(), probabilities(None)
    method = tallmc.contrib.groups.local_sgld(0.3, SIZE, preconditioned=True)
    kernel = method.prepare(posterior(m)).kernel.kernel
    shared, groups = np.asarray(kernel.shared_metric), kernel.groups["effect"].metric
    metric = np.concatenate([shared[:1], groups, shared[1:]])
    draws = tallmc.sample(posterior(m), method, chains=64, n_draws=400, thin=5, burn_in=400)
    law = stationary_law(m, p, SIZE, 0.3, metric, Rules(exact_totals=True))
    check_law(draws.positions, *law)


def test_moments_of_groups_are_averages_over_all_steps_after_burn_in():
    method = tallmc.contrib.groups.local_sgld(STEP, SIZE)
    draws = tallmc.sample(posterior(model()), method, chains=3, n_draws=700, thin=1, burn_in=55)
    effects = draws.values["effect"]
    moments = draws.group_moments["effect"]
    np.testing.assert_allclose(moments.mean, effects.mean(axis=(0, 1)), rtol=1e-10)
    np.testing.assert_allclose(moments.sd, effects.std(axis=(0, 1)), rtol=1e-10)
    error = effects.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(moments.mean_error, error, rtol=1e-8)  # a small difference


def test_kept_groups_change_no_draw():
    m, method = model(), tallmc.contrib.groups.local_sgld(STEP, SIZE)
    options = {"chains": 2, "n_draws": 50, "burn_in": 10, "seed": 4}
    every = tallmc.sample(posterior(m), method, **options)
    some = tallmc.sample(posterior(m, keep={"effect": [2]}), method, **options)
    assert some.layout.names == ("beta", "effect", "zmu") and some.positions.shape[2] == 3
    np.testing.assert_array_equal(some.values["effect"][..., 0], every.values["effect"][..., 2])
    np.testing.assert_array_equal(some.values["beta"], every.values["beta"])
    np.testing.assert_array_equal(some.group_moments["effect"].mean.shape, (3,))
    assert some.quantities.entry_names()[1] == "effect[2]"
    none = tallmc.sample(posterior(m, keep={}), method, **options)
    assert none.layout.names == ("beta", "zmu")
    np.testing.assert_array_equal(none.values["zmu"], every.values["zmu"])


def test_totals_stay_those_of_the_groups():
    """After many steps, the kept sums are the sums of the groups."""
    post = posterior(model())
    prepared = tallmc.contrib.groups.local_sgld(STEP, SIZE).prepare(post)
    start = jnp.broadcast_to(post.init, (2, post.dim))
    run = Run(prepared.kernel, chain_keys(0, 2), start, 0, 1, 3000)
    run.compile()
    run.run_to(3000)
    table = run.state.chains.carried.tables["effect"]
    values = np.asarray(table.entries)[:, :, 0]
    first, second = table.totals.rounded()
    np.testing.assert_allclose(first, values.sum(axis=1), atol=1e-10)
    np.testing.assert_allclose(second, (values**2).sum(axis=1), atol=1e-10)
    assert (np.asarray(table.scratch) == NO_ROW).all()


def test_rows_of_one_group_share_a_slot():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 30, 40)
    touched, scratch = touched_groups(jnp.array(numbers), jnp.full(30, NO_ROW))
    slots, of_rows = np.asarray(touched.slots), np.asarray(touched.of_rows)
    np.testing.assert_array_equal(slots[of_rows], numbers)
    np.testing.assert_array_equal(np.sort(slots[slots < 30]), np.unique(numbers))
    assert (np.asarray(scratch) == NO_ROW).all()


@pytest.mark.smoke
def test_resume_is_bitwise(tmp_path):
    post, method = posterior(model()), tallmc.contrib.groups.local_sgld(STEP, SIZE)
    options = {"chains": 2, "burn_in": 5, "seed": 1}
    whole = tallmc.sample(post, method, n_draws=60, **options)
    tallmc.sample(post, method, n_draws=25, store=tmp_path / "run", **options)
    resumed = tallmc.resume(tmp_path / "run", post, n_draws=60)
    np.testing.assert_array_equal(resumed.positions, whole.positions)
    moments = whole.group_moments["effect"], resumed.group_moments["effect"]
    np.testing.assert_allclose(moments[0].mean, moments[1].mean, rtol=1e-12)


def test_a_group_that_is_not_kept_can_fail_a_chain():
    m = model()
    post = posterior(m, keep={})
    huge = eqx.tree_at(lambda p: p.group_init["effect"], post, jnp.array([0.5, jnp.inf, 0.0]))
    with pytest.warns(tallmc.SamplingWarning):
        draws = tallmc.sample(
            huge, tallmc.contrib.groups.local_sgld(STEP, SIZE), chains=2, n_draws=20, burn_in=0
        )
    assert not draws.ok.any() and draws.group_moments == {}


def test_the_verdict_leaves_the_bias_unknown():
    draws = tallmc.sample(
        posterior(model()),
        tallmc.contrib.groups.local_sgld(STEP, SIZE),
        chains=4,
        n_draws=800,
        thin=4,
        measure_bias=True,
    )
    assert draws.account.bias is None and "cannot measure" in draws.account.unmeasured


def bad(**changes):
    groups = {
        "groups": changes.pop("numbers", [0, 0, 1]),
        "init": changes.pop("start", np.zeros(2)),
        "log_prior": changes.pop("prior", lambda shared, z: -0.5 * z**2),
    }
    given = {
        "log_likelihood": lambda shared, local, y: -0.5 * (y - local["g"]) ** 2,
        "log_prior": lambda shared: 0.0 * shared["a"],
        "data": np.zeros(3),
        "init": {"a": 0.0},
        "groups": {"g": Local(**groups)},
    }
    return tallmc.contrib.groups.LocalPosterior(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"numbers": [0, 0, 0]}, "no row of group 1"),
        ({"numbers": [0, 0]}, "one per row"),
        ({"numbers": [0, 0.5, 1]}, "integers"),
        ({"numbers": [0, 1, 2]}, "an entry per group"),
        ({"start": np.zeros(())}, "an entry per group"),
        ({"prior": 3.0}, "a function"),
        ({"prior": lambda shared, z: jnp.zeros(2)}, "scalar"),
        ({"log_likelihood": lambda shared, local, y: jnp.zeros(2)}, "scalar"),
        ({"log_likelihood": 1.0}, "be a function"),
        ({"init": {"g": 0.0}}, "other names"),
        ({"init": 0.0}, "dict"),
        ({"groups": {}}, "Local per kind"),
        ({"keep": {"h": [0]}}, "name kinds"),
        ({"keep": {"g": [2]}}, "from 0 to 1"),
        ({"keep": "some"}, '"all"'),
    ],
)
def test_bad_posteriors_are_refused(changes, said):
    with pytest.raises(tallmc.InvalidInput, match=said):
        bad(**changes)


def test_bad_methods_are_refused():
    with pytest.raises(tallmc.InvalidInput, match="parameters of groups"):
        tallmc.contrib.groups.local_sgld(0.1, 2).prepare(linear())
    with pytest.raises(tallmc.InvalidInput, match="one number per row"):
        tallmc.contrib.groups.local_sgld(0.1, 2, weights=[1.0]).prepare(bad())
    with pytest.raises(tallmc.InvalidInput, match="row"):
        tallmc.contrib.groups.local_sgld(0.1, 2, weights=[1.0, 0.0, 1.0]).prepare(bad())
    with pytest.raises(tallmc.InvalidInput, match="size"):
        tallmc.contrib.groups.local_sgld(0.1, 0)
    with pytest.raises(tallmc.InvalidInput, match="True or False"):
        tallmc.contrib.groups.local_sgld(0.1, 2, preconditioned="yes")


def test_draws_that_do_not_fit_in_memory_are_refused():
    with pytest.raises(tallmc.InvalidInput, match=r"fit in memory.*keeping"):
        tallmc.sample(
            posterior(model()),
            tallmc.contrib.groups.local_sgld(STEP, 2),
            chains=1000,
            n_draws=10**9,
        )


def test_densities_need_all_groups():
    some = bad(keep={"g": [0]})
    with pytest.raises(tallmc.InvalidInput, match="keep all groups"):
        some.potential(some.init)
    whole = some.keeping("all")
    assert whole.dim == 3 and np.isfinite(float(whole.potential(whole.init)))
