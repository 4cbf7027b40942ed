"""New rows for a fit: the same posterior as that of all rows, without reading the old ones."""

import dataclasses
import pickle

import equinox as eqx
import numpy as np
import pandas
import pytest

import tallmc
from row_stores import write_store
from tallmc._core.errors import InvalidInput
from tallmc._core.statistics import agreement
from tallmc._engine.loop import advance
from tallmc._fit.fit import fitted_posterior
from tallmc._rows.manifest import RowManifest, RowStoreError
from tallmc._rows.resident import ResidentRows
from tallmc.methods.automatic.update import _EasyRows, joined, joined_rows, move_to_mode
from tallmc.methods.surrogate import RowSizes, check_on_all_rows, make_surrogate
from test_cli_row_stores import command

DIM, OLD, NEW = 3, 9_000, 3_000


def table(n_rows, seed=0, truth=(-5.5, 1.0, 1.0)):
    """A logistic regression with few events, whose rows are hard."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n_rows), rng.standard_t(2, n_rows), rng.normal(size=n_rows)])
    y = rng.random(n_rows) < 1 / (1 + np.exp(-x @ np.array(truth)))
    return x.astype(np.float32), y.astype(np.float32)


def posterior_of(x, y):
    return tallmc.models.logistic_regression(x, y, prior_variance=10.0)


def sampled(x, y, **options):
    return tallmc.sample(posterior_of(x, y), progress=False, **options)


X, Y = table(OLD + NEW)


@pytest.fixture(scope="module")
def old():
    return sampled(X[:OLD], Y[:OLD])


@pytest.fixture(scope="module")
def all_rows():
    return sampled(X, Y)


def assert_same_law(draws, other, largest=4.6):
    """Means and sds of independent runs agree within their Monte-Carlo errors."""
    one, two = draws.positions.astype(float), other.positions.astype(float)
    ess = np.minimum(agreement(one).ess.min(), agreement(two).ess.min())
    sd = two.std(axis=(0, 1))
    means = (one.mean(axis=(0, 1)) - two.mean(axis=(0, 1))) / sd * np.sqrt(ess / 2)
    sds = np.log(one.std(axis=(0, 1)) / sd) * np.sqrt(ess)
    assert np.abs(means).max() < largest, means
    assert np.abs(sds).max() < largest, sds


def test_a_polynomial_is_the_same_about_another_point_and_in_another_metric():
    rng = np.random.default_rng(0)
    root, centre = rng.normal(size=(DIM, DIM)), rng.normal(size=DIM)
    half = rng.normal(size=(DIM, DIM, DIM))
    cubic = sum(half.transpose(p) for p in ([0, 1, 2], [1, 2, 0], [2, 0, 1]))
    cubic = cubic + cubic.transpose(1, 0, 2)
    square = rng.normal(size=(DIM, DIM))
    made = _EasyRows(rng.normal(size=DIM), square + square.T, cubic)

    def value(of, u):
        third = np.einsum("ijk,i,j,k", of.cubic, u, u, u) / 6
        return of.linear @ u + u @ of.quadratic @ u / 2 + third

    moved, u = made.about(centre).along(root), rng.normal(size=DIM)
    change = value(made, centre + root @ u) - value(made, centre)
    np.testing.assert_allclose(value(moved, u), change, rtol=1e-12)


def test_old_rows_that_moved_and_new_rows_have_the_log_density_of_all(old):
    """At the draws of the old rows, which reach beyond those of all rows."""
    whole = posterior_of(X, Y)
    new = eqx.tree_at(lambda p: p.rows, whole, ResidentRows(posterior_of(X[OLD:], Y[OLD:]).data))
    before = old.series.surrogate(whole.model, new.rows.read(np.arange(1)))
    assert before.hard is not None, "rare events have hard rows"
    moved = move_to_mode(before, new)
    assert moved.decrement < 0.03 < moved.distance
    added = make_surrogate(new, moved.expansion, RowSizes.of(new, moved.expansion), 512)
    both = joined(moved.old, added)
    assert check_on_all_rows(both, whole.rows, old.positions, 64).sd < 0.02
    # The gradient at the new mode is that of all rows, in units of posterior sds.
    factor = np.asarray(both.metric.factor, float)
    gradient = factor.T @ np.asarray(whole.gradient(both.centre), float)
    assert np.abs(gradient).max() < 0.03
    # A mutant: the old rows as they were about the old mode.
    wrong = joined(dataclasses.replace(before, centre=both.centre, metric=both.metric), added)
    assert check_on_all_rows(wrong, whole.rows, old.positions, 64).sd > 0.1


def test_an_update_has_the_law_of_one_fit_and_says_what_was_checked(old, all_rows):
    new = X[OLD:], Y[OLD:]
    unread = old.update(new, seed=5, progress=False)
    read = old.update(new, old_rows=(X[:OLD], Y[:OLD]), seed=6, progress=False)
    for draws in (unread, read):
        assert_same_law(draws, all_rows)
        assert draws.settings["n_rows"] == draws.series.n_rows == OLD + NEW
        assert draws.report.trusted
    assert "9,000 old rows were not read again" in str(unread.report)
    assert "checked on all rows" in str(read.report)
    assert "not read" not in str(read.report)
    # Two steps of Newton's method, the sizes of the rows, and the check.
    assert unread.n_row_evals_preparation + unread.n_row_evals_check == 4 * NEW


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:R-hat")
@pytest.mark.parametrize("events", ["many", "few"])
def test_ten_updates_have_the_law_of_one_fit(events):
    """With few events hard rows are added in every update."""
    x, y = (X, Y) if events == "few" else table(OLD + NEW, truth=(-1.0, 1.0, 1.0))
    size = len(x) // 20
    draws = sampled(x[: 10 * size], y[: 10 * size], n_draws=20)
    for k in range(10, 20):
        part = slice(k * size, (k + 1) * size)
        few = {"n_draws": 20} if k < 19 else {}
        draws = draws.update((x[part], y[part]), seed=k, progress=False, **few)
    assert draws.report.trusted
    assert draws.series.n_rows == len(x)
    assert_same_law(draws, sampled(x, y))
    whole = posterior_of(x, y)
    made = draws.series.surrogate(whole.model, whole.rows.read(np.arange(1)))
    assert check_on_all_rows(made, whole.rows, draws.positions).sd < 0.05


def test_new_rows_of_another_kind_are_a_doubt(old):
    x, y = table(OLD, seed=1, truth=(-4.0, 1.0, 1.0))
    with pytest.warns(UserWarning, match="the mode has moved"):
        draws = old.update((x, y), n_draws=20, progress=False)
    assert not draws.report.trusted


@pytest.mark.slow
def test_new_rows_of_another_kind_beside_the_old_ones_give_exact_draws(old):
    x, y = table(OLD, seed=1, truth=(-4.0, 1.0, 1.0))
    draws = old.update((x, y), old_rows=(X[:OLD], Y[:OLD]), seed=1, progress=False)
    assert draws.account.exact
    assert_same_law(draws, sampled(np.concatenate([X[:OLD], x]), np.concatenate([Y[:OLD], y])))


def test_an_update_of_loaded_draws_has_the_same_bits(old, tmp_path):
    posterior = posterior_of(X[:OLD], Y[:OLD])
    stored = tallmc.sample(posterior, progress=False, store=tmp_path / "run")
    old.save(tmp_path / "draws.nc")
    new = X[OLD:], Y[OLD:]
    expected = old.update(new, n_draws=20, progress=False)
    for place in ("run", "draws.nc"):
        loaded = tallmc.load(tmp_path / place)
        with pytest.raises(InvalidInput, match="with_posterior"):
            loaded.update(new)
        draws = loaded.with_posterior(posterior).update(new, n_draws=20, progress=False)
        assert (draws.positions == expected.positions).all()
    assert (stored.update(new, n_draws=20, progress=False).positions == draws.positions).all()


def test_draws_of_other_methods_are_refused(old):
    with pytest.raises(InvalidInput, match="default method"):
        dataclasses.replace(old, series=None).update((X, Y))


def test_old_rows_must_be_those_of_the_fit(old):
    with pytest.raises(InvalidInput, match="old_rows must be the 9,000 rows"):
        old.update((X[OLD:], Y[OLD:]), old_rows=(X[:10], Y[:10]))


# A row store grows.


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(3)
    n_rows = OLD + NEW
    age, city = rng.normal(40, 10, n_rows), rng.choice(["Oslo", "Rome"], n_rows)
    z = 0.1 * (age - 40) + (city == "Rome")
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-z))).astype(int)
    whole = {"age": age, "city": city, "y": y}
    return [
        {name: values[part] for name, values in whole.items()}
        for part in (slice(0, OLD), slice(OLD, None), slice(0, None))
    ]


def test_a_store_grows_by_shards_and_its_readers_see_the_old_rows(tables, tmp_path):
    first, second, _ = tables
    store = tmp_path / "rows"
    before = tallmc.ingest(first, store, response="y")
    rows = tallmc.rows.open(store)
    shards = pickle.dumps(rows.shards)
    after = tallmc.ingest(second, store, append=True)
    assert after == RowManifest.read(store)
    assert after.shards[: len(before.shards)] == before.shards
    assert (before.n_rows, after.n_rows) == (OLD, OLD + NEW)
    assert rows.n_rows == pickle.loads(shards).manifest.n_rows == OLD
    grown = tallmc.rows.open(store)
    assert grown.of_shards(range(len(before.shards), grown.n_shards)).n_rows == NEW
    scaled = np.asarray(grown.in_memory().columns["age"], float)
    column = after.columns[after.names.index("age")]
    assert (column.mean, column.sd) == (np.mean(first["age"]), pytest.approx(np.std(first["age"])))
    ages = np.concatenate([first["age"], second["age"]])
    np.testing.assert_allclose(scaled * column.sd + column.mean, ages, rtol=1e-5)
    assert (column.low, column.high) == (ages.min(), ages.max())


@pytest.mark.parametrize("change", ["level", "column", "missing", "killed"])
def test_an_append_that_fails_has_added_nothing(tables, tmp_path, change, monkeypatch):
    first, second, _ = tables
    store = tmp_path / "rows"
    before = tallmc.ingest(first, store, response="y")
    new, error = dict(second), InvalidInput
    if change == "level":
        new["city"] = np.where(np.arange(NEW) == 7, "Bergen", second["city"])
    elif change == "column":
        new["wage"] = new.pop("age")
    elif change == "missing":
        new["age"] = np.where(np.arange(NEW) == 7, np.nan, second["age"])
    else:
        error = RuntimeError

        def fail(*_):
            raise error("killed before the manifest")

        monkeypatch.setattr(RowManifest, "write", fail)
    with pytest.raises(error, match=r"Bergen|wage|age: 1 missing|killed"):
        tallmc.ingest(new, store, append=True)
    monkeypatch.undo()
    assert RowManifest.read(store) == before
    assert tallmc.ingest(second, store, append=True).n_rows == OLD + NEW


def test_a_fit_of_a_store_is_updated_by_what_the_store_has_grown(tables, tmp_path):
    first, second, _ = tables
    store = tmp_path / "rows"
    tallmc.ingest(first, store, response="y")
    fit = {"family": "bernoulli", "progress": False}
    draws = tallmc.fit("y", store, **fit)
    assert len(draws.predict(store, n_draws=32)) == OLD
    with pytest.raises(RowStoreError, match="have new rows"):
        draws.update(store)
    steps = set(advance.programs)
    draws.update(second, n_draws=20, progress=False)
    tallmc.ingest(second, store, append=True)
    updated = draws.update(store, progress=False)
    assert set(advance.programs) == steps, "the steps of a series do not depend on its rows"
    assert "checked on all rows at 16 draws" in str(updated.report)
    # Two steps of Newton's method and the sizes of the new rows, and one check on all rows.
    assert updated.n_row_evals_preparation == OLD + 4 * NEW
    assert updated.n_row_evals_check == 0
    assert updated.report.trusted
    again = tallmc.fit("y", store, **fit)
    assert_same_law(updated, again)
    with pytest.raises(RowStoreError, match="have new rows"):
        updated.update(store)
    other = write_store(tmp_path / "others", *table(OLD), shard_rows=1000)
    with pytest.raises(RowStoreError, match="begin with the 9,000 rows"):
        draws.update(other)


def test_a_store_that_grows_while_it_is_fitted_changes_no_bit(tables, tmp_path):
    first, second, _ = tables
    tallmc.ingest(first, tmp_path / "rows", response="y")
    tallmc.ingest(first, tmp_path / "grows", response="y")

    def grow(progress):
        if RowManifest.read(tmp_path / "grows").n_rows == OLD:
            tallmc.ingest(second, tmp_path / "grows", append=True)

    fit = {"family": "bernoulli", "progress": False, "n_draws": 20}
    expected = tallmc.fit("y", tmp_path / "rows", **fit)
    draws = tallmc.fit("y", tmp_path / "grows", callback=grow, **fit)
    assert RowManifest.read(tmp_path / "grows").n_rows == OLD + NEW
    assert (draws.positions == expected.positions).all()
    updated = draws.update(tmp_path / "grows", n_draws=20, progress=False)
    assert updated.settings["n_rows"] == OLD + NEW


@pytest.mark.slow
@pytest.mark.parametrize("further", [False, True])
def test_the_command_updates_a_fit_in_place(tables, tmp_path, further):
    for name, part in zip(("first", "second", "whole"), tables, strict=True):
        pandas.DataFrame(part).to_csv(tmp_path / f"{name}.csv", index=False)
    model = "--response", "y", "--family", "bernoulli", "--no-progress"
    fit, every = tmp_path / "fit", tmp_path / "every"
    assert command("fit", tmp_path / "first.csv", *model, "-o", fit).returncode == 0
    done = command("update", fit, tmp_path / "second.csv", "--no-progress")
    assert done.returncode == 0, done.stderr
    assert "updated: 3,000 new rows" in done.stdout
    assert "only the new ones were checked" in done.stdout
    updated = tallmc.load(fit)
    assert updated.settings["n_rows"] == OLD + NEW
    if not further:
        return
    assert command("fit", tmp_path / "whole.csv", *model, "-o", every).returncode == 0
    again = tallmc.load(every)
    for name, values in again.values.items():  # other scales of the columns, so not the same bits
        sd, ess = values.std(), agreement(again.positions).ess.min()
        assert abs(updated.values[name].mean() - values.mean()) < 4.6 * sd * np.sqrt(2 / ess)
        assert abs(np.log(updated.values[name].std() / sd)) < 4.6 / np.sqrt(ess)
    more = "--old-rows", tmp_path / "whole.csv", "-o", tmp_path / "more", "--no-progress"
    done = command("update", fit, tmp_path / "second.csv", *more)
    assert done.returncode == 0, done.stderr
    assert "checked on all rows" in done.stdout


def curved(n_rows, seed):
    rng = np.random.default_rng(seed)
    x, z = rng.uniform(0, 10, n_rows), rng.normal(size=n_rows)
    p = 1 / (1 + np.exp(-(np.sin(x) + 0.5 * z)))
    return pandas.DataFrame({"x": x, "z": z, "y": (rng.random(n_rows) < p).astype(int)})


@pytest.mark.slow
def test_a_fit_with_a_smooth_is_updated_to_the_fit_of_all_rows():
    """Knots, scales and priors of the first fit stay: all rows are fitted with these."""
    old, new = curved(8_000, 0), curved(4_000, 1)
    options = {"family": "bernoulli", "progress": False}
    first = tallmc.fit("y ~ z + s(x)", old, **options)
    updated = first.update(new, old_rows=old, progress=False)
    encode = first.predictive.encode
    every = joined_rows(encode(old, response=True), encode(new, response=True))
    posterior = eqx.tree_at(lambda p: p.rows, fitted_posterior(first, old), every)
    together = tallmc.sample(posterior, seed=1, progress=False)
    assert_same_law(updated, together)
    curves = [each.with_posterior(posterior).smooth("s(x)") for each in (updated, together)]
    sd = curves[1]["sd"].to_numpy()
    moved = np.abs(curves[0]["mean"] - curves[1]["mean"]) / sd
    assert moved.max() < 4.6 * np.sqrt(2 / 1000)  # 1,000 effective draws of each
    assert np.mean(np.abs(first.smooth("s(x)")["mean"] - curves[1]["mean"]) / sd) > 0.2
