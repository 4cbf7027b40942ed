"""Rows of a row store: the same sums, laws and draws as in memory, whoever reads the shards."""

import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import laplace_draws, slow_after
from row_stores import read_values, stored_logistic, write_store
from tallmc._anchor import optimisers
from tallmc._engine import supply as ahead
from tallmc._engine.kernel import Drawn, Gathered
from tallmc._engine.run import chain_keys
from tallmc._engine.supply import Supply
from tallmc._rows import passes as blocks_of_rows
from tallmc._rows.manifest import Column, RowManifest, RowStoreError
from tallmc._rows.sharded import _places
from tallmc._rows.writer import RowStoreWriter
from tallmc.subsample.measured import NoiseMeasurement
from tallmc.subsample.selection import Carried
from tallmc.subsample.weights import residual_weights

POSITION = np.array([0.3, -0.2], np.float32)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A posterior in a row store of seven shards, and the same in memory."""
    folder = tmp_path_factory.mktemp("stores") / "rows"
    return stored_logistic(folder, n_rows=6000, shard_rows=900)


def test_sums_are_those_of_rows_in_memory(both):
    stored, resident = both
    for of in ("potential", "gradient", "hessian"):
        found, expected = (getattr(posterior, of)(POSITION) for posterior in (stored, resident))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_first_blocks_are_those_of_the_first_shards(both):
    stored, resident = both
    part = stored.rows.subset(2**12, 3)  # blocks of 512 rows: two in a shard of 900
    assert part.n_rows == 900 + 512
    found = stored.rows.reduce(_lines, width=2**12, subset=part).float64()
    expected = np.asarray(resident.data.x[: part.n_rows], np.float64).sum(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-4)
    total = stored.rows.reduce(_count, width=2**12, subset=part)
    assert float(total.float64()) == part.n_rows
    assert float(stored.rows.reduce(_count, width=2**12).float64()) == stored.n_rows


@pytest.mark.parametrize(("number", "part"), [(0, (100, 300)), (6, (0, 600)), (6, (599, 600))])
def test_a_part_of_a_shard_has_its_lines(both, number, part):
    shards = both[0].rows.shards
    expected = shards.array(number)[slice(*part)]
    assert len(expected) == part[1] - part[0]
    np.testing.assert_array_equal(shards.array(number, slice(*part)), expected)


def test_rows_are_read_where_the_system_takes_no_advice(both, monkeypatch):
    shards = both[0].rows.shards
    expected = np.array(shards.array(0))
    monkeypatch.delattr("os.posix_fadvise")  # as on macOS
    np.testing.assert_array_equal(shards.array(0), expected)
    np.testing.assert_array_equal(shards.array(0, slice(5, 20)), expected[5:20])


def _lines(block, counted):
    return jnp.sum(jnp.where(counted[:, None], block.x, 0), axis=0)


def _products(block):
    return block.x[:, 1], block.x[:, 1] * block.y


@pytest.mark.parametrize(
    ("n_rows", "shard_rows"), [(700, 512), (512, 512), (1030, 512), (500, 900)]
)
@pytest.mark.parametrize("width", [2**8, 2**12], ids=["whole blocks", "in pieces"])
def test_passes_count_every_row_once(n_rows, shard_rows, width, tmp_path):
    # The last shard may have fewer rows than a block, one row more than blocks, or all rows.
    posterior, resident = stored_logistic(tmp_path / "rows", n_rows, shard_rows=shard_rows)
    rows, x = posterior.rows, np.asarray(resident.data.x, np.float64)
    y = np.asarray(resident.data.y)
    found = rows.reduce(_lines, width=width).float64()
    np.testing.assert_allclose(found, x.sum(axis=0), rtol=1e-6, atol=1e-4)
    parts = rows.survey(_products, lambda first, values: (first, *values), width=width)
    assert [first for first, *_ in parts] == list(range(0, n_rows, shard_rows))
    first, second = (np.concatenate(of) for of in list(zip(*parts, strict=True))[1:])
    np.testing.assert_array_equal(first, resident.data.x[:, 1])
    np.testing.assert_array_equal(second, resident.data.x[:, 1] * y)
    again, total = rows.survey(_products, lambda *of: of[0], width=width, sums=(_lines, ()))
    assert again == [first for first, *_ in parts]
    np.testing.assert_array_equal(total.float64(), found)


def test_a_sum_in_pieces_keeps_its_rounding_errors(tmp_path):
    # 2²⁴ + 1 is no number of float32: beside the first of 128 pieces the ones would be lost.
    x = np.zeros((2**10, 1))
    x[:8], x[8::8] = 2**21, 1
    store = write_store(tmp_path / "rows", x, np.arange(2**10) % 2)
    rows = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=1.0).rows
    assert float(rows.reduce(_lines, width=2**16).float64()[0]) == 2**24 + 127


def test_parts_of_a_pass_for_threads_read_no_shard_twice(both):
    stored, resident = both
    for rows, most in ((stored.rows, 1), (resident.rows, 4)):
        whole = rows.subset(2**12)
        parts = whole.divided(4)
        assert sum(part.n_rows for part in parts) == rows.n_rows
        readers = [sum(bool(part.blocks[k][1]) for part in parts) for k in range(len(whole.blocks))]
        assert max(readers) == most


def _count(rows, counted):
    return jnp.sum(counted, dtype=jnp.float32)


def test_predictions_are_those_of_rows_in_memory(both):
    stored, resident = both
    draws = laplace_draws(resident, chains=2, draws=10)
    for kind in ("mean", "response"):
        found, expected = (
            draws.predict(rows, kind=kind, seed=3) for rows in (stored.rows, resident.data)
        )
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5)
        np.testing.assert_allclose(found.low, expected.low, rtol=1e-5)
    averages = [draws.average_response(rows) for rows in (stored.rows, resident.data)]
    np.testing.assert_allclose(*averages, rtol=1e-6)
    with pytest.raises(tallmc.InvalidInput, match=r"posterior\.rows"):
        draws.predict(tallmc.rows.open(stored.rows.shards.folder))


def test_values_per_row_are_those_of_rows_in_memory(both):
    stored, _ = both
    values = [
        residual_weights(
            posterior, anchor := tallmc.anchor.find_anchor(posterior), 2, _metric(posterior, anchor)
        )
        for posterior in both
    ]
    np.testing.assert_allclose(read_values(stored.rows, values[0]), values[1], rtol=1e-3)
    assert values[0].total == pytest.approx(float(np.sum(values[1])), rel=1e-3)


def _metric(posterior, anchor):
    return tallmc.geometry.Dense().prepare(posterior, anchor)


def test_deleted_and_damaged_values_are_computed_again_to_the_same_bits(both):
    rows = both[0].rows
    values = both[0].lipschitz()
    before = read_values(rows, values)
    files = sorted((rows.shards.folder / "numbers").rglob("*.npy"))
    assert len(files) >= rows.n_shards
    for number, path in enumerate(files):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:100])
    np.testing.assert_array_equal(read_values(rows, values), before)
    shutil.rmtree(rows.shards.folder / "numbers")
    np.testing.assert_array_equal(read_values(rows, values), before)


def uneven(n_rows):
    weights = np.random.default_rng(5).lognormal(sigma=1.5, size=n_rows)
    weights[[3, 2500]] = weights.sum() * np.array([0.5, 0.3])  # certain in steps of a few rows
    return weights


@pytest.mark.parametrize("certain_of", slow_after(1, [8, None]))
def test_draws_follow_the_weights(both, certain_of):
    rows, n_draws = both[0].rows, 2_000_000
    weights = uneven(rows.n_rows)
    stream, certain = rows.preferential_stream(
        weights, floor=0.05, certain_of=certain_of, dtype=np.float64
    )
    p = 0.95 * weights / weights.sum() + 0.05 / rows.n_rows
    expected, law = both[1].rows.preferential_stream(
        weights, floor=0.05, certain_of=certain_of, dtype=np.float64
    )[::-1]
    np.testing.assert_array_equal(certain, expected)
    assert len(certain) == (0 if certain_of is None else 2)
    p[certain] = 0
    p /= p.sum()
    words = np.random.default_rng(0).integers(0, 2**32, (n_draws, 2), dtype=np.uint32)
    indices, inverse, _, _ = rows.drawn(stream, words)
    counts = np.bincount(indices, minlength=rows.n_rows)
    possible = p > 0
    assert not counts[~possible].any()
    z = (counts - n_draws * p)[possible] / np.sqrt(n_draws * p * (1 - p))[possible]
    assert np.abs(z).max() < 5.2
    assert np.mean(z**2) == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(inverse, 1 / p[indices], rtol=1e-5)
    np.testing.assert_allclose(1 / law.probabilities()[indices], inverse, rtol=1e-5)


def test_uniform_draws_are_uniform(both):
    rows, n_draws = both[0].rows, 1_000_000
    stream = rows.stream(None, np.float64)
    words = np.random.default_rng(3).integers(0, 2**32, (n_draws, 2), dtype=np.uint32)
    indices, inverse, _, _ = rows.drawn(stream, words)
    counts = np.bincount(indices, minlength=rows.n_rows)
    z = (counts - n_draws / rows.n_rows) / np.sqrt(n_draws / rows.n_rows)
    assert np.abs(z).max() < 5.2
    assert np.mean(z**2) == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(inverse, rows.n_rows, rtol=1e-12)


def test_a_row_that_would_never_be_drawn_is_refused(both):
    weights = np.ones(both[0].n_rows)
    weights[4321] = 0
    for posterior in both:
        with pytest.raises(tallmc.InvalidInput, match="p = 0 in row 4321"):
            posterior.rows.preferential_stream(
                weights, floor=0.0, certain_of=None, dtype=np.float32
            )
        weights[4321] = -1
        with pytest.raises(tallmc.InvalidInput, match="-1 in row 4321"):
            posterior.rows.preferential_stream(
                weights, floor=0.1, certain_of=None, dtype=np.float32
            )
        weights[4321] = 0


def test_many_shards_are_kept_apart():
    shard = np.array([70_000, 3, 65_536 + 3, 3])
    places = {number: at.tolist() for number, at in _places(shard).items()}
    assert places == {3: [1, 3], 65_539: [2], 70_000: [0]}


def test_a_draw_depends_on_its_words_alone(both):
    rows = both[0].rows
    stream = rows.preferential_stream(
        uneven(rows.n_rows), floor=0.05, certain_of=None, dtype=np.float32
    ).stream
    words = np.random.default_rng(1).integers(0, 2**32, (50, 6, 2), dtype=np.uint32)
    whole = rows.drawn(stream, words)[0]
    parts = [rows.drawn(stream, part)[0] for part in np.split(words, 10)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("certain", [[], [7, 5100]])
def test_batches_have_the_rows_of_their_numbers(both, certain):
    stored, resident = both
    stream = stored.rows.preferential_stream(
        uneven(stored.n_rows), floor=0.05, certain_of=None, dtype=np.float32
    ).stream
    words = np.random.default_rng(2).integers(0, 2**32, (5, 7, 6, 2), dtype=np.uint32)
    batch = stream.batches_on_host(stored.rows, np.array(certain, int))(words)
    assert batch.indices.shape == batch.weights.shape == (5, 7, 6)
    rows = stored.rows.complete(batch).rows
    np.testing.assert_array_equal(rows.x, np.asarray(resident.data.x)[batch.indices])
    np.testing.assert_array_equal(rows.y, np.asarray(resident.data.y)[batch.indices])
    n_certain = len(certain)
    assert np.all(batch.indices[..., :n_certain] == certain)
    assert np.all(batch.weights[..., :n_certain] == 1)
    p = 0.95 * uneven(stored.n_rows) / uneven(stored.n_rows).sum() + 0.05 / stored.n_rows
    drawn = batch.indices[..., n_certain:]
    expected = 1 / ((6 - n_certain) * p[drawn])
    np.testing.assert_allclose(batch.weights[..., n_certain:], expected, rtol=1e-4)
    chosen = np.array([4000, 3, 3, 5999])
    np.testing.assert_array_equal(
        stored.rows.view(stored.rows.lines(chosen)).x, np.asarray(resident.data.x)[chosen]
    )


METHODS = {
    "sgld": tallmc.methods.sgld(1e-3, batch_size=4),
    "sgld_ps": tallmc.methods.sgld_ps(1e-3, batch_size=4),
    "sgld_cv_ps": tallmc.methods.sgld_cv_ps(1e-3, batch_size=4),
    "svrg_ld": tallmc.methods.svrg_ld(1e-3, batch_size=4, every=5),
    "take-all": tallmc.Method(
        gradient=tallmc.gradient.ControlVariate(2),
        subsample=tallmc.subsample.Preferential("residual", take_all=True),
        batch_size=12,
        step_size=1e-3,
    ),
    "measured": tallmc.Method(
        gradient=tallmc.gradient.ControlVariate(1),
        subsample=tallmc.subsample.Preferential("residual"),
        batch_size=tallmc.subsample.TargetNoise(4, noise=1.0, max_size=300),
        step_size=1e-3,
    ),
}


@pytest.mark.parametrize(
    "name", slow_after(2, sorted(METHODS, key=("measured", "sgld").__contains__, reverse=True))
)
def test_gradient_estimates_are_unbiased(both, name):
    posterior = both[0]
    kernel = METHODS[name].prepare(posterior).kernel.kernel
    supply = Supply(kernel, posterior.rows, [chain_keys(1, 4)])
    at = jnp.asarray(POSITION)
    carried = kernel.start_memory(jnp.broadcast_to(at + 0.3, (4, 2)), posterior.rows)

    @run_once
    def estimates(made, carried):
        def one(made, carried, k):
            learned = Carried(carried.gradient, _noisy(supply.stepper, made.selection, 46 * k))
            found = supply.stepper.estimate(at, made.selection, supply.rows_of_steps, learned)
            return found.gradient, jnp.asarray(found.n_rows)

        def of_step(k):
            step = jax.tree.map(lambda leaf: leaf[0] if leaf.shape[0] == 1 else leaf[k], made)
            return jax.vmap(one, in_axes=(0, 0, None))(step, carried, k)

        # More steps would need more than there is in a reserve.
        return jax.lax.map(of_step, jnp.arange(40 if name == "measured" else supply.steps))

    blocks = range(16)
    supply.prepare(0, len(blocks))
    found, sizes = [], []
    for number in blocks:
        supply.prepare(number, len(blocks))
        made = supply.block(0, number)
        assert isinstance(made, Gathered)
        gradients, n_rows = estimates(made, carried)
        found.append(np.asarray(gradients, np.float64).reshape(-1, 2))
        sizes.append(np.asarray(n_rows))
    every = np.concatenate(found)
    z = (every.mean(0) - np.asarray(both[1].gradient(at))) / (every.std(0) / np.sqrt(len(every)))
    assert np.abs(z).max() < 4.6
    if name == "measured":
        assert np.unique(np.concatenate(sizes)).tolist() == [50]


def _noisy(stepper, gathered, used):
    """The memory of a chain that has measured the noise of 50 rows, and used some of a reserve."""
    start = stepper.selection.start(gathered)
    if not isinstance(start, NoiseMeasurement):
        return start
    return NoiseMeasurement(
        50.0 * stepper.selection.noise,
        start.sum_of_one_draw,
        start.sum_by_parameter,
        start.steps,
        gathered.reserve.words,
        used,
    )


OPTIONS = {"chains": 6, "n_draws": 40, "burn_in": 7, "seed": 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_after(1, reversed(METHODS)))
def test_how_many_blocks_a_visit_brings_changes_no_draw(both, name, monkeypatch):
    posterior, method = both[0], METHODS[name]
    options = OPTIONS | {"n_draws": 600}
    whole = tallmc.sample(posterior, method, **options).positions
    monkeypatch.setattr(ahead, "_FLOATS_PER_VISIT", 1)  # one block, then the next in a thread
    np.testing.assert_array_equal(tallmc.sample(posterior, method, **options).positions, whole)
    assert np.isfinite(whole).all()


def test_a_visit_of_an_odd_number_of_blocks_serves_pairs_of_blocks():
    visits = []

    def gather(words):
        visits.append(words.shape)
        return words

    rows = ahead.RowsAhead(
        lambda group, number: Drawn(np.full(3, 10 * number + group), None), gather, 2, 2**20, 3
    )
    for first in (0, 2, 4):
        rows.prepare(first, first + 2, count=2)
        before = len(visits)
        for number in (first, first + 1):
            assert [int(rows.block(g, number).selection[0]) for g in (0, 1)] == [
                10 * number,
                10 * number + 1,
            ]
        assert len(visits) == before  # threads that ask for these blocks make no visit


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(1, [0, 1]))
def test_a_chain_has_the_same_draws_among_others(both, seed):
    few, many = (
        tallmc.sample(both[0], METHODS["sgld_cv_ps"], **OPTIONS | {"chains": chains, "seed": seed})
        for chains in (2, 6)
    )
    np.testing.assert_array_equal(few.positions, many.positions[:2])


NEED_TAKE = {
    "saga_ld": tallmc.methods.saga_ld(1e-3, batch_size=4),
    "bandit": tallmc.Method(subsample=tallmc.subsample.Bandit(), batch_size=4, step_size=1e-3),
    "ewsg": tallmc.methods.ewsg(1e-3, batch_size=4, friction=1.0),
    "optimal": tallmc.Method(subsample=tallmc.subsample.Optimal(), batch_size=4, step_size=1e-3),
    "mala": tallmc.methods.mala(1e-3),
    "flymc": tallmc.methods.flymc(1e-3),
    "without-replacement": tallmc.methods.sgld(1e-3, batch_size=4, replace=False),
    "asgld_cv_ps": tallmc.methods.asgld_cv_ps(1e-3),
}


@pytest.mark.parametrize("name", NEED_TAKE)
def test_methods_that_need_rows_by_number_are_refused(both, name):
    with pytest.raises(tallmc.InvalidInput, match=r"must have rows in memory.*ShardedRows"):
        tallmc.sample(both[0], NEED_TAKE[name], n_draws=5)


def test_others_that_need_rows_in_memory_are_refused(both):
    stored = both[0]
    with pytest.raises(tallmc.InvalidInput, match="in memory"):
        tallmc.anchor.find_anchor(stored, optimiser=tallmc.anchor.Adam())
    with pytest.raises(tallmc.InvalidInput, match="SGD reads rows by number"):
        tallmc.anchor.find_anchor(stored, optimiser=tallmc.anchor.SGD(1e-3))
    with pytest.raises(tallmc.InvalidInput, match="in memory"):
        tallmc.reference.nuts(stored)
    with pytest.raises(tallmc.InvalidInput, match="in memory"):
        tallmc.tune(
            stored,
            [tallmc.methods.sgld(1e-3, batch_size=4)],
            budget=tallmc.tuning.Budget(rows=10**6),
        )


def hard_to_sample(kind, n_rows, dim):
    """Rows of which few blocks, or few rows, say little about some parameters."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n_rows, dim)).astype(np.float32)
    x[:, 0], intercept = 1, -7 if "rare events" in kind else -0.3
    if kind == "a column in forty rows side by side":
        x[:, -1] = 0
        x[n_rows // 2 : n_rows // 2 + 40, -1] = 1
    eta = x @ np.append(intercept, np.linspace(-0.6, 0.6, dim - 1))
    if kind == "blocks of another law":
        eta = np.where(np.arange(n_rows) % 2**14 < 2**11, -8, 1) * eta
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-eta))).astype(np.float32)
    by = {"sorted by a column": x[:, 1], "sorted rare events": y}.get(kind, np.zeros(n_rows))
    order = np.argsort(by, kind="stable")
    return x[order], y[order]


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("sorted by a column", 2.5),
        ("a column in forty rows side by side", 2.5),
        ("rare events", 2.5),
        ("sorted rare events", 5.5),
        ("blocks of another law", 3.5),
    ],
)
def test_the_mode_of_a_row_store_takes_few_passes(tmp_path, monkeypatch, kind, passes):
    """A quarter of a pass and two; then as many as it takes, where an eighth misleads."""
    monkeypatch.setattr(blocks_of_rows, "_CALL_ROWS", 2**11)
    monkeypatch.setattr(optimisers, "_ROWS_OF_PART", 2**10)
    x, y = hard_to_sample(kind, n_rows=200_000, dim=4)
    store = write_store(tmp_path / "rows", x, y, shard_rows=2**14)
    posterior = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=10.0)
    anchor = tallmc.anchor.find_anchor(posterior)
    assert anchor.n_row_evals < passes * len(x)
    # In float64: the distance to the mode, and the Hessian.
    x, at = x.astype(np.float64), np.asarray(anchor.position, np.float64)
    p = 1 / (1 + np.exp(-x @ at))
    gradient, hessian = x.T @ (p - y) + at / 10, (x.T * (p * (1 - p))) @ x + np.eye(len(at)) / 10
    distance = np.sqrt(gradient @ np.linalg.solve(hessian, gradient))
    assert distance < 0.1
    assert anchor.decrement == pytest.approx(distance, abs=1e-3)
    np.testing.assert_allclose(anchor.accurate[1], hessian, rtol=1e-5, atol=1e-5 * hessian.max())


