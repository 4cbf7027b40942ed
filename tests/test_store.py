"""A stored run has the draws of a run in memory, even if it is interrupted or extended."""

import dataclasses
import json
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import table_1
import tallmc
from problems import linear, logistic, slow_after
from tallmc._core.statistics import by_parameter, moments
from tallmc._engine.run import CallLength
from tallmc._store import StoreError, chunks, reader, writer
from tallmc._store.manifest import read_manifest
from tallmc._store.reader import open_store
from tallmc._store.setup import NotSerialisable, decode_method, encode_method
from tallmc.dynamics import Hamiltonian, Langevin, NoseHoover
from tallmc.gradient import SAGA, SVRG
from tallmc.schedule import Cyclical, Polynomial
from tallmc.subsample import Bandit

STRATA: Any = np.arange(12) % 3  # labels, to store a method that holds an array
RUNS = {
    "preferential": tallmc.methods.sgld_cv_ps(0.01, batch_size=3),
    "memories": tallmc.Method(
        dynamics=NoseHoover(2.0), gradient=SAGA(), subsample=Bandit(), batch_size=3, step_size=0.02
    ),
    "adaptive": tallmc.methods.asgld_cv(0.01),
    "mala": tallmc.methods.mala(0.05),
    "schedule": tallmc.methods.sgld(Polynomial(0.05, 10.0, 0.55), batch_size=3, replace=False),
    "cyclical": tallmc.methods.sgld(Cyclical(0.05, 20, 0.5), batch_size=3),
    "svrg-trajectories": tallmc.Method(
        dynamics=Hamiltonian(5, 0.5), gradient=SVRG(17), batch_size=3, step_size=0.1
    ),
    "carried-index": tallmc.methods.ewsg(0.02, batch_size=3, friction=4.0, carry=True),
    "corrected": tallmc.methods.cp_sghmc(0.02, batch_size=6, friction=4.0, strata=STRATA),
    "psgld": tallmc.methods.psgld(0.01, batch_size=3),
    "sgrld": tallmc.methods.sgrld(0.01, batch_size=3),
    "order-2": tallmc.Method(
        gradient=tallmc.gradient.ControlVariate(2), batch_size=3, step_size=0.01
    ),
}
SETTINGS = {"chains": 3, "n_draws": 700, "burn_in": 13, "thin": 2, "seed": 7}


@pytest.fixture(autouse=True)
def _many_blocks(monkeypatch):
    """Write a block after every call of the loop, so that a short run has many blocks."""
    monkeypatch.setattr(writer, "_SECONDS_PER_BLOCK", 0.0)
    monkeypatch.setattr(writer, "_SHARE_PER_BLOCK", 0.0)
    monkeypatch.setattr(CallLength, "next", lambda length, first: 60)


def stop_after(draws):
    def callback(progress):
        if progress.draws >= draws:
            raise KeyboardInterrupt

    return callback


def cut(posterior, method, store, after, **settings):
    with pytest.warns(tallmc.SamplingWarning, match="interrupted after"):
        return tallmc.sample(
            posterior, method, store=store, callback=stop_after(after), **SETTINGS | settings
        )


def assert_same(found, wanted):
    np.testing.assert_array_equal(found.positions, wanted.positions)
    assert set(found.sample_stats) == set(wanted.sample_stats)
    for name, values in wanted.sample_stats.items():
        np.testing.assert_array_equal(found.sample_stats[name], values)
    assert found.outcomes == wanted.outcomes
    assert found.n_row_evals == wanted.n_row_evals


FIRST = ("memories", "carried-index", "preferential", "schedule")
"""Chains whose state is memories of rows and momenta, the rows of a step, a position, a step."""


