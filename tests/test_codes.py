"""Columns as codes: every product is that of the matrix, and so are the draws."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import slow_after
from tallmc._core.arrays import DenseMap, DiagonalMap
from tallmc._core.errors import InvalidInput
from tallmc._fit import encoding
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc._rows.law import Batch
from tallmc._rows.manifest import Column, RowManifest, RowStoreError
from tallmc._rows.shards import NpyShards
from tallmc._rows.writer import RowStoreWriter
from tallmc.methods.automatic import method as automatic
from tallmc.models import design, generalised_linear
from tallmc.models.design import (
    CodedColumns,
    Columns,
    GroupedObservations,
    GroupTerm,
    Observations,
    columns_of,
    matrix_of,
    observations,
)
from tallmc.models.model import block_hessian_of

N = 300


def _coded(seed=0, grouped=False):
    """A block with two factors between the numbers and, perhaps, a group term."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, 5, N), rng.integers(1, 4, N)], axis=1).astype(np.uint8)
    dense = np.column_stack([np.ones(N), rng.normal(size=N)])
    x = CodedColumns(jnp.asarray(dense), jnp.asarray(codes), (5, 4), (0, 5, 1, 2, 3, 4, 6, 7, 8))
    values = np.zeros((9, 7))
    values[:5, :4], values[5:, 4:] = rng.normal(size=(5, 4)), rng.normal(size=(4, 3))
    values = jnp.asarray(values)
    y = jnp.asarray(rng.integers(0, 3, N).astype(float))
    if not grouped:
        return Observations(x, y), values
    groups = rng.integers(0, 6, N), rng.normal(size=(N, 2))
    term = GroupTerm(jnp.asarray(groups[0]), jnp.asarray(groups[1]), 6)
    return GroupedObservations(x, y, None, None, (term,)), values


def _matrix(block, values):
    """The same columns, one by one."""
    x = block.fixed if isinstance(block, GroupedObservations) else block.x
    dense, codes = np.asarray(x.dense), np.asarray(x.codes).astype(int)
    table = np.asarray(values)
    columns = [dense, table[codes[:, 0], :4], table[5 + codes[:, 1], 4:]]
    matrix = np.empty((N, 9))
    matrix[:, list(x.places)] = np.concatenate(columns, axis=1)
    np.testing.assert_array_equal(x.matrix(values), matrix)
    for term in getattr(block, "terms", ()):
        member = np.eye(term.n_groups)[np.asarray(term.codes)]
        products = member[:, :, None] * np.asarray(term.columns)[:, None, :]
        matrix = np.column_stack([matrix, products.reshape(N, -1)])
    return matrix


@run_once
def _products(x: Columns, m, r, w, factor):
    scale = jnp.abs(m[:, 0])
    return {
        "vector": x @ m[:, 0],
        "matrix": x @ m,
        "sums": x.sums(r[:, 0]),
        "sums of columns": x.sums(r),
        "gram": x.gram(w),
        "norms": x.norms(),
        "leverages": x.squared() @ scale,
        "column squares": x.squared().sums(w),
        "metric": x.pulled(DenseMap(factor)),
        "diagonal metric": x.pulled(DiagonalMap(scale)),
        "dense": x.matrix(),
    }


@pytest.mark.parametrize("grouped", [False, True])
def test_every_product_of_codes_is_that_of_the_matrix(grouped):
    block, values = _coded(grouped=grouped)
    whole, rng = _matrix(block, values), np.random.default_rng(1)
    d = whole.shape[1]
    args = rng.normal(size=(d, 4)), rng.normal(size=(N, 4)), rng.normal(size=N)
    args = *map(jnp.asarray, args), jnp.asarray(rng.normal(size=(d, d)))
    found = _products(columns_of(block, values), *args)
    expected = _products(Columns(jnp.asarray(whole)), *args)
    assert columns_of(block, values).shape == (N, d)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(found["dense"], whole, rtol=1e-13, atol=1e-13)


