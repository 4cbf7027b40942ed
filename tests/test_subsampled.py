"""Metropolis–Hastings with scalable subsampling: detailed balance, stationary laws, caps."""

import dataclasses
import functools
import itertools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, poisson

import tallmc
from kept_programs import run_once
from problems import slow_after, slow_among
from tallmc._store.writer import StoreSink
from tallmc.methods.subsampled import SubsampledMH
from tallmc.methods.subsampled.method import measure_tails
from tallmc.methods.subsampled.surrogate import Surrogate
from tallmc.methods.subsampled.thinning import Move, Rule
from tallmc.models.posterior import ModelPosterior
from tallmc.models.priors import StudentTPrior
from test_firefly import LIMIT, quadrature, run_z, three_points
from test_mutants import cast

AWAY = {"beta": np.array([1.0, -0.3])}
MOST_KEPT = 24
"""More rows of a kind are kept with a probability below 10⁻¹⁴ in these problems."""


def with_student_prior(posterior: ModelPosterior) -> ModelPosterior:
    prior = StudentTPrior(jnp.asarray(1.0), jnp.asarray(3.0), jnp.asarray([0.5, -0.5]))
    return eqx.tree_at(lambda of: of.model.prior, posterior, prior)


@functools.cache
def anchored(student: bool):
    posterior = with_student_prior(three_points()) if student else three_points()
    return posterior, tallmc.anchor.find_anchor(posterior, at=AWAY)


@functools.cache
def prepared(student: bool = False, **settings):
    posterior, anchor = anchored(student)
    return SubsampledMH(**{"step_size": 0.7, **settings}).prepare(posterior, anchor).kernel


def move_between(kernel, source, here, there) -> Move:
    """The move as `SubsampledKernel.step` makes it, from functions that it calls."""
    surrogate, h = kernel.surrogate, kernel.schedule(jnp.int32(0))
    excess = surrogate.excess(there, source) - surrogate.excess(here, source)
    log_known = kernel.proposal.log_ratio(surrogate, here, there, h) - excess
    moves = surrogate.metric.push(jnp.stack([here, there]))
    return Move(here, there, moves, log_known, jnp.zeros(()))


@run_once
def _parts_of(bound, kernel, chance, ends):
    """What the accept steps of these moves are made of, and the flows that they balance."""
    surrogate, decision, source = kernel.surrogate, kernel.decision, bound.rows
    h = kernel.schedule(jnp.int32(0))

    @jax.vmap
    def of_move(ends):
        here, there = ends
        move = move_between(kernel, source, here, there)
        every = jnp.arange(source.n_rows)
        before, after = surrogate.remainders.values(move.moves, source.take(every))
        total = decision.total * surrogate.remainders.growth(here, there)
        cap, candidates = total * chance, decision.rule.rate(total) * chance
        change = after - before
        return {
            "change": change,
            "cap": cap,
            "candidates": candidates,
            "forth": decision.rule.intensity(change, cap, candidates),
            "back": decision.rule.intensity(-change, cap, candidates),
            "log known": move.log_known,
            "rate": decision.rule.rate(total),
            "potential": bound.posterior.potential(surrogate.anchor + move.moves[0]),
            "gradient": surrogate.gradient(here),
            "h": h,
        }

    return of_move(ends)


def parts_of(bound, kernel, moves) -> list[dict[str, np.ndarray]]:
    """The parts of each of these moves from u to u'."""
    chance = jnp.asarray(kernel.decision.stream.probabilities())
    found = jax.tree.map(np.asarray, _parts_of(bound, kernel, chance, jnp.asarray(moves)))
    return [{key: part[i] for key, part in found.items()} for i in range(len(moves))]


def log_proposal(kernel, parts, here, there) -> float:
    """Log q(u' | u), by the definition of the proposals."""
    h, name = parts["h"], kernel.proposal.name
    if name == "pcn":
        mean = np.sqrt(1 - h) * here
    elif name == "langevin":
        mean = here - h / 2 * parts["gradient"]
    else:
        mean = here
    return norm.logpdf(there, mean, np.sqrt(h)).sum()


@functools.cache
def numbers_of_kept_rows(kinds: int) -> np.ndarray:
    return np.array(list(itertools.product(range(MOST_KEPT), repeat=kinds)))