def test_lbfgs_finds_the_mode_of_a_row_store(both):
    newton, lbfgs = (
        tallmc.anchor.find_anchor(both[1]),
        tallmc.anchor.find_anchor(both[0], optimiser=tallmc.anchor.LBFGS()),
    )
    np.testing.assert_allclose(lbfgs.position, newton.position, atol=2e-3)


@pytest.mark.parametrize("exact", slow_after(1, [False, True]))
def test_the_default_has_the_draws_of_rows_in_memory(tmp_path, exact):
    """With few passes over the rows, and one per step if they decide about proposals."""
    stored, resident = stored_logistic(tmp_path / "rows", n_rows=30_000, dim=4, shard_rows=4096)
    options = {"exact": exact, "seed": 2, "chains": 8, "n_draws": 40 if exact else 500}
    found, expected = (tallmc.sample(posterior, **options) for posterior in (stored, resident))
    assert found.account.exact == exact
    sd = expected.positions.std(axis=(0, 1))
    differences = np.abs(found.positions - expected.positions).max(axis=2) / sd.min()
    # Sums differ by rounding, which may change a decision to accept.
    assert np.mean(differences < 1e-4) > 0.95
    passes = found.n_row_evals_preparation / stored.n_rows
    assert passes == expected.n_row_evals_preparation / stored.n_rows < 13
    if not exact:
        assert found.report.verdict == "checked"
        assert found.n_row_evals_check == stored.n_rows


