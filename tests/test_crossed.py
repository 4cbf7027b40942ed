"""Many group effects beside their log sds: coordinates, anchor and chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import tallmc
from kept_programs import run_once
from problems import slow_after
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc._rows.law import Batch
from tallmc.diagnose import ess
from tallmc.dynamics import HMC
from tallmc.geometry import StandardEffects
from tallmc.gradient import Full
from tallmc.methods.automatic import effects, exact, method
from tallmc.subsample import AllRows

RNG = np.random.default_rng(3)


def crossed(n_rows, sizes, sds, seed=0):
    """A table with the columns y, number, x, a and b, and one with other levels of a."""
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, size, n_rows) for size in sizes]
    x = rng.normal(size=n_rows)
    z = 0.5 * x - 0.3
    for code, size, sd in zip(codes, sizes, sds, strict=True):
        z = z + sd * rng.normal(size=size)[code]
    y = (rng.logistic(size=n_rows) < z).astype(int)
    other = (codes[0] + rng.integers(1, sizes[0], n_rows)) % sizes[0]
    table = {"y": y, "number": z + rng.normal(size=n_rows), "x": x, "a": codes[0], "b": codes[1]}
    return {**table, "other": other}


def posterior_of(family, formula, table):
    model = RegressionModel(family=family, formula=formula, categorical=("a", "b", "other"))
    return regression_problem(table, model).posterior


CASES = {
    "slopes": ("bernoulli", "y ~ x + (1 + x | a) + (1 | b)"),
    "pairs": ("bernoulli", "y ~ 0 + (1 | a - other) + (1 | b)"),
    "normal": ("gaussian", "number ~ x + (0 + x | a) + (1 | b)"),
}


@pytest.mark.parametrize("case", slow_after(1, CASES))
def test_coordinates_have_their_gradient_volume_and_hessian(case, monkeypatch):
    monkeypatch.setattr(effects, "_SOLVED", 1e-13)
    posterior = posterior_of(*CASES[case], crossed(60, (5, 4), (1.0, 1.5)))
    model, rows, dim = posterior.model, posterior.rows.columns, posterior.dim
    terms = model.effect_terms()
    assert [term.n_groups for term in terms] == [5, 4]
    position = posterior.init + 0.1 * jnp.asarray(RNG.normal(size=dim))
    geometry = effects.geometry_at(posterior, position)
    mapping = geometry.prepare(posterior, None)

    @run_once
    def everything(model, rows, mapping, position, unit):
        batch = Batch(rows, jnp.ones(60))

        def potential(zeta):
            at = mapping.position(zeta)
            total = jnp.sum(model.row_potentials(at, rows)) + model.prior_potential(at)
            return total - mapping.log_volume(at)

        def twice(zeta):  # the derivatives of a gradient, and the gradient
            return (jax.grad(potential)(zeta),) * 2

        zeta = mapping.standardised(position)
        hessian, slope = jax.jacfwd(twice, has_aux=True)(zeta)
        pieces, both = model.potentials_and_gradient(position, batch)
        gradient = model.sum_remainders(0, position, position, batch)
        sums = jnp.concatenate([jnp.sum(pieces)[None], both])
        separate = jnp.sum(model.row_potentials(position, rows))
        separate = jnp.concatenate([separate[None], gradient])
        gradient += model.prior_gradient(position)
        return {
            "back": mapping.position(zeta),
            "volume": jnp.linalg.slogdet(jax.jacfwd(mapping.position)(zeta))[1],
            "log_volume": mapping.log_volume(position),
            "gradient": slope,
            "by_map": mapping.gradient(zeta, gradient),
            "pulled": mapping.pull_at(position, gradient),
            "hessian": hessian,
            "of_rows": model.block_hessian(position, rows, jnp.ones(60)),
            "products": model.hessian_products(position, unit, batch),
            "sums": sums,
            "separate": separate,
            "blocks": model.effect_hessians(position, batch),
            "push": jax.vmap(mapping.push)(unit),
            "pull": jax.vmap(mapping.pull)(unit),
            "solve": jax.vmap(mapping.solve)(unit),
            "placed": mapping.placed(mapping.coordinates(position)),
            "at_centre": mapping.coordinates(position),
            "moved": mapping.standardised(mapping.placed(2 * unit[0])) - zeta,
            "rotated": mapping.flow(unit[0], unit[1], jnp.asarray(0.5)),
            "force": mapping.force(unit[0], position, gradient),
        }

    found = everything(model, rows, mapping, position, jnp.eye(dim))
    found = {name: np.asarray(value) for name, value in found.items()} | {"unit": np.eye(dim)}
    close = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(found["back"], position, **close)
    np.testing.assert_allclose(found["log_volume"], found["volume"], **close)
    np.testing.assert_allclose(found["by_map"], found["gradient"], **close)
    np.testing.assert_allclose(found["products"], found["of_rows"], **close)
    np.testing.assert_allclose(found["sums"], found["separate"], **close)
    is_effect, blocks = np.zeros(dim, bool), []
    for term in terms:
        is_effect[term.effects] = True
        for first in range(term.start, term.effects.stop, term.n_columns):
            group = slice(first, first + term.n_columns)
            blocks.append(found["of_rows"][group, group].ravel())
            np.testing.assert_allclose(
                found["hessian"][group, group], np.eye(term.n_columns), **close
            )
    np.testing.assert_allclose(found["blocks"], np.concatenate(blocks), **close)
    c = found["pull"]  # row j is Cᵀe_j
    np.testing.assert_allclose(found["push"], c.T, **close)
    np.testing.assert_allclose(found["solve"], np.linalg.inv(c).T, rtol=1e-7, atol=1e-7)
    # With all modes the map is exact; away from the mode the curvature of log sds may be negative.
    whitened = c.T @ found["hessian"] @ c
    signs = np.sign(np.diag(whitened))
    np.testing.assert_allclose(whitened, np.diag(signs), atol=1e-7)
    assert (signs[is_effect] == 1).all() and np.sum(signs < 0) <= len(terms)
    monkeypatch.setattr(effects, "_MODES", 2)
    few = effects.geometry_at(posterior, position)
    distance = np.abs(np.log(geometry.curvatures))
    np.testing.assert_allclose(few.curvatures, geometry.curvatures[np.argsort(-distance)[:2]])
    np.testing.assert_allclose(few.modes.T @ few.modes, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(found["placed"], position, **close)
    np.testing.assert_allclose(found["at_centre"], 0, **close)
    sine, cosine = np.sin(0.5), np.cos(0.5)
    turned = [cosine * found["unit"][0] + sine * found["unit"][1]]
    turned.append(cosine * found["unit"][1] - sine * found["unit"][0])
    np.testing.assert_allclose(found["rotated"], turned, **close)
    rest = c.T @ found["gradient"] - found["unit"][0]
    np.testing.assert_allclose(found["force"], rest, **close)
    np.testing.assert_allclose(found["pulled"], c.T @ found["gradient"], **close)
    np.testing.assert_allclose(found["moved"], 2 * found["push"][0], **close)


GROUP = np.repeat(np.arange(3), (1, 4, 9))
VALUES = np.array([2.0, -0.6, 0.5])[GROUP] + RNG.normal(size=len(GROUP))


def one_factor():
    """Means of three groups with unit noise: given σ everything is normal."""
    table = {"number": VALUES, "a": GROUP}
    model = RegressionModel(
        family="gaussian",
        formula="number ~ (1 | a)",
        categorical=("a",),
        noise_variance=1.0,
        standardise=False,
    )
    return regression_problem(table, model).posterior


def test_chains_in_these_coordinates_have_the_exact_law():
    """One group has one row, so a density without the volume would be another."""
    posterior = one_factor()
    model = posterior.model
    found = effects.standard_effects(posterior)
    method_ = tallmc.Method(
        dynamics=HMC(4, jitter=0.5),
        gradient=Full(),
        subsample=AllRows(),
        geometry=found.geometry,
        step_size=0.5,
    )
    draws = tallmc.sample(
        posterior, method_, chains=64, n_draws=300, thin=4, burn_in=100, seed=1, progress=False
    )
    counts = np.bincount(GROUP)
    means = np.bincount(GROUP, VALUES) / counts
    prior = run_once(jax.vmap(model.prior_potential))
    logs = np.linspace(-9, 6, 2001)
    positions = np.zeros((len(logs), 5))
    positions[:, 4] = logs
    one = np.eye(5)[:1] + positions[:1]
    of_intercept = 0.5 / float((prior(one) - prior(positions[:1]))[0])
    # The prior of three effects at zero contributes 3 log σ.
    potential = np.asarray(prior(positions)) - 3 * logs
    shrunk = np.empty((len(logs), 4))
    for k, variance in enumerate(np.exp(2 * logs)):
        covariance = np.diag(1 / counts + variance) + of_intercept
        potential[k] += np.linalg.slogdet(covariance)[1] / 2
        solved = np.linalg.solve(covariance, means)
        potential[k] += means @ solved / 2
        shrunk[k] = [of_intercept * solved.sum(), *(variance * solved)]
    density = np.exp(potential.min() - potential)
    density /= integrate.trapezoid(density, logs)
    log_sds = draws.positions[..., 4]
    functions = {
        "log sd": (log_sds, logs),
        "square": (log_sds**2, logs**2),
        **{f"mean {k}": (draws.positions[..., k], shrunk[:, k]) for k in range(4)},
        "with the sd": (
            draws.positions[..., 1] * np.tanh(log_sds),
            shrunk[:, 1] * np.tanh(logs),
        ),
    }
    for name, (values, known) in functions.items():
        wanted = integrate.trapezoid(density * known, logs)
        of_chains = values.mean(axis=1)
        error = of_chains.std(ddof=1) / len(of_chains) ** 0.5
        assert abs(of_chains.mean() - wanted) < 4.6 * error, name
        assert error < 0.05


@pytest.mark.slow
def test_many_effects_are_sampled_on_all_rows_in_their_coordinates(monkeypatch):
    monkeypatch.setattr(method, "exact_plan", lambda *args: args)
    table = crossed(400, (40, 70), (0.8, 0.4))
    posterior = posterior_of("bernoulli", "y ~ x + (1 | a) + (1 | b)", table)
    _, anchor, geometry, _, why, *_ = tallmc.Automatic().prepare(posterior)
    assert isinstance(geometry, StandardEffects)
    assert why[0].startswith("110 group effects, standardised given their sds")
    mapping = geometry.prepare(posterior, None)
    _, step = effects._evaluated(posterior, mapping, anchor.position)
    assert np.linalg.norm(step) < 0.5, "the anchor is the mode in these coordinates"
    few = posterior_of("bernoulli", "y ~ x + (1 | a)", table)
    assert not method._has_many_effects(few)
    monkeypatch.setattr(method, "_MANY_ROWS_PER_EFFECT", 3)
    assert not method._has_many_effects(posterior)


def test_coordinates_follow_draws_where_chance_does_not_explain_them():
    posterior = one_factor()
    mapping = effects.standard_effects(posterior).geometry.prepare(posterior, None)
    whitened = np.random.default_rng(1).normal(size=(400, 5))
    whitened[:, 4] = 5 + 3 * whitened[:, 4]
    whitened[:, 0] *= 0.3
    draws = np.asarray(exact._placed(mapping, jnp.asarray(whitened))).reshape(8, 50, 5)
    found = exact._refitted(mapping, draws)
    there = np.asarray(mapping.coordinates(found.centre))
    np.testing.assert_allclose(there[:4], 0, atol=1e-9)
    np.testing.assert_allclose(there[4], whitened[:, 4].mean(), rtol=1e-9)
    np.testing.assert_array_equal(found.scale[1:4], 1)
    np.testing.assert_allclose(found.scale[[0, 4]], whitened[:, [0, 4]].std(axis=0), rtol=1e-9)


def test_jitter_is_checked():
    with pytest.raises(tallmc.InvalidInput, match="jitter"):
        HMC(3, jitter=1.5)


def test_nested_factors_have_the_posterior_of_columns_joined_before():
    table = crossed(60, (4, 3), (1.0, 1.0))
    table["ab"] = np.array([f"{a}:{b}" for a, b in zip(table["a"], table["b"], strict=True)])
    nested, joined = (
        posterior_of("bernoulli", formula, table)
        for formula in ("y ~ x + (1 + x | a/b)", "y ~ x + (1 + x | a) + (1 + x | ab)")
    )
    assert [term.n_groups for term in nested.model.effect_terms()] == [4, len(set(table["ab"]))]
    position = jnp.asarray(RNG.normal(size=nested.dim))
    one, other = (float(of.potential(position)) for of in (nested, joined))
    assert one == pytest.approx(other, rel=1e-12)
    assert "x|a:b_sigma" in nested.quantities.shapes


def test_a_difference_of_groups_is_one_effect_less_the_other():
    table = crossed(30, (4, 3), (1.0, 1.0))
    problem = regression_problem(
        table,
        RegressionModel(
            family="bernoulli", formula="y ~ 0 + (1 | a - other)", categorical=("a", "other")
        ),
    )
    posterior, rows = problem.posterior, problem.posterior.rows.columns
    by_hand = np.eye(4)[table["a"]] - np.eye(4)[table["other"]]
    matrix = posterior.model.regression().columns(rows).matrix()
    np.testing.assert_array_equal(matrix, by_hand)
    effects_ = RNG.normal(size=5)
    predicted = posterior.model.regression().predictors(jnp.asarray(effects_[:4]), rows)
    np.testing.assert_allclose(predicted, by_hand @ effects_[:4], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": 0}, r"columns a - other must differ in every row; got '0' twice in row"),
        (
            {"formula": "y ~ (1 | a - b - other)"},
            "after a bar: one, a/b, a:b, or a difference of two",
        ),
        ({"formula": "y ~ (1 | a - missing)"}, "missing"),
    ],
)
def test_bad_differences_are_refused(change, message):
    table = crossed(30, (4, 3), (1.0, 1.0))
    formula = change.get("formula", "y ~ (1 | a - other)")
    if "other" in change:
        table["other"] = np.full(30, change["other"])
    with pytest.raises(tallmc.InvalidInput, match=message):
        posterior_of("bernoulli", formula, table)


@pytest.mark.slow
def test_crossed_effects_agree_with_nuts():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions
    sizes = (40, 80)
    table = crossed(1500, sizes, (0.8, 0.3))
    draws = tallmc.fit(
        "y ~ x + (1 | a) + (1 | b)",
        table,
        family="bernoulli",
        categorical=["a", "b"],
        progress=False,
        seed=0,
    )
    assert "group effects, standardised" in str(draws.report)
    mean, sd = table["x"].mean(), table["x"].std()
    x = jnp.asarray((table["x"] - mean) / sd)

    def model(y):
        beta = numpyro.sample("beta", dist.Normal(0, jnp.full(2, 2.5)).to_event(1))
        z = beta[0] + beta[1] * x
        for name, size in zip("ab", sizes, strict=True):
            half_t = dist.FoldedDistribution(dist.StudentT(4.0, 0.0, 2.5))
            scale = numpyro.sample(f"sd_{name}", half_t)
            eta = numpyro.sample(f"eta_{name}", dist.Normal(0, jnp.ones(size)).to_event(1))
            z = z + numpyro.deterministic(f"u_{name}", scale * eta)[jnp.asarray(table[name])]
        numpyro.sample("y", dist.Bernoulli(logits=z), obs=y)

    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=500, num_samples=2000, progress_bar=False
    )
    sampler.run(jax.random.key(0), jnp.asarray(table["y"]))
    theirs = {name: np.asarray(values) for name, values in sampler.get_samples().items()}
    reference = {
        "x": theirs["beta"][:, 1] / sd,
        "Intercept": theirs["beta"][:, 0] - theirs["beta"][:, 1] * mean / sd,
        "1|a_sigma": theirs["sd_a"],
        "1|b_sigma": theirs["sd_b"],
        "1|a": theirs["u_a"],
        "1|b": theirs["u_b"],
    }
    for name, values in reference.items():
        ours, values = draws.values[name], values.reshape(2000, -1)
        ours = ours.reshape(*ours.shape[:2], -1)
        for power in (1, 2):
            one = (ours - values.mean(axis=0)) ** power
            two = (values - values.mean(axis=0)) ** power
            errors = [of.std(axis=(0, 1)) / np.sqrt(ess(of)) for of in (one, two[None])]
            shift = one.mean(axis=(0, 1)) - two.mean(axis=0)
            assert (np.abs(shift) < 4.6 * np.hypot(*errors)).all(), (name, power)