def chance_of_accepting(parts) -> float:
    """The sum over all numbers of kept rows of their probability and the acceptance rate."""
    used = parts["cap"] > 0
    assert (np.abs(parts["change"]) <= parts["cap"])[used].all()
    forth, back = parts["forth"][used], parts["back"][used]
    assert (forth >= 0).all() and (forth <= parts["candidates"][used] * (1 + 1e-12)).all()
    with np.errstate(divide="ignore"):
        factors = np.log(back) - np.log(forth)
    kept = numbers_of_kept_rows(len(forth))
    each = poisson.pmf(np.arange(MOST_KEPT)[:, None], forth)
    chance = np.prod(each[kept, np.arange(len(forth))], axis=1)
    kept, chance = kept[chance > 0], chance[chance > 0]
    with np.errstate(invalid="ignore"):  # no row of a kind with an infinite factor
        log_ratio = parts["log known"] + np.where(kept > 0, kept * factors, 0).sum(axis=1)
    return chance @ np.exp(np.minimum(0, log_ratio))


def imbalance(bound, kernel, here, there) -> float:
    """The relative difference between the flows from u to u' and back."""
    flows = [
        -parts["potential"]
        + log_proposal(kernel, parts, *move)
        + np.log(chance_of_accepting(parts))
        for move in ((here, there), (there, here))
        for parts in parts_of(bound, kernel, [move])
    ]
    return abs(np.expm1(flows[1] - flows[0]))


PAIRS = [([0.3, -0.4], [-0.5, 0.2]), ([0.1, 0.9], [0.6, 0.4])]
SETTINGS = {
    "pcn": {},
    "independent": {"step_size": 1.0},
    "langevin": {"proposal": "langevin"},
    "langevin-cubic": {"proposal": "langevin", "order": 3},
    "cubic": {"order": 3},
    "order-1": {"order": 1},
    "order-0-walk": {"order": 0, "proposal": "random-walk", "step_size": 0.1},
    "tuna": {"rule": "tuna", "chi": 0.3, "order": 1},
    "factorised": {"rule": "factorised"},
    "student-prior": {"student": True},
    "student-prior-cubic": {"student": True, "order": 3, "rule": "tuna", "chi": 0.2},
}


@pytest.mark.parametrize("name", slow_among(["langevin-cubic", "student-prior-cubic"], SETTINGS))
def test_detailed_balance_holds_over_all_numbers_of_kept_rows(name):
    bound = prepared(**SETTINGS[name])
    for here, there in PAIRS:
        assert imbalance(bound, bound.kernel, np.array(here), np.array(there)) < 1e-11


def acceptance_z(bound, kernel, keys: int = 10_000) -> tuple[float, float]:
    """|z| of how often `decide` accepts, and of how many rows it reads, over many keys.

    The move is one of those that are rejected most often.
    """
    moves = np.array([*PAIRS, *(pair[::-1] for pair in PAIRS)])
    all_parts = parts_of(bound, bound.kernel, moves)
    chances = [chance_of_accepting(parts) for parts in all_parts]
    expected, least = min(chances), int(np.argmin(chances))
    assert 0.01 < expected < 0.95
    found = decisions(bound, kernel, jnp.asarray(moves[least]), keys)
    error = np.sqrt(expected * (1 - expected) / keys)
    rate = float(all_parts[least]["rate"])
    rows = np.asarray(found.n_rows)
    return (
        abs(np.asarray(found.accept).mean() - expected) / error,
        abs(rows.mean() - rate) / np.sqrt(rate / keys),
    )


@run_once
def decisions(bound, kernel, ends, keys: int):
    """What `decide` says about one move, for many keys."""
    move = move_between(kernel, bound.rows, *ends)

    @jax.vmap
    def decide(key):
        rows_key, uniform_key = jax.random.split(key)
        uniform = -jax.random.exponential(uniform_key, ())
        return kernel.decision.decide(
            kernel.surrogate.remainders, move._replace(log_uniform=uniform), rows_key, bound.rows
        )

    return decide(jax.random.split(jax.random.key(3), keys))


@pytest.mark.parametrize(
    "name", slow_after(1, ["independent", "tuna", "factorised", "order-1", "cubic"])
)
def test_the_compiled_decision_has_the_enumerated_chance(name):
    bound = prepared(**SETTINGS[name])
    z = acceptance_z(bound, bound.kernel)
    assert max(z) < LIMIT


class WrongSign(Rule):
    def intensity(self, change, cap, candidates):
        return cap - jnp.maximum(change, 0)


class HalvedRate(Rule):
    def rate(self, total):
        return total / 2


class PriorLeftOut(Surrogate):
    def _prior(self, u):
        return jnp.zeros_like(u[0])


def with_rule(bound, rule: Rule):
    return eqx.tree_at(lambda kernel: kernel.decision.rule, bound.kernel, rule)