def test_products_of_many_factors_gather_from_few_tables():
    rng, n_levels = np.random.default_rng(4), (9, 2, 40, 7, 3, 5)
    lists = design._together(n_levels, 60)
    assert sorted(k for factors in lists for k in factors) == list(range(6))
    assert len(lists) == 3 and all(np.prod([n_levels[k] for k in f]) <= 60 for f in lists)
    codes = np.column_stack([rng.integers(0, k, 8 * 60) for k in n_levels]).astype(np.uint8)
    values = jnp.asarray(rng.normal(size=(sum(n_levels), 11)))
    levels = design.Levels(jnp.asarray(codes), values, n_levels)
    m = rng.normal(size=(11, 3))
    starts = np.concatenate([[0], np.cumsum(n_levels)[:-1]])
    rows = np.asarray(values)[codes + starts].sum(axis=1)
    for product in (m, m[:, 0]):
        found = run_once(lambda levels, m: levels.times(m))(levels, jnp.asarray(product))
        np.testing.assert_allclose(found, rows @ product, rtol=1e-12, atol=1e-12)


def _table(n=400):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, k, n) for k in (6, 4))
    z = rng.normal(size=n)
    y = rng.poisson(np.exp(0.3 * z + 0.2 * (a == 2) - 0.3 * (b == 1)))
    text = {"a": np.array(list("uvwxyz"))[a], "b": np.array(list("klmn"))[b]}
    kind = np.array(["no", "one", "more"])[np.minimum(y, 2)]
    return {"y": y, "z": z, **text, "w": rng.uniform(1, 2, n), "o": z / 7, "k": kind}


FORMULAS = ["y ~ a + z + b", "y ~ 0 + b + a:b", "y ~ C(a, Treatment('w')) + z:a + (1 + z | b)"]


def _posteriors(monkeypatch, formula, **options):
    """The posterior of a formula with codes, and with a matrix."""
    monkeypatch.setattr(encoding, "FEWEST_NUMBERS", 0)
    model = RegressionModel(**{"family": "poisson", **options}, formula=formula)
    coded = regression_problem(_table(), model).posterior

    def matrix(self, raw, n_rows, dtype):
        return self.matrix(raw, n_rows, dtype), None

    monkeypatch.setattr(encoding.ScaledTerms, "coded", matrix)
    return coded, regression_problem(_table(), model).posterior


def _of_model(model, block, positions, order):
    """Everything that methods ask of a regression."""
    centre, weights = positions[0], jnp.linspace(0.5, 1, len(block.y))
    batch, metric = Batch(block, weights), DenseMap(jnp.diag(jnp.linspace(0.01, 0.02, model.dim)))
    counted = jnp.ones(len(block.y), bool)
    moves = positions[1:] - centre
    found = {
        "potentials": model.row_potentials(centre, block),
        "sums": jax.vmap(lambda at: model.sum_remainders(order, at, centre, batch))(positions),
        "sum": model.sum_remainders(0, centre, centre, batch),
        "hessian": block_hessian_of(block, counted, model, centre),
        "norms": model.norms(model.row_gradients(centre, block), block),
        "expanded": model.expand(model.row_gradients(centre, block), block),
    }
    if not model.regression().one_predictor:
        return found
    return found | {
        "changes": model.sum_of_changes(centre, moves, batch),
        "remainders": jax.vmap(
            lambda move: model.sum_of_remainders(centre, move[None], batch, True)
        )(moves),
        "sizes": model.series_sizes(centre, metric, moves, block),
        "cubic": model.third_derivatives(centre, metric, batch),
        "curvature": model.curvature_norms(centre, metric.factor, block),
    }


@pytest.mark.parametrize("formula", slow_after(1, FORMULAS))
def test_models_of_codes_and_of_a_matrix_agree(monkeypatch, formula):
    coded, plain = _posteriors(monkeypatch, formula, weights="w", offset="o")
    x = getattr(coded.rows.columns, "fixed", None)
    assert isinstance(coded.rows.columns.x if x is None else x, CodedColumns)
    np.testing.assert_allclose(coded.init, plain.init, rtol=1e-9, atol=1e-9)
    rng = np.random.default_rng(3)
    positions = jnp.asarray(0.1 * rng.normal(size=(3, coded.dim)))
    found, expected = (
        run_once(_of_model)(of.model, of.rows.columns, positions, 2) for of in (coded, plain)
    )
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9), found, expected
    )


def test_the_softmax_of_codes_and_of_a_matrix_agree(monkeypatch):
    coded, plain = _posteriors(monkeypatch, "k ~ a + z + b", family="categorical")
    positions = jnp.asarray(0.1 * np.random.default_rng(3).normal(size=(3, coded.dim)))
    found, expected = (
        run_once(_of_model)(of.model, of.rows.columns, positions, 2) for of in (coded, plain)
    )
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9), found, expected
    )