@pytest.mark.slow
def test_a_row_store_with_few_rows_is_read_into_memory(tmp_path):
    stored, _ = stored_logistic(tmp_path / "rows", n_rows=400, shard_rows=90)
    draws = tallmc.sample(stored, ess=100)
    assert draws.report.verdict == "checked"
    assert "rows are few" in str(draws.report)


@pytest.mark.slow
def test_a_suggested_step_size_works_from_a_row_store(both):
    stored, resident = (tallmc.suggest(posterior, "sgld_cv_ps", batch_size=8) for posterior in both)
    assert stored.method.step_size == pytest.approx(resident.method.step_size, rel=0.2)


def test_exact_gradients_of_a_row_store(both):
    positions = np.random.default_rng(0).normal(size=(70, 2))
    found, expected = (tallmc.diagnose.exact_gradients(posterior, positions) for posterior in both)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_density_of_the_user_sees_rows_by_column_name(tmp_path):
    heights = np.random.default_rng(0).normal(1.7, 0.1, (300, 1))
    folder = write_store(tmp_path / "rows", heights, np.zeros(300), shard_rows=100)
    posterior = tallmc.Posterior(
        lambda params, row: -(((row["x0"] - params["mean"]) / 0.1) ** 2) / 2,
        lambda params: 0.0,
        tallmc.rows.open(folder),
        init={"mean": 1.0},
    )
    mode = tallmc.anchor.find_anchor(posterior).position
    np.testing.assert_allclose(mode, heights.mean(), rtol=1e-5)