def test_enumeration_kills_a_wrong_sign_in_the_intensity():
    bound = prepared()
    wrong = with_rule(bound, WrongSign("thinned"))
    # φ(D) − φ(−D) is −D: the flows differ although each of them is a probability.
    assert imbalance(bound, wrong, *map(np.array, PAIRS[0])) > 1e-4


@pytest.mark.parametrize("name", ["student-prior", "order-1"])
def test_enumeration_kills_a_prior_that_is_left_out(name):
    bound = prepared(**SETTINGS[name])
    surrogate = cast(bound.kernel.surrogate, PriorLeftOut)
    wrong = dataclasses.replace(bound.kernel, surrogate=surrogate)
    assert imbalance(bound, wrong, *map(np.array, PAIRS[0])) > 1e-3


def test_frequencies_kill_a_halved_rate():
    bound = prepared(order=1)
    wrong = with_rule(bound, HalvedRate("thinned"))
    assert max(acceptance_z(bound, wrong)) > LIMIT


def fourteen_rows(student: bool = False):
    """Few enough to be skewed, and enough for the surrogate to be of use."""
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(14), rng.normal(size=14)])
    y = (np.arange(14) % 5 == 0).astype(float)
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=2.0)
    return with_student_prior(posterior) if student else posterior


@functools.cache
def truth(student: bool) -> np.ndarray:
    grid, weight = quadrature(fourteen_rows(student), np.zeros(2), np.eye(2), 9, 361)
    return weight @ moments(grid)


def moments(positions: np.ndarray) -> np.ndarray:
    """The first three moments of two parameters."""
    a, b = positions[..., 0], positions[..., 1]
    return np.stack([a, b, a * a, a * b, b * b, a**3, b**3], axis=-1)


LAWS = [
    {"step_size": 0.7},
    {"order": 3, "proposal": "langevin", "step_size": 0.8},
    {"rule": "factorised", "step_size": 0.3},
    {"rule": "tuna", "chi": 0.02, "order": 1, "step_size": 0.5},
    {"step_size": 1.0, "order": 1},
    {"student": True, "step_size": 0.7},
    {"order": 0, "proposal": "random-walk", "step_size": 0.5},
]


def moments_agree(settings, **length):
    settings = dict(settings)
    student = settings.pop("student", False)
    method = SubsampledMH(**settings)
    draws = tallmc.sample(fourteen_rows(student), method, **length)
    assert draws.account.exact
    assert run_z(draws, truth(student), moments) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("rule", slow_after(1, ["thinned", "factorised"]))
def test_short_runs_have_the_moments_of_the_posterior(rule):
    moments_agree({"step_size": 0.4, "rule": rule}, chains=64, n_draws=400, burn_in=100)


@pytest.mark.slow
@pytest.mark.parametrize("settings", LAWS, ids=str)
def test_draws_have_the_moments_of_the_posterior(settings):
    moments_agree(settings, chains=128, n_draws=2000, burn_in=300)


def skewed_intercept(family: str):
    x = np.ones((8, 1))
    if family == "poisson":
        return tallmc.models.poisson_regression(
            x, np.array([0, 1, 0, 2, 0, 0, 1, 0]), prior_variance=1.0
        )
    model = {
        "logistic": tallmc.models.logistic_regression,
        "probit": tallmc.models.probit_regression,
    }[family]
    return model(x, np.arange(8) == 7, prior_variance=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["logistic", "probit", "poisson"])
def test_the_law_of_one_parameter_is_that_of_quadrature(family):
    posterior = skewed_intercept(family)
    grid = jnp.linspace(-12, 6, 8001)[:, None]
    potential = np.asarray(jax.vmap(posterior.potential)(grid))
    weight = np.exp(potential.min() - potential)
    weight /= weight.sum()

    def powers(positions):
        return np.concatenate([positions, positions**2, positions**3], axis=-1)

    method = SubsampledMH(step_size=0.8, order=2)
    draws = tallmc.sample(posterior, method, chains=128, n_draws=1500, burn_in=100)
    assert run_z(draws, weight @ powers(np.asarray(grid)), powers) < LIMIT
    assert draws.account.exact


def tall(n_rows: int = 4000, d: int = 3, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, d))
    y = rng.random(n_rows) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, d)))
    return tallmc.models.logistic_regression(x, y.astype(float), prior_variance=10.0)


def rare_event():
    return tallmc.models.logistic_regression(
        np.ones((20_000, 1)), (np.arange(20_000) == 7).astype(float), prior_variance=100.0
    )


def two_cells():
    """Three events in each of two cells, in ±1 coding: no parameter alone is skewed."""
    side = np.where(np.arange(20_000) % 2 == 0, 1.0, -1.0)
    x = np.column_stack([np.ones(20_000), side])
    return tallmc.models.logistic_regression(x, np.arange(20_000) < 6, prior_variance=100.0)