@pytest.mark.parametrize(
    "name", slow_after(2, [*FIRST, *(name for name in RUNS if name not in FIRST)])
)
def test_a_run_cut_twice_is_bitwise_the_run_that_was_not(name, tmp_path):
    posterior, method = linear(), RUNS[name]
    whole = tallmc.sample(posterior, method, **SETTINGS)
    part = cut(posterior, method, tmp_path / "run", 100)
    assert 100 <= part.positions.shape[1] < 700
    assert part.stopped_by == "Ctrl-C"
    with pytest.warns(tallmc.SamplingWarning, match="interrupted after"):
        tallmc.resume(tmp_path / "run", posterior, callback=stop_after(300))
    again = tallmc.resume(tmp_path / "run", posterior)
    assert_same(again, whole)
    assert_same(tallmc.load(tmp_path / "run"), whole)
    assert again.stopped_by is None
    assert open_store(tmp_path / "run").manifest.finished


def test_a_stored_run_is_bitwise_the_one_in_memory_and_is_read_without_its_posterior(tmp_path):
    posterior, method = linear(), RUNS["preferential"]
    stored = tallmc.sample(posterior, method, store=tmp_path / "run", **SETTINGS)
    assert_same(stored, tallmc.sample(posterior, method, **SETTINGS))
    loaded = tallmc.load(str(tmp_path / "run"))
    assert_same(loaded, stored)
    assert repr(loaded.settings["method"]) == repr(method)
    assert loaded.settings == {**stored.settings, "method": loaded.settings["method"]}
    assert loaded.summary().equals(stored.summary())
    np.testing.assert_array_equal(loaded.params["beta"], stored.params["beta"])


def test_extending_a_finished_run_is_bitwise_the_longer_run(tmp_path):
    posterior, method = linear(), RUNS["memories"]
    tallmc.sample(posterior, method, store=tmp_path / "run", **SETTINGS)
    extended = tallmc.resume(tmp_path / "run", posterior, n_draws=900)
    assert_same(extended, tallmc.sample(posterior, method, **SETTINGS | {"n_draws": 900}))
    assert_same(tallmc.resume(tmp_path / "run", posterior, n_draws=900), extended)
    with pytest.raises(tallmc.InvalidInput, match="be at least the number stored"):
        tallmc.resume(tmp_path / "run", posterior, n_draws=100)