def test_a_row_without_a_finite_density_is_named(tmp_path):
    x = np.ones((300, 1))
    x[211] = -1.0
    folder = write_store(tmp_path / "rows", x, np.zeros(300), shard_rows=100)
    posterior = tallmc.Posterior(
        lambda rate, row: jnp.log(row["x0"]) - rate * row["x0"],
        lambda rate: 0.0,
        tallmc.rows.open(folder),
        init=1.0,
    )
    with pytest.raises(tallmc.PreparationError, match="row 211"):
        tallmc.anchor.find_anchor(posterior)


@pytest.mark.parametrize(
    ("regression", "y", "rule"),
    [
        (tallmc.models.logistic_regression, [0, 1, 2], "0 or 1"),
        (tallmc.models.logistic_regression, [0, 0.5, 1], "0 or 1"),
        (tallmc.models.poisson_regression, [0, 1, -1], "count"),
        (tallmc.models.negative_binomial_regression, [0, 1, 1.5], "count"),
    ],
)
def test_impossible_responses_are_refused(tmp_path, regression, y, rule):
    rows = tallmc.rows.open(write_store(tmp_path / "rows", np.ones((3, 1)), np.array(y)))
    with pytest.raises(tallmc.InvalidInput, match=rule):
        regression(rows, prior_variance=1.0)