def cauchy_prior():
    """One row that says little: the tails are those of the prior."""
    posterior = tallmc.models.linear_regression(
        np.full((1, 1), 0.5), np.ones(1), prior_variance=1.0, noise_variance=1.0
    )
    prior = StudentTPrior(jnp.asarray(1.0), jnp.asarray(1.0), jnp.zeros(1))
    return eqx.tree_at(lambda of: of.model.prior, posterior, prior)


@pytest.mark.parametrize("posterior", [rare_event, two_cells, cauchy_prior])
def test_a_tail_that_gaussian_proposals_never_visit_is_found(posterior):
    made = posterior()
    for method in (tallmc.methods.subsampled_mh(), tallmc.methods.smh()):
        account = method.prepare(made).account
        assert account.exact and "more than 4.5 sds from the mode" in account.unmeasured


def test_a_run_that_lacks_a_tail_is_not_checked_and_reports_no_error():
    draws = tallmc.sample(rare_event(), tallmc.methods.subsampled_mh(), chains=8, n_draws=250)
    assert draws.report.verdict.value != "checked"
    assert draws.report.sd_error is None
    assert "the draws lack this tail" in draws.report.unknown


def test_light_tails_are_no_doubt_and_a_random_walk_needs_no_test():
    light = SubsampledMH(step_size=1.0).prepare(tall()).account
    assert light.unmeasured is None and light.reasons == ()
    walk = SubsampledMH(step_size=1.0, proposal="random-walk").prepare(rare_event()).account
    assert walk.unmeasured is None


def test_the_share_of_a_variance_beyond_the_proposals_is_that_of_quadrature():
    posterior = rare_event()
    anchor = tallmc.anchor.find_anchor(posterior)
    found = measure_tails(posterior, anchor, np.ones(20_000), None)
    t = np.linspace(-60, 10, 20_001)
    density = np.exp(t - np.exp(t) + 1)  # of log θ for Gamma(1), which N = 20,000 rows resemble
    share = np.sum(t**2 * density, where=np.abs(t) > 4.5) * (t[1] - t[0]) / np.sqrt(2 * np.pi)
    # The prior sd of 10 takes a tenth of it; the lines between three distances add as much.
    assert 0.8 < found.share / share < 1.25


def test_bounds_within_a_radius_say_how_much_of_the_posterior_is_outside():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(400), rng.normal(size=400)])
    y = rng.poisson(np.exp(0.3 + 0.2 * x[:, 1]))
    posterior = tallmc.models.poisson_regression(x, y, prior_variance=10.0)
    (reason,) = SubsampledMH(step_size=1.0).prepare(posterior).account.reasons
    outside = float(re.search(r"about (\S+) of the posterior is outside", reason)[1])
    # A Gaussian has 1e-10 there; the skew of some 500 events multiplies it.
    assert 1e-10 < outside < 1e-7


@pytest.mark.slow
def test_exceeded_caps_are_counted_and_end_the_claim_of_exactness():
    method = SubsampledMH(step_size=1.0, caps=0.2)
    with pytest.warns(tallmc.SamplingWarning, match="changed by more than their caps"):
        draws = tallmc.sample(tall(), method, chains=8, n_draws=100)
    assert not draws.account.exact
    assert draws.report.verdict.value == "doubtful"
    assert "the draws are not exact" in draws.report.doubts[0]


@pytest.mark.slow
def test_a_killed_run_reports_exceeded_caps_when_it_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(StoreSink, "conclude", lambda *args, **facts: [])  # killed before its end
    method, store = SubsampledMH(step_size=1.0, caps=0.01), tmp_path / "run"
    with pytest.warns(tallmc.SamplingWarning, match="changed by more than their caps"):
        finished = tallmc.sample(tall(500, 2), method, chains=4, n_draws=50, store=store)
    read = tallmc.load(store)
    assert "changed by more than their caps" in read.report.doubts[0]
    assert read.report.doubts == finished.report.doubts
    assert not read.account.exact


def test_caps_below_the_bound_are_no_exact_method():
    """A run that met no row beyond its cap proves nothing about the rows that it did not see."""
    assert SubsampledMH(step_size=1.0).exact and not SubsampledMH(step_size=1.0, caps=0.99).exact
    with pytest.raises(tallmc.InvalidInput, match="be an exact method with exact=True"):
        tallmc.sample(tall(), SubsampledMH(step_size=1.0, caps=0.5), exact=True)