def test_few_rows_are_a_matrix():
    model = RegressionModel(family="poisson", formula=FORMULAS[0])
    x = regression_problem(_table(), model).posterior.rows.columns.x
    assert isinstance(x, jax.Array) and x.shape == (400, 10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_draws_of_codes_and_of_a_matrix_agree(monkeypatch):
    """With rows drawn by number, whose codes are gathered for each chain."""
    posteriors = _posteriors(monkeypatch, FORMULAS[0])
    method = tallmc.methods.sgld(1e-4, batch_size=20)
    coded, plain = (
        tallmc.sample(of, method, chains=2, n_draws=50, seed=1, progress=False) for of in posteriors
    )
    for name, values in plain.values.items():
        np.testing.assert_allclose(coded.values[name], values, rtol=1e-8, atol=1e-8, err_msg=name)
    simulated = [
        draws.with_posterior(of).posterior_predictive(of.rows.take(jnp.arange(20)), n_draws=10)
        for draws, of in zip((coded, plain), posteriors, strict=True)
    ]
    np.testing.assert_array_equal(*simulated)


def test_many_coefficients_of_codes_are_sampled_exactly_on_all_rows(monkeypatch):
    """Effects of two factors: rows are short, and the search for a mode would end in a spike."""
    for module in (automatic, generalised_linear):
        monkeypatch.setattr(module, "MOST_DENSE", 8)
    monkeypatch.setattr(automatic, "exact_plan", lambda *args: args)
    model = RegressionModel(family="poisson", formula="y ~ z + (1 | a) + (1 | b)")
    posterior = regression_problem(_table(), model).posterior
    assert posterior.width == posterior.rows.floats_per_row < posterior.dim == 14
    _, anchor, metric, _, why, *_ = tallmc.Automatic().prepare(posterior)
    assert why[0].startswith("the rows are codes, and 14 parameters are many")
    np.testing.assert_array_equal(anchor.position, posterior.init)

    @run_once
    def scales(model, block, at):
        squares = model.expand(model.row_gradients(at, block), block) ** 2
        prior = jax.jvp(model.prior_gradient, (at,), (jnp.ones_like(at),))[1]
        return 1 / jnp.sqrt(jnp.sum(squares, axis=0) + jnp.abs(prior))

    wanted = scales(posterior.model, posterior.rows.columns, posterior.init)
    np.testing.assert_allclose(metric.scale, wanted, rtol=1e-5)


# Row stores


TABLE = {name: values for name, values in _table().items() if name != "k"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codes") / "rows"
    tallmc.ingest(TABLE, folder, response="y", dtype="float64", progress=False)
    return folder


def _former(store, folder):
    """The store as a former version wrote it: one standardised indicator per level but one."""
    manifest = RowManifest.read(store)
    lines = np.concatenate([NpyShards(str(store)).array(0)])
    columns, parts = [], []
    for place, column in enumerate(manifest.columns):
        if column.source not in manifest.covariates:
            columns.append(column)
            parts.append(lines[:, place])
            continue
        category = manifest.covariates[column.source]
        for code, level in enumerate(category.levels[1:], start=1):
            share = category.shares[code]
            sd = np.sqrt(share * (1 - share))
            of_level = {"source": column.source, "level": level, "standardised": True}
            columns.append(Column(f"{column.name}={level}", mean=share, sd=sd, **of_level))
            parts.append(((lines[:, place] == code) - share) / sd)
    with RowStoreWriter(folder, columns, "float64", "y", categories=manifest.categories) as writer:
        writer.append(np.stack(parts, axis=1))
        writer.finish()
    content = json.loads((folder / "manifest.json").read_text())
    for category in content["categories"]:
        del category["shares"]
    (folder / "manifest.json").write_text(json.dumps({**content, "version": 2}))
    return folder


def _matrix_of(problem, rows):
    """The design in the units of the sampler."""
    return np.asarray(matrix_of(rows.columns.x, problem.posterior.model.level_values))


def _with_codes(monkeypatch, fewest=0):
    for module in (encoding, design):
        monkeypatch.setattr(module, "FEWEST_NUMBERS", fewest)


@pytest.mark.parametrize("formula", [*FORMULAS[:2], "y ~ z:a + a*b - z", None])
def test_rows_of_a_store_are_those_of_the_table(monkeypatch, store, tmp_path, formula):
    """Codes of factors and of their combinations, also in stores of a former version."""
    named = {"formula": formula} if formula else {"response": "y"}
    former = _former(store, tmp_path / "former")
    for fewest in (2**30, 0):
        _with_codes(monkeypatch, fewest)
        model = RegressionModel("poisson", **named)
        problem = regression_problem(TABLE, model)
        wanted = _matrix_of(problem, problem.posterior.rows)
        for folder in (store, former):
            found = regression_problem(folder, model)
            assert found.form.columns.names == problem.form.columns.names
            assert (found.posterior.model.level_values is None) == (fewest > 0)
            made = _matrix_of(found, found.posterior.rows.in_memory())
            np.testing.assert_allclose(made, wanted, rtol=1e-11, atol=1e-11)


def _problems(monkeypatch, formula, folder, **options):
    """A regression of correlated columns, in shards of 64 rows and in memory."""
    monkeypatch.setattr("tallmc._rows.writer.rows_per_shard", lambda *_: 64)
    rng = np.random.default_rng(6)
    age, n_rows = rng.normal(2000, 3, 400), 400
    old = np.where(age + rng.normal(size=n_rows) > 2001, "old", "young")
    size = np.where((rng.random(n_rows) < 0.4) ^ (old == "old"), "big", "small")
    dose = age - 1990 + rng.normal(size=n_rows)
    table = {"age": age, "dose": dose, "old": old, "size": size, "y": rng.integers(0, 5, n_rows)}
    tallmc.ingest(table, folder, response="y", dtype="float64", progress=False)
    model = RegressionModel("poisson", formula=formula, **options)
    return table, model, regression_problem(folder, model), regression_problem(table, model)


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ age*dose",
        "y ~ age:old",
        "y ~ old*size",
        "y ~ age*dose*old*size",
        "y ~ 0 + age:dose + old:size",
    ],
)
def test_interactions_of_a_store_have_the_scaling_and_the_prior_of_the_table(
    monkeypatch, tmp_path, formula
):
    """Of columns far from independent, and far from zero relative to their spread."""
    with jax.enable_x64(True):
        _, _, stored, resident = _problems(monkeypatch, formula, tmp_path / "rows")
        one, other = (problem.form.columns for problem in (stored, resident))
        assert one.names == other.names
        np.testing.assert_allclose(one.means, other.means, rtol=1e-11)
        np.testing.assert_allclose(one.sds, other.sds, rtol=1e-10)
        at = jnp.linspace(-1, 1, stored.posterior.dim)
        priors = [problem.posterior.model.prior_potential(at) for problem in (stored, resident)]
        np.testing.assert_allclose(*priors, rtol=1e-10)
        made = _matrix_of(stored, stored.posterior.rows.in_memory())
        wanted = _matrix_of(resident, resident.posterior.rows)
        np.testing.assert_allclose(made, wanted, rtol=1e-7, atol=1e-7)