def test_the_response_must_be_a_column(both):
    rows = tallmc.rows.open(both[0].rows.shards.folder)
    with pytest.raises(tallmc.InvalidInput, match=r"name a column.*clicked"):
        tallmc.models.logistic_regression(rows, response="clicked", prior_variance=1.0)
    with pytest.raises(tallmc.InvalidInput, match="left out with rows of a row store"):
        tallmc.models.logistic_regression(rows, [1.0], prior_variance=1.0)
    with pytest.raises(tallmc.InvalidInput, match="prior_variance must be given"):
        tallmc.models.logistic_regression(rows)


@pytest.mark.slow
def test_linear_regression_with_unknown_noise_from_a_row_store(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8000, 2))
    y = x @ [1.0, -2.0] + 0.5 * rng.normal(size=8000)
    stored = tallmc.models.linear_regression(
        tallmc.rows.open(write_store(tmp_path / "rows", x, y, 1000)), prior_variance=10.0
    )
    resident = tallmc.models.linear_regression(x, y, prior_variance=10.0)
    modes = [
        np.asarray(tallmc.anchor.find_anchor(posterior).position)
        for posterior in (stored, resident)
    ]
    np.testing.assert_allclose(*modes, atol=1e-4)


def test_a_folder_that_is_no_finished_store_is_refused(tmp_path, both):
    with pytest.raises(RowStoreError, match="no such folder"):
        tallmc.rows.open(tmp_path / "nothing")
    unfinished = RowStoreWriter(tmp_path / "unfinished", [Column("x", "x")], shard_rows=2)
    unfinished.append(np.ones((3, 1)))
    with pytest.raises(RowStoreError, match="run an interrupted one again"):
        tallmc.rows.open(tmp_path / "unfinished")
    copy = shutil.copytree(both[0].rows.shards.folder, tmp_path / "copy")
    (copy / "000002.npy").write_bytes(b"")
    with pytest.raises(RowStoreError, match=r"000002\.npy"):
        tallmc.models.logistic_regression(tallmc.rows.open(copy), prior_variance=1.0).gradient(
            POSITION
        )
    (copy / "manifest.json").write_text((copy / "manifest.json").read_text()[:-30])
    with pytest.raises(RowStoreError, match="readable"):
        tallmc.rows.open(copy)