@pytest.mark.slow
def test_caps_scale_the_number_of_rows():
    totals = [
        float(SubsampledMH(step_size=1.0, caps=caps).prepare(tall()).kernel.kernel.decision.total)
        for caps in (1.0, 0.5)
    ]
    np.testing.assert_allclose(totals[1] / totals[0], 0.5, rtol=1e-12)


@pytest.mark.slow
def test_moderate_caps_are_not_exceeded_and_read_fewer_rows():
    rigorous, moderate = (
        tallmc.sample(
            tall(d=12),
            SubsampledMH(step_size=1.0, caps=caps),
            chains=16,
            n_draws=200,
        )
        for caps in (1.0, 0.5)
    )
    assert rigorous.account.exact and rigorous.report.verdict.value == "checked"
    assert not moderate.account.exact and moderate.report.verdict.value == "not checked"
    ratio = moderate.n_row_evals_sampling / rigorous.n_row_evals_sampling
    # Poisson counts of some 10⁴ rows
    assert abs(ratio - 0.5) < 4.6 * np.sqrt(0.75 / rigorous.n_row_evals_sampling)


@pytest.mark.slow
def test_the_number_of_rows_falls_with_the_number_of_rows_of_the_data():
    """As N^(−1/2) with order 2 and N^(−1) with order 3; intervals shrink, too."""
    for order, power in ((2, 0.5), (3, 1.0)):
        method = SubsampledMH(step_size=1.0, order=order)
        totals = [
            float(method.prepare(tall(n)).kernel.kernel.decision.total) for n in (4_000, 64_000)
        ]
        # Random rows change the sums by a few per cent.
        assert 0.95 < totals[0] / totals[1] / 16**power < 1.25


def test_rows_of_high_leverage_are_in_every_step():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    x[7], x[90] = [60.0, 0.0], [0.0, -40.0]
    y = (rng.random(2000) < 0.5).astype(float)
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=10.0)
    kernel = SubsampledMH(step_size=1.0, order=1).prepare(posterior).kernel.kernel
    assert {7, 90} <= set(np.asarray(kernel.surrogate.certain).tolist())
    assert (kernel.decision.stream.probabilities()[[7, 90]] == 0).all()


@run_once
def first_values(bound, u):
    """The remainders of the first 200 rows at some positions."""
    surrogate = bound.kernel.surrogate
    return surrogate.remainders.values(surrogate.metric.push(u), bound.rows.take(jnp.arange(200)))


@pytest.mark.slow
def test_single_precision_agrees_with_double():
    """The remainders of a tall problem are of the order of 10⁻⁷."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3))
    y = (rng.random(20_000) < 0.3).astype(float)
    acceptance = []
    for double in (True, False):
        with jax.enable_x64(double):
            posterior = tallmc.models.logistic_regression(
                x.astype(float if double else np.float32), y, prior_variance=10.0
            )
            bound = SubsampledMH(step_size=1.0).prepare(posterior).kernel
            u = jnp.asarray([[0.5, -1.0, 0.7], [-0.3, 0.2, 1.1]], posterior.dtype)
            before, after = first_values(bound, u)
            acceptance.append(np.asarray(after - before, float))
    scale = np.abs(acceptance[0]).max()
    assert scale < 1e-5
    assert np.abs(acceptance[1] - acceptance[0]).max() < 1e-4 * scale


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proposal": "jump"}, "proposal must be one of"),
        ({"rule": "strict"}, "rule must be one of"),
        ({"order": 4}, "order must be"),
        ({"caps": 0.0}, "caps must be"),
        ({"step_size": 1.5}, "step_size must be"),
        ({"chi": -1.0}, "chi must be"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        SubsampledMH(**{"step_size": 1.0, **settings})


def test_a_model_without_bounds_is_refused_with_the_cure():
    posterior = tallmc.Posterior(
        log_likelihood=lambda theta, x: -((x - theta) ** 2) / 2,
        log_prior=lambda theta: -(theta**2) / 2,
        data=np.arange(5.0),
        init=np.zeros(()),
    )
    with pytest.raises(tallmc.InvalidInput, match="bound on the third derivatives"):
        SubsampledMH(step_size=1.0).prepare(posterior)


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit(tmp_path):
    posterior, method = tall(500), SubsampledMH(step_size=0.9, order=1)
    whole = tallmc.sample(posterior, method, chains=3, n_draws=60, burn_in=5)
    tallmc.sample(posterior, method, chains=3, n_draws=25, burn_in=5, store=tmp_path / "run")
    resumed = tallmc.resume(tmp_path / "run", posterior, n_draws=60)
    np.testing.assert_array_equal(np.asarray(resumed.positions), np.asarray(whole.positions))