@pytest.mark.slow
def test_a_run_until_enough_effective_draws_decides_alike_when_cut(tmp_path):
    posterior, method = linear(), tallmc.methods.mala(0.5)
    settings = {"chains": 3, "burn_in": 5, "ess": 900, "seed": 3}
    whole = tallmc.sample(posterior, method, **settings)
    assert whole.positions.shape[1] > 200
    with pytest.warns(tallmc.SamplingWarning, match="interrupted"):
        tallmc.sample(
            posterior, method, store=tmp_path / "run", callback=stop_after(250), **settings
        )
    assert_same(tallmc.resume(tmp_path / "run", posterior), whole)


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [200, 6000])
def test_the_automatic_choice_is_resumed_with_its_account(n_rows, tmp_path):
    posterior = logistic(n_rows=n_rows, dim=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = tallmc.sample(posterior, chains=4, n_draws=400, seed=1)
        tallmc.sample(
            posterior,
            chains=4,
            n_draws=400,
            seed=1,
            store=tmp_path / "run",
            callback=stop_after(100),
        )
        found = tallmc.resume(tmp_path / "run", posterior)
    assert_same(found, whole)
    loaded = tallmc.load(tmp_path / "run")
    for account in (found.account, loaded.account):
        assert account.reasons == whole.account.reasons
        assert account.exact == whole.account.exact == (n_rows == 200)
        if not account.exact:
            np.testing.assert_array_equal(account.bias.mean, whole.account.bias.mean)
    assert str(loaded.report) == str(whole.report)


def test_a_limit_ends_a_run_that_can_be_resumed_without_it(tmp_path):
    posterior, method = linear(), tallmc.methods.sgld(0.01, batch_size=3)
    part = tallmc.sample(posterior, method, store=tmp_path / "run", max_rows=2000, **SETTINGS)
    assert "rows" in part.stopped_by and part.positions.shape[1] < 700
    assert_same(
        tallmc.resume(tmp_path / "run", posterior), tallmc.sample(posterior, method, **SETTINGS)
    )


@pytest.mark.slow
def test_a_run_ended_before_its_first_draw_goes_on_from_its_burn_in(tmp_path):
    posterior, method = linear(), tallmc.methods.sgld(0.01, batch_size=3)
    settings = SETTINGS | {"burn_in": 5000, "n_draws": 20}

    def stop(progress):
        if progress.step > 300:
            raise KeyboardInterrupt

    with pytest.warns(tallmc.SamplingWarning, match="interrupted in step .* of the burn-in"):
        none = tallmc.sample(posterior, method, store=tmp_path / "run", callback=stop, **settings)
    assert none.positions.shape == (SETTINGS["chains"], 0, posterior.dim)
    assert none.stopped_by == "Ctrl-C"
    opened = open_store(tmp_path / "run")
    assert opened.manifest.n_draws == 0
    assert opened.snapshot().step > 0
    with pytest.raises(StoreError, match="have at least one draw"):
        tallmc.load(tmp_path / "run")
    assert_same(
        tallmc.resume(tmp_path / "run", posterior), tallmc.sample(posterior, method, **settings)
    )


def test_other_data_another_model_and_another_precision_are_refused(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)

    def model(scale=1.0, y=y):
        return tallmc.Posterior(
            log_likelihood=lambda theta, row: -0.5 * scale * (row["y"] - row["x"] @ theta) ** 2,
            log_prior=lambda theta: -0.5 * jnp.sum(theta**2),
            data={"x": x, "y": y},
            init=np.zeros(2),
        )

    tallmc.sample(
        model(),
        tallmc.methods.sgld(1e-4, batch_size=3),
        n_draws=20,
        chains=2,
        store=tmp_path / "run",
    )
    changed = y.copy()
    changed[17] += 1e-9
    with jax.enable_x64(False):
        single = model()
    for other in (model(y=changed), model(scale=1.1), single, linear()):
        with pytest.raises(StoreError, match="with the posterior it was started with"):
            tallmc.resume(tmp_path / "run", other)


def test_finished_foreign_and_unwritable_folders_are_refused_before_anything_is_computed(tmp_path):
    posterior, method = linear(), tallmc.methods.sgld(0.01, batch_size=3)
    tallmc.sample(posterior, method, n_draws=20, store=tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(
        StoreError, match=r"be a new folder; got one that holds a run.*tallmc\.resume"
    ):
        tallmc.sample(posterior, method, n_draws=20, store=tmp_path / "run")
    assert before == {
        file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()
    }
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(StoreError, match=r"be a new or empty folder; got one that holds cat\.jpg"):
        tallmc.sample(posterior, method, n_draws=20, store=tmp_path / "photos")
    with pytest.raises(StoreError, match="be a folder that can be written"):
        tallmc.sample(posterior, method, n_draws=20, store=tmp_path / "photos" / "cat.jpg")
    with pytest.raises(tallmc.InvalidInput, match="be the name of a folder"):
        tallmc.sample(posterior, method, n_draws=20, store=3)
    for folder in (tmp_path / "photos", tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="be the folder of a run"):
            tallmc.resume(folder, posterior)


def test_one_writer_at_a_time(tmp_path):
    posterior, refused = linear(), []

    def interfere(progress):
        if progress.is_preparing:
            return
        with pytest.raises(StoreError, match="have one writer"):
            tallmc.resume(tmp_path / "run", posterior)
        refused.append(progress)

    tallmc.sample(
        posterior,
        tallmc.methods.sgld(0.01, batch_size=3),
        n_draws=100,
        store=tmp_path / "run",
        callback=interfere,
    )
    assert refused


def test_other_versions_are_said(tmp_path):
    posterior = linear()
    cut(posterior, RUNS["mala"], tmp_path / "run", 100)
    setup = open_store(tmp_path / "run").setup
    setup.content["environment"]["jax"] = "0.0.1"
    written = writer.write_setup(tmp_path / "run", setup)
    manifest = dataclasses.replace(read_manifest(tmp_path / "run")[0], setup=written)
    writer.write_manifest(tmp_path / "run", manifest)
    with pytest.warns(tallmc.SamplingWarning, match=r"jax 0\.0\.1 then.*last bits"):
        tallmc.resume(tmp_path / "run", posterior)


def test_a_store_of_the_former_version_gives_its_draws_and_is_not_resumed(tmp_path):
    posterior, method = linear(), tallmc.methods.sgld(0.01, batch_size=3)
    draws = tallmc.sample(posterior, method, chains=2, n_draws=20, store=tmp_path / "run")
    setup = open_store(tmp_path / "run").setup
    setup.content["method"] = {"part": "FormerName", "fields": {"size": 3}}
    written = writer.write_setup(tmp_path / "run", setup)
    manifest = dataclasses.replace(read_manifest(tmp_path / "run")[0], setup=written, version=4)
    writer.write_manifest(tmp_path / "run", manifest)
    with pytest.raises(StoreError, match=r"be of version 5; got version 4.*tallmc\.load reads"):
        tallmc.resume(tmp_path / "run", posterior)
    np.testing.assert_array_equal(tallmc.load(tmp_path / "run").positions, draws.positions)


def test_a_failed_chain_is_stored_as_it_is_and_leaves_the_others_unchanged(tmp_path):
    start = np.zeros((3, 2))
    start[1] = 1e11
    posterior, method = linear(), tallmc.methods.sgld(0.01, batch_size=3)
    fine = tallmc.sample(posterior, method, **SETTINGS, start=np.zeros((3, 2)))
    with pytest.warns(tallmc.SamplingWarning, match="chain 1 at step 0"):
        spoilt = tallmc.sample(posterior, method, store=tmp_path / "run", **SETTINGS, start=start)
    others = np.arange(3) != 1
    np.testing.assert_array_equal(spoilt.positions[others], fine.positions[others])
    loaded = tallmc.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.ok, others)
    np.testing.assert_array_equal(loaded.positions[others], fine.positions[others])


def test_a_run_of_which_every_chain_failed_is_complete(tmp_path):
    with pytest.warns(tallmc.SamplingWarning, match="3 of 3 chains ran away"):
        ended = tallmc.sample(linear(), tallmc.methods.ula(5.0), store=tmp_path / "run", **SETTINGS)
    assert ended.positions.shape == (3, 700, 2)
    with pytest.warns(tallmc.SamplingWarning, match="3 of 3 chains ran away"):
        again = tallmc.resume(tmp_path / "run", linear(), n_draws=800)
    assert again.positions.shape == (3, 800, 2)
    np.testing.assert_array_equal(again.positions[:, :700], ended.positions)


class OwnLangevin(Langevin):
    """A part of the user's own class, which the store cannot describe."""


@pytest.mark.slow
def test_a_method_with_a_part_of_the_users_own_class_is_given_again(tmp_path):
    posterior = linear()
    method = tallmc.Method(dynamics=OwnLangevin(), batch_size=3, step_size=0.01)
    whole = tallmc.sample(posterior, method, **SETTINGS)
    cut(posterior, method, tmp_path / "run", after=300)
    with pytest.raises(tallmc.InvalidInput, match="method must be given again"):
        tallmc.resume(tmp_path / "run", posterior)
    assert_same(tallmc.resume(tmp_path / "run", posterior, method=method), whole)


@pytest.mark.slow
def test_other_lipschitz_constants_make_another_posterior(tmp_path):
    densities = (lambda mean, row: -jnp.sum((row - mean) ** 2), lambda mean: 0.0)
    data = np.arange(20.0).reshape(10, 2)
    first, other = (
        tallmc.Posterior(*densities, data, jnp.zeros(2), lipschitz=L) for L in (2.0, 3.0)
    )
    tallmc.sample(
        first, tallmc.methods.sgld(1e-3, batch_size=2), n_draws=20, chains=2, store=tmp_path / "run"
    )
    with pytest.raises(StoreError, match="another"):
        tallmc.resume(tmp_path / "run", other, n_draws=30)


@pytest.mark.slow
def test_a_method_with_functions_is_given_again(tmp_path):
    posterior = linear()
    method = tallmc.Method(
        dynamics=table_1.sghmc_recipe(2, friction=3.0), batch_size=3, step_size=0.01
    )
    whole = tallmc.sample(posterior, method, **SETTINGS)
    cut(posterior, method, tmp_path / "run", 100)
    with pytest.raises(
        tallmc.InvalidInput, match="method must be given again: the store cannot hold the function"
    ):
        tallmc.resume(tmp_path / "run", posterior)
    assert_same(tallmc.resume(tmp_path / "run", posterior, method=method), whole)
    with pytest.raises(NotSerialisable):
        encode_method(method)


@pytest.mark.parametrize("name", [*tallmc.methods.METHODS, *RUNS])
def test_every_named_method_is_data(name):
    method = (
        RUNS[name]
        if name in RUNS
        else tallmc.methods.METHODS[name].make(0.1, **tallmc.methods.METHODS[name].example)
    )
    content, arrays = encode_method(method)
    again = decode_method(json.loads(json.dumps(content)), arrays)
    assert repr(again) == repr(method)
    assert type(again) is type(method)


def test_large_draws_are_mapped_and_small_ones_are_not(tmp_path, monkeypatch):
    stored = tallmc.sample(linear(), RUNS["preferential"], store=tmp_path / "run", **SETTINGS)
    monkeypatch.setattr(reader, "_IN_MEMORY", 0)
    mapped = tallmc.load(tmp_path / "run")
    assert isinstance(mapped.positions, np.memmap)
    assert_same(mapped, stored)
    assert str(mapped.report) == str(stored.report)


@pytest.mark.slow
def test_a_large_state_is_kept_for_the_last_blocks_only(tmp_path):
    posterior = linear(n_rows=20_000)
    method = tallmc.methods.saga_ld(1e-6, batch_size=3)
    whole = tallmc.sample(posterior, method, **SETTINGS)
    cut(posterior, method, tmp_path / "run", 300)
    blocks = open_store(tmp_path / "run").manifest.blocks
    assert len(blocks) > 4
    states = sorted(file.name for file in (tmp_path / "run" / "blocks").glob("state-*"))
    assert states == sorted(f"state-{block.number:07}.npz" for block in blocks[-2:])
    assert_same(tallmc.resume(tmp_path / "run", posterior), whole)


def test_moments_and_parameters_in_pieces_are_those_of_the_whole(monkeypatch):
    from tallmc._core import statistics as pieces

    draws = np.random.default_rng(0).normal(3.0, 2.0, size=(3, 1000, 5)).astype(np.float32)
    monkeypatch.setattr(pieces, "_BYTES_AT_ONCE", 3000)
    found = moments(draws)
    exact = draws.astype(np.float64)
    np.testing.assert_allclose(found.mean, exact.mean(axis=(0, 1)), rtol=1e-12)
    np.testing.assert_allclose(found.sd, exact.std(axis=(0, 1)), rtol=1e-12)
    np.testing.assert_array_equal(found.extent, np.ptp(exact, axis=1))
    np.testing.assert_array_equal(
        by_parameter(lambda part: part.max(axis=(0, 1)), draws), exact.max(axis=(0, 1))
    )


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2048, pytest.param(2**23, marks=pytest.mark.slow)])
def test_the_finished_run_opens_in_xarray_and_arviz(tmp_path, chunk, monkeypatch):
    pytest.importorskip("zarr", reason="zarr is not installed")
    import arviz_stats
    import xarray as xr

    monkeypatch.setattr(chunks, "_CHUNK_BYTES", chunk)
    posterior = tallmc.Posterior(
        log_likelihood=lambda p, row: (
            -0.5 * (row["y"] - p["slope"] @ row["x"] - p["../intercept"]) ** 2
        ),
        log_prior=lambda p: -0.5 * (p["../intercept"] ** 2 + jnp.sum(p["slope"] ** 2)),
        data={"x": np.random.default_rng(0).normal(size=(50, 2)), "y": np.ones(50)},
        init={"../intercept": 0.0, "slope": np.zeros(2)},
        labels={"slope": ["age", "größe"]},
    )
    store = tmp_path / "run"
    draws = tallmc.sample(posterior, tallmc.methods.mala(0.01), chains=2, n_draws=300, store=store)
    for length in (300, 450):
        if length > 300:
            draws = tallmc.resume(tmp_path / "run", posterior, n_draws=length)
        tree = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr")
        np.testing.assert_array_equal(tree["posterior/slope"].values, draws.params["slope"])
        np.testing.assert_array_equal(
            tree["posterior/p_.._intercept"].values, draws.params["../intercept"]
        )
        assert tree["posterior/slope"].dims == ("chain", "draw", "slope_dim")
        assert list(tree["posterior/slope_dim"].values) == ["age", "größe"]
        for name, values in draws.sample_stats.items():
            np.testing.assert_array_equal(tree[f"sample_stats/{name}"].values, values)
        assert tree.attrs["completed"] == [True, True]
        assert len(arviz_stats.summary(tree)) == 3
    names = {
        str(file.relative_to(tmp_path / "run"))
        for file in (tmp_path / "run" / "draws.zarr").rglob("*")
        if file.is_file()
    }
    manifest = open_store(tmp_path / "run").manifest
    assert names == set(manifest.exported) | {
        f"draws.zarr/{name}" for name in manifest.series.chunk_names(450)
    }
    assert not list(tmp_path.rglob("*.tmp"))
    # The name "../intercept" creates no file outside the store.
    assert {file.name for file in tmp_path.iterdir()} == {"run"}