def test_a_changed_byte_is_found(tmp_path, both):
    copy = shutil.copytree(both[0].rows.shards.folder, tmp_path / "copy")
    path = copy / "000003.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    rows = tallmc.rows.open(copy)
    assert rows.shards.damaged() == ["000003.npy"]
    posterior = tallmc.models.logistic_regression(rows, prior_variance=1.0)
    with pytest.raises(RowStoreError, match=r"have an intact 000003\.npy"):
        posterior.gradient(POSITION)


def test_an_interrupted_writer_goes_on(tmp_path):
    lines = np.random.default_rng(0).normal(size=(25, 2))
    columns = [Column("x", "x"), Column("y", "y")]

    def writer(name, **options):
        return RowStoreWriter(tmp_path / name, columns, shard_rows=10, **options)

    whole = writer("whole")
    whole.append(lines)
    expected = whole.finish()
    with writer("cut") as cut:
        cut.append(lines[:17])
    again = writer("cut")
    assert again.n_rows == 10
    again.append(lines[again.n_rows :])
    assert again.finish() == expected == RowManifest.read(tmp_path / "cut")
    with pytest.raises(RowStoreError, match="finished"):
        writer("cut")
    with writer("other", source="a") as other:
        other.append(lines[:12])
    with pytest.raises(RowStoreError, match="beginning of others"):
        writer("other", source="b")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(RowStoreError, match="other files"):
        writer("full")