def test_interactions_of_a_store_that_grows_keep_their_scaling(monkeypatch, tmp_path):
    """As single columns do: the fit goes on with the same design."""
    formula = "y ~ 0 + age:dose + old*size"
    table, model, stored, _ = _problems(monkeypatch, formula, tmp_path / "rows")
    encoder = stored.form
    before = encoder.view(tallmc.rows.open(tmp_path / "rows"))
    more = {**table, "dose": table["dose"] + 9}
    tallmc.ingest(more, tmp_path / "rows", append=True, progress=False)
    assert encoder.view(tallmc.rows.open(tmp_path / "rows")) == before
    anew = regression_problem(tmp_path / "rows", model)
    assert not np.array_equal(anew.form.columns.sds, stored.form.columns.sds)


def test_combinations_of_levels_that_no_row_has_are_refused_as_in_memory(tmp_path):
    table = {"a": list("uuvv") * 9, "b": list("stss") * 9, "y": list(range(4)) * 9}
    tallmc.ingest(table, tmp_path / "rows", response="y", progress=False)
    for data in (table, tmp_path / "rows"):
        with pytest.raises(InvalidInput, match=r"a\[T\.v\]:b\[T\.t\] \(0 in every row\)"):
            regression_problem(data, RegressionModel("poisson", formula="y ~ a*b"))