@pytest.mark.slow
def test_a_failed_chain_is_nan_in_the_export(tmp_path):
    pytest.importorskip("zarr", reason="zarr is not installed")
    import xarray as xr

    # Beyond 5 the log density grows without bound, so a chain that starts there diverges.
    posterior = tallmc.Posterior(
        log_likelihood=lambda theta, row: jnp.where(
            theta < 5, -0.5 * (theta - row) ** 2, 0.5 * theta**2
        ),
        log_prior=lambda theta: 0.0,
        data=np.linspace(0, 1, 10),
        init=0.5,
    )
    start = np.array([[0.5], [6.0]])
    with pytest.warns(tallmc.SamplingWarning, match="ran away"):
        draws = tallmc.sample(
            posterior,
            tallmc.methods.ula(0.1),
            chains=2,
            n_draws=300,
            burn_in=0,
            start=start,
            store=tmp_path / "run",
        )
    assert np.isfinite(draws.positions[1, :20]).all()
    for length in (300, 400):
        if length > 300:
            with pytest.warns(tallmc.SamplingWarning, match="ran away"):
                draws = tallmc.resume(tmp_path / "run", posterior, n_draws=length)
        theta = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr")[
            "posterior/theta"
        ].values
        assert theta.shape == (2, length) and np.isnan(theta[1]).all()
        np.testing.assert_array_equal(theta[0], draws.positions[0, :, 0])
        # The draws before the failure are kept.
        assert_same(tallmc.load(tmp_path / "run"), draws)