def test_a_shard_gets_its_name_after_the_one_before_it(tmp_path):
    second_is_made = threading.Event()

    def first():
        yield np.zeros((4, 1), np.float32)
        assert second_is_made.wait(60)
        raise OSError("no space")

    def second():
        yield np.ones((10, 1), np.float32)
        second_is_made.set()

    with RowStoreWriter(tmp_path / "rows", [Column("x", "x")], shard_rows=10) as writer:
        writer.add_shard(10, first())
        writer.add_shard(10, second())
        with pytest.raises(OSError, match="no space"):
            writer.finish()
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["progress.json"]


@pytest.mark.parametrize("name", slow_after(1, ["measured", "take-all"]))
def test_a_stored_run_goes_on_bitwise_without_its_weights(tmp_path, both, name):
    posterior, method = both[0], METHODS[name]
    whole = tallmc.sample(posterior, method, **OPTIONS | {"n_draws": 400}).positions
    tallmc.sample(posterior, method, store=tmp_path / "run", **OPTIONS | {"n_draws": 150})
    moved = shutil.copytree(posterior.rows.shards.folder, tmp_path / "moved")
    shutil.rmtree(moved / "numbers", ignore_errors=True)
    elsewhere = tallmc.models.logistic_regression(tallmc.rows.open(moved), prior_variance=10.0)
    resumed = tallmc.resume(tmp_path / "run", elsewhere, n_draws=400)
    np.testing.assert_array_equal(resumed.positions, whole)


@pytest.mark.slow
def test_a_stored_default_run_keeps_no_copy_of_the_rows_and_goes_on_bitwise(tmp_path):
    stored, _ = stored_logistic(tmp_path / "rows", n_rows=30_000, dim=4, shard_rows=4096)
    options = {"chains": 4, "burn_in": 10, "seed": 1}
    whole = tallmc.sample(stored, n_draws=300, **options).positions
    tallmc.sample(stored, n_draws=120, store=tmp_path / "run", **options)
    written = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert written < 4 * stored.n_rows  # a number per row takes as many bytes
    resumed = tallmc.resume(tmp_path / "run", stored, n_draws=300)
    np.testing.assert_array_equal(resumed.positions, whole)
    other, _ = stored_logistic(tmp_path / "other", n_rows=30_000, dim=4, shard_rows=4096, seed=9)
    with pytest.raises(tallmc._store.StoreError, match="another"):
        tallmc.resume(tmp_path / "run", other, n_draws=400)
