"""The command with row stores: ingest, fit, workers, a cluster, resume, and Parquet in place."""

import contextlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from pyarrow import parquet

from tallmc._ingestion.parquet_shards import parquet_shards
from tallmc._rows.manifest import RowManifest
from tallmc.cli import main
from tallmc.cli.demo import Simulation, run_demo
from tallmc.cli.run import Settings

N_ROWS = 8000


class Done(NamedTuple):
    returncode: object
    stdout: str
    stderr: str


def command(*arguments) -> Done:
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    return Done(ended.value.code, out.getvalue(), err.getvalue())


def positions(folder):
    with xr.open_datatree(folder / "draws.nc") as tree:
        posterior = tree["posterior"].to_dataset()
        return np.stack([posterior[name].to_numpy() for name in posterior], axis=-1)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    age, income = rng.normal(40, 10, N_ROWS), rng.lognormal(size=N_ROWS)
    z = 0.1 * (age - 40) - 0.5 * np.log(income)
    bought = rng.random(N_ROWS) < 1 / (1 + np.exp(-z))
    columns = {"age": age, "income": income, "bought": bought.astype(int)}
    parquet.write_table(pa.table(columns), folder / "sales.parquet", row_group_size=3000)
    return folder / "sales.parquet"


@pytest.fixture(scope="module")
def store(table):
    out = table.parent / "rows"
    done = command("ingest", table, "-o", out, "--response", "bought")
    assert done.returncode == 0, done.stderr
    return out


FIT = ("--response", "bought", "--family", "bernoulli", "--draws", "60", "--chains", "4")


@pytest.fixture(scope="module")
def fitted(store):
    out = store.parent / "fit"
    done = command("fit", store, *FIT, "-o", out, "--store", store.parent / "run")
    assert done.returncode in (0, 3), done.stderr
    assert "opened: 8,000 rows, 2 columns and the response bought" in done.stdout
    return out


@pytest.mark.slow
def test_a_row_store_gives_the_fit_of_its_table(table, store, fitted):
    out = table.parent / "of-table"
    done = command("fit", table, *FIT, "-o", out)
    assert done.returncode in (0, 3), done.stderr
    of_store, of_table = (json.loads((f / "fit.json").read_text()) for f in (fitted, out))
    assert of_store["columns"] == of_table["columns"] == ["Intercept", "age", "income"]
    for key in ("means", "sds"):
        assert of_store[key] == pytest.approx(of_table[key], rel=1e-6)
    a, b = (positions(folder).reshape(-1, 3) for folder in (fitted, out))
    assert np.abs((a.mean(0) - b.mean(0)) / b.std(0)).max() < 0.6


@pytest.mark.slow
def test_worker_processes_change_no_draw(store, fitted):
    out = store.parent / "by-two"
    done = command("fit", store, *FIT, "--workers", "2", "-o", out)
    assert done.returncode in (0, 3), done.stderr
    np.testing.assert_array_equal(positions(out), positions(fitted))


def test_a_stored_run_is_resumed_from_its_row_store(store, fitted):
    out = store.parent / "resumed"
    done = command("resume", store.parent / "run", "--draws", "90", "-o", out)
    assert done.returncode in (0, 3), done.stderr
    np.testing.assert_array_equal(positions(out)[:, :60], positions(fitted))


@pytest.mark.slow
def test_parquet_in_place_gives_the_same_draws_and_says_that_it_is_slower(table, store, fitted):
    out = table.parent / "in-place"
    done = command("fit", table, *FIT, "--out-of-core", "-o", out)
    assert done.returncode in (0, 3), done.stderr
    assert "times as long as with a row store" in done.stdout
    assert "tallmc ingest" in done.stdout
    # The shards are other ones, so sums may differ in their last bits.
    off = np.abs(positions(out) - positions(fitted)) / positions(fitted).std(axis=(0, 1))
    assert off.max() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--no-standardise",), "row store whose columns are standardised"),
        (("--response", "sold"), "name a column"),
        (("--workers", "2", "--scheduler", "tcp://127.0.0.1:1"), "left out with --scheduler"),
    ],
)
def test_bad_options_are_refused(store, tmp_path, options, message):
    done = command("fit", store, *FIT, *options, "-o", tmp_path / "fit")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_workers_have_nothing_to_read_from_a_table(table, tmp_path):
    done = command("fit", table, *FIT, "--workers", "2", "-o", tmp_path / "fit")
    assert done.returncode == 2
    assert "in memory" in done.stderr


@pytest.mark.slow
def test_the_intercept_of_a_row_store_can_be_left_out(store, tmp_path):
    options = ("--no-intercept", "--method", "sgld", "--step-size", "1e-3")
    done = command("fit", store, *FIT, *options, "-o", tmp_path / "fit")
    assert done.returncode in (0, 3), done.stderr
    assert json.loads((tmp_path / "fit" / "fit.json").read_text())["columns"] == [
        "age",
        "income",
    ]


@pytest.mark.slow
def test_a_large_demo_is_fitted_from_a_row_store(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tallmc.cli.demo._LARGEST_IN_MEMORY", 1000)
    for said in ("takes 0.0 GB of disk space", "found:"):
        status = run_demo(
            rows=8000, columns=3, settings=Settings(n_draws=60, chains=4), out=tmp_path
        )
        assert status in (0, 3)
        assert said in " ".join(capsys.readouterr().out.split())
    assert RowManifest.read(tmp_path / "rows-8000-3-0").n_rows == 8000


def test_a_demo_without_room_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tallmc.cli.demo._LARGEST_IN_MEMORY", 1000)
    done = command("demo", "--rows", "100_000_000_000_000", "-o", tmp_path / "demo")
    assert done.returncode == 2
    assert "free space" in " ".join(done.stderr.split())
    assert not (tmp_path / "demo").exists()


def test_an_interrupted_simulation_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("tallmc.cli.demo._ROWS_PER_PIECE", 100)
    simulation = Simulation(1050, 3, seed=1)
    simulation.into_row_store(tmp_path / "whole")
    pieces = Simulation._pieces

    def few(self, done):
        for number, piece in enumerate(pieces(self, done)):
            if number == 7:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(Simulation, "_pieces", few)
    monkeypatch.setattr("tallmc._rows.writer.rows_per_shard", lambda *_: 256)
    with pytest.raises(KeyboardInterrupt):
        simulation.into_row_store(tmp_path / "cut")
    monkeypatch.setattr(Simulation, "_pieces", pieces)
    simulation.into_row_store(tmp_path / "cut")
    cut = [np.load(path) for path in sorted((tmp_path / "cut").glob("*.npy"))]
    whole = [np.load(path) for path in sorted((tmp_path / "whole").glob("*.npy"))]
    assert len(cut) == 5
    np.testing.assert_array_equal(np.concatenate(cut), np.concatenate(whole))


@pytest.mark.slow
def test_threads_that_read_parquet_in_place_do_not_disturb_each_other(table):
    shards = parquet_shards([table], "bought")
    numbers = [0, 1, 2] * 60
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(shards.array, numbers))
    for number, array in zip(numbers, read, strict=True):
        np.testing.assert_array_equal(array, shards.array(number))