@pytest.mark.parametrize("chunk", slow_after(1, [2**15, 2**23]))
def test_draws_that_the_manifest_does_not_name_do_not_exist(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", chunk)
    posterior, method, run = linear(), RUNS["preferential"], tmp_path / "run"
    draws = tallmc.sample(posterior, method, store=run, **SETTINGS)
    before = (run / "manifest.json").read_bytes()
    tallmc.resume(run, posterior, n_draws=900)
    # As if the process had ended before it wrote the manifest.
    for name in ("manifest.json", "manifest.previous.json"):
        (run / name).write_bytes(before)
    assert_same(tallmc.load(run), draws)
    assert_same(tallmc.resume(run, posterior), draws)
    manifest = open_store(run).manifest
    for name, kind in manifest.series.arrays.items():
        files = [
            run / "draws.zarr" / found
            for found in manifest.series.chunk_names(700)
            if found.startswith(f"{name}/")
        ]
        assert sorted((run / "draws.zarr" / name).glob("c.*")) == sorted(files)
        length = min(manifest.series.chunk, 700)
        assert {file.stat().st_size for file in files} == {length * 3 * kind.bytes}
    assert_same(
        tallmc.resume(run, posterior, n_draws=900),
        tallmc.sample(posterior, method, **SETTINGS | {"n_draws": 900}),
    )