def test_regressions_of_rows_have_the_columns_of_levels(monkeypatch, store, tmp_path):
    """`logistic_regression(rows)` and the others, which have no formula."""
    matrices = []
    for folder in (store, _former(store, tmp_path / "former")):
        for fewest in (2**30, 0):
            _with_codes(monkeypatch, fewest)
            rows = tallmc.rows.open(folder)
            posterior = tallmc.models.poisson_regression(rows, response="y", prior_variance=9.0)
            x = posterior.rows.in_memory().columns.x
            matrices.append(np.asarray(matrix_of(x, posterior.model.level_values)))
    a = TABLE["a"] == "v"
    np.testing.assert_allclose(matrices[0][:, 2], (a - a.mean()) / a.std(), rtol=1e-12)
    assert matrices[0].shape == (400, 1 + 1 + 5 + 3 + 2)
    for matrix in matrices[1:]:
        np.testing.assert_allclose(matrix, matrices[0], rtol=1e-12, atol=1e-12)
    with pytest.raises(InvalidInput, match="name a column of numbers of the row store; got 'a'"):
        observations(tallmc.rows.open(store), "a")


def test_draws_from_a_store_are_those_from_memory(monkeypatch, store, tmp_path):
    _with_codes(monkeypatch)
    options = {"family": "poisson", "progress": False, "n_draws": 25, "seed": 4}
    stored, found = (tallmc.fit("y ~ z + a + b", data, **options) for data in (store, TABLE))
    np.testing.assert_allclose(stored.positions, found.positions, rtol=1e-9, atol=1e-9)
    stored.save(tmp_path / "fit")
    predicted = stored.predict(store, n_draws=8).mean
    of_file = tallmc.load(tmp_path / "fit").predict(store, n_draws=8).mean
    np.testing.assert_allclose(of_file, predicted, rtol=1e-9)
    np.testing.assert_allclose(predicted, found.predict(TABLE, n_draws=8).mean, rtol=1e-9)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda of: of["levels"].pop(), "'a' has 5 levels and 6 shares of rows"),
        (lambda of: (of["levels"].pop(), of["shares"].pop()), "'a' has 5 levels, codes up to 5"),
        (lambda of: of["levels"].__setitem__(0, "z"), "'a' has 6 levels and 6 shares"),
        (lambda of: of["shares"].__setitem__(0, 2.0), "'a' has 6 levels and 6 shares"),
        (lambda of: of.update(name="c"), "'c' has 6 levels, codes of ()"),
    ],
)
def test_a_damaged_manifest_of_codes_is_refused(store, tmp_path, damage, message):
    shutil.copytree(store, tmp_path / "rows")
    path = tmp_path / "rows" / "manifest.json"
    content = json.loads(path.read_text())
    damage(content["categories"][0])
    path.write_text(json.dumps(content))
    with pytest.raises(RowStoreError, match="have a readable manifest") as caught:
        tallmc.rows.open(tmp_path / "rows")
    assert message in str(caught.value)


def test_text_is_no_response_and_no_weight_of_a_store(store):
    for role, message in (
        ("response", "--response must hold numbers"),
        ("weights", "hold numbers"),
    ):
        model = RegressionModel("poisson", **{"response": "y", role: "a"})
        with pytest.raises(InvalidInput, match=message):
            regression_problem(store, model)


def test_levels_by_the_thousand_stay_codes(tmp_path):
    """Other columns of the store are fitted; levels are neither columns nor kept in mind."""
    n = 6000
    table = {"y": np.arange(n) % 2, "x": np.arange(n) % 7, "id": [f"i{k // 2}" for k in range(n)]}
    tallmc.ingest(table, tmp_path / "rows", response="y", progress=False)
    rows = tallmc.rows.open(tmp_path / "rows")
    found = rows.in_memory().columns["id"]
    levels = np.array(rows.shards.manifest.covariates["id"].levels)
    np.testing.assert_array_equal(levels[np.asarray(found, int)], table["id"])
    for formula, message in (("y ~ id", "1000 levels"), (None, "100 levels, as it holds text")):
        named = {"response": "y"} if formula is None else {"formula": formula}
        with pytest.raises(InvalidInput, match=f"'id' must have .*{message}; got 3000"):
            regression_problem(tmp_path / "rows", RegressionModel("bernoulli", **named))
    with pytest.raises(InvalidInput, match="'id' must have at most 1,000 levels; got '3,000'"):
        observations(rows)
    model = RegressionModel("bernoulli", formula="y ~ x")
    assert regression_problem(tmp_path / "rows", model).form.columns.names == ("Intercept", "x")
