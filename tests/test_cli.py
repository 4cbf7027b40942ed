"""The command line recovers posteriors, writes its files and refuses bad input with a message."""

import json
import os
import subprocess
import sys
import unicodedata

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from pyarrow import csv, parquet
from rich.console import Console

import tallmc
from problems import slow_after
from tallmc.cli import main
from tallmc.cli.output import print_coefficients
from tallmc.cli.run import Settings, make_plan
from tallmc.methods.registry import all_methods

METHODS = all_methods()
N_ROWS = 400
NAMES = ["Intercept", "age", "dose [mg]"]
SHORT = ["--noise-variance", 1, "--method", "mala", "--draws", 4]


def call(*arguments) -> str | int | None:
    """Run the command line and return its exit status."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def refused(capsys, *arguments) -> str:
    """Check that the command refuses its input with one line on stderr; return that line."""
    assert call(*arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("tallmc: ")
    assert message.count("\n") == 1
    return message


def in_new_process(*arguments, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(3)
    age, dose = rng.normal(50, 10, N_ROWS), rng.gamma(2, 100, N_ROWS)
    predictor = 0.3 + 0.04 * (age - 50) - 0.002 * (dose - 200)
    return {
        "age": age,
        "dose [mg]": dose,
        "bernoulli": (rng.random(N_ROWS) < 1 / (1 + np.exp(-predictor))).astype(int),
        "gaussian": predictor + rng.normal(size=N_ROWS),
        "poisson": rng.poisson(np.exp(predictor)),
    }


def write_table(folder, columns, family, kind="csv"):
    path = folder / f"{family}.{kind}"
    chosen = {name: columns[name] for name in ("age", "dose [mg]", family)}
    if kind == "csv":
        csv.write_csv(pa.table(chosen), path)
    elif kind == "parquet":
        parquet.write_table(pa.table(chosen), path)
    else:
        np.savez(path, **chosen)
    return path


def fit(path, family, out, *options, method="sgld_cv_ps") -> str | int | None:
    chosen = [] if method is None or "--method" in options else ["--method", method]
    return call("fit", path, "--response", family, "--family", family, "-o", out, *chosen, *options)


def standardised_posterior(columns, family):
    """The posterior of the command, with its default prior, in the units of the sampler."""
    x = np.stack(
        [
            np.ones(N_ROWS),
            *((columns[name] - columns[name].mean()) / columns[name].std() for name in NAMES[1:]),
        ],
        axis=1,
    )
    if family == "gaussian":
        y = (columns[family] - columns[family].mean()) / columns[family].std()
        return tallmc.models.linear_regression(x, y, 6.25)
    build = {
        "bernoulli": tallmc.models.logistic_regression,
        "poisson": tallmc.models.poisson_regression,
    }
    return build[family](x, columns[family], prior_variance=6.25)


def in_units_of_table(columns, family, draws):
    """Coefficients of the table's columns, and the noise, from draws in standardised units."""
    means, sds = (np.array([f(columns[name]) for name in NAMES[1:]]) for f in (np.mean, np.std))
    y = columns[family] if family == "gaussian" else np.array([-1.0, 1.0])
    found = draws.copy()
    found[:, 1:3] = draws[:, 1:3] / sds * y.std()
    found[:, 0] = y.mean() + y.std() * draws[:, 0] - found[:, 1:3] @ means
    found[:, 3:] = np.exp(draws[:, 3:]) * y.std()
    return found


def exact_moments(columns, family, n_draws=10_000):
    """Posterior mean, posterior sd and the standard error of the mean, by importance sampling.

    The proposal is a widened Laplace approximation. The mode is not a good enough reference: with a
    few hundred rows it differs from the mean by several Monte-Carlo errors.
    """
    posterior = standardised_posterior(columns, family)
    anchor = tallmc.anchor.find_anchor(posterior)
    noise = np.random.default_rng(0).normal(size=(n_draws, posterior.dim))
    draws = np.asarray(anchor.position) + 1.1 * noise @ np.asarray(anchor.factor).T
    potentials = np.asarray(jax.jit(jax.vmap(posterior.potential))(draws))
    log_weights = -potentials + 0.5 * (noise**2).sum(1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    draws = in_units_of_table(columns, family, draws)
    mean = weights @ draws
    sd = np.sqrt(weights @ (draws - mean) ** 2)
    return mean, sd, np.sqrt((weights**2) @ (draws - mean) ** 2)


_START = """
import contextlib, io, json, os, sys
import tallmc

report = {"caches": os.listdir(os.environ["XDG_CACHE_HOME"])}
report["with the package"] = sorted({"typer", "rich"} & set(sys.modules))
fit = ["fit", sys.argv[1], "--family", "bernoulli", "--response", "bernoulli", "-o", sys.argv[2]]
unwanted = {"pandas", "pyarrow", "matplotlib", "arviz_base", "xarray", "netCDF4"}

def end(*arguments):
    from tallmc.cli import main
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as ended:
            return ended.code, out.getvalue(), err.getvalue()

os.environ["TALLMC_CACHE"] = "off"
sys.modules["typer"] = None
report["typer"] = end(*fit)
del sys.modules["typer"]
report["version"] = end("--version")
import tallmc.cli.output, tallmc.cli.run
report["help"] = end("--help")
report["with the command"] = sorted(unwanted & set(sys.modules))
sys.modules["pyarrow"] = None
report["pyarrow"] = end(*fit)
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory, columns):
    """What a new process says that imports the package and starts the command."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "caches").mkdir()
    path = write_table(folder, columns, "bernoulli")
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "caches"), "TALLMC_CACHE": ""}
    done = in_new_process("-c", _START, path, folder / "out", env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_version(start):
    assert start["version"] == [0, f"tallmc {tallmc.__version__}\n", ""]


def test_imports_are_lazy(start):
    assert start["with the package"] == start["with the command"] == []
    assert "Usage: tallmc" in start["help"][1]


def test_the_import_of_the_package_writes_nothing_into_the_cache(start):
    assert start["caches"] == []


@pytest.mark.parametrize("package", ["typer", "pyarrow"])
def test_missing_packages_name_the_install(start, package):
    said = (
        f"tallmc: the command line needs {package}, which is not installed. "
        'Run: pip install "tallmc"; in a clone: pip install "."\n'
    )
    assert start[package] == [2, "", said]


def test_unexpected_errors_keep_their_traceback(monkeypatch):
    def broken(**_):
        raise ZeroDivisionError

    monkeypatch.setattr("tallmc.cli.methods.print_methods", broken)
    with pytest.raises(ZeroDivisionError):
        main(["methods"])


def test_methods_json_lists_exactly_the_methods(capsys):
    assert call("methods", "--json") == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["method"] for entry in entries] == list(METHODS)
    for entry, named in zip(entries, METHODS.values(), strict=True):
        assert entry == entry | named.axes
        assert entry["reference"] == named.reference
        assert entry["description"] == named.make.__doc__.splitlines()[0]


def test_methods_fit_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert call("methods") == 0
    out = capsys.readouterr().out
    shown = lambda line: sum(not unicodedata.combining(letter) for letter in line.rstrip())
    assert max(shown(line) for line in out.splitlines()) <= 80
    assert "…" not in out
    words = " ".join(out.split())
    for name, named in METHODS.items():
        description = named.make.__doc__.splitlines()[0]
        axes = " · ".join(named.axes.values())
        assert f"{name} {axes} {description} {named.reference}. " in words  # no name is broken


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(1, ["gaussian", "poisson", "bernoulli"]))
def test_fit_recovers_the_posterior(tmp_path, capsys, columns, family):
    status = fit(write_table(tmp_path, columns, family), family, tmp_path / "out", "--draws", 1000)
    out = capsys.readouterr().out
    assert status == 0, out
    summary = pd.read_csv(tmp_path / "out" / "summary.csv", index_col="coefficient")
    assert list(summary.index) == NAMES + ["sigma"] * (family == "gaussian")
    mean, sd, error = exact_moments(columns, family)
    z = (summary["mean"] - mean) / np.hypot(summary["mcse_mean"], error)
    assert np.abs(z).max() < 4.6, z
    # The planned step size inflates the sd of a direction by at most 2.6 %. Using 32 of 400 rows
    # inflates the sd by less than 1 %.
    assert (summary["sd"] > sd - 4.6 * summary["mcse_sd"]).all()
    assert (summary["sd"] < 1.04 * sd + 4.6 * summary["mcse_sd"]).all()
    assert summary["ess_bulk"].min() > 400
    assert "warning" not in out


@pytest.mark.slow
def test_every_format_gives_the_same_draws(tmp_path, columns):
    kinds = ("csv", "parquet", "npz")
    for name in kinds:
        assert (
            fit(
                write_table(tmp_path, columns, "gaussian", name),
                "gaussian",
                tmp_path / name,
                "--draws",
                50,
            )
            == 3
        )
    first, *others = (
        xr.open_datatree(tmp_path / name / "draws.nc").posterior.to_dataset() for name in kinds
    )
    assert list(first) == [*NAMES, "sigma"]
    for other in others:
        xr.testing.assert_identical(first.drop_attrs(), other.drop_attrs())


def test_fit_writes_files_that_say_what_they_hold(tmp_path, capsys, columns):
    out = tmp_path / "new" / "folder"
    options = [
        "--draws",
        60,
        "--chains",
        3,
        "--thin",
        2,
        "--burn-in",
        5,
        "--batch-size",
        10,
        "--seed",
        4,
        "--noise-variance",
        2,
    ]
    assert fit(write_table(tmp_path, columns, "gaussian"), "gaussian", out, *options) == 3
    assert {path.name for path in out.iterdir()} == {"draws.nc", "summary.csv", "fit.json"}
    printed = capsys.readouterr().out

    tree = xr.open_datatree(out / "draws.nc")
    assert list(tree.posterior) == NAMES
    for name in NAMES:
        assert tree.posterior[name].dims == ("chain", "draw")
        assert tree.posterior[name].shape == (3, 60)
        assert np.isfinite(tree.posterior[name]).all()
    assert tree.attrs["family"] == "gaussian" and tree.attrs["response"] == "gaussian"
    assert tree.attrs["outcomes"] == ["ok"] * 3
    assert (tree.sample_stats["batch_size"] == 10).all()
    assert (
        tree.attrs["n_row_evals"] == tree.attrs["n_row_evals_preparation"] + 3 * (5 + 60 * 2) * 10
    )
    passes, preparation = (
        tree.attrs[name] / N_ROWS for name in ("n_row_evals", "n_row_evals_preparation")
    )
    total = tree.attrs["n_row_evals"]
    assert (
        f"rows touched: {total:,} = {passes:.1f} passes over the data, "
        f"including {preparation:.1f} for preparation" in printed
    )

    content = json.loads((out / "fit.json").read_text())
    assert content["columns"] == NAMES
    for key, statistic, of_intercept in (("means", np.mean, 0.0), ("sds", np.std, 1.0)):
        expected = [of_intercept, *(statistic(columns[name]) for name in NAMES[1:])]
        assert content[key] == pytest.approx(expected, rel=1e-12)
        of_response = content["encoding"]["response"][key.removesuffix("s")]
        assert of_response == pytest.approx(statistic(columns["gaussian"]), rel=1e-12)
    model, description = content["model"], content["description"]
    assert (model["family"], model["noise_variance"]) == ("gaussian", 2.0)
    sd = 2.5 * columns["gaussian"].std() / columns["age"].std()
    assert f"age ~ normal({sd:.4g})" in description["prior"]
    given = {
        "method": "sgld_cv_ps",
        "batch_size": 10,
        "chains": 3,
        "n_draws": 60,
        "thin": 2,
        "burn_in": 5,
        "seed": 4,
    }
    assert {name: content["settings"][name] for name in given} == given
    data = standardised_posterior(columns, "gaussian").data
    noise = 2.0 / columns["gaussian"].var()
    posterior = tallmc.models.linear_regression(data.x, data.y, 6.25, noise_variance=noise)
    largest = np.linalg.eigvalsh(tallmc.anchor.find_anchor(posterior).hessian)[-1]
    assert content["settings"]["step_size"] == pytest.approx(0.2 / largest, rel=1e-5)

    for said in (
        "read: 400 rows, 2 columns",
        "method: sgld_cv_ps, step size",
        "10 rows per step, 3 chains of 60 draws",
        "dose [mg]",
    ):
        assert said in printed
    assert "Results are in the units of the table." in printed
    assert "\x1b" not in printed  # no progress bar and no colours without a terminal


OF_COUNTS = {"scir", "sgrld_simplex", "mmsb_scir", "mmsb_sgrld"}


@pytest.mark.parametrize(
    "method", slow_after(2, [name for name in METHODS if name not in OF_COUNTS])
)
def test_every_method_can_be_planned_from_the_command_line(columns, method):
    posterior = standardised_posterior(columns, "bernoulli")
    plan = make_plan(posterior, Settings(method=method))
    assert 0 < plan.suggested.step_size < np.inf and plan.suggested.thin >= 1
    assert plan.method.axes == METHODS[method].axes


@pytest.mark.parametrize("method", sorted(OF_COUNTS))
def test_methods_for_counts_are_refused_for_a_regression(columns, method):
    posterior = standardised_posterior(columns, "bernoulli")
    with pytest.raises(tallmc.InvalidInput, match="models of counts"):
        make_plan(posterior, Settings(method=method))


def test_exact_draws_from_the_command_line(columns):
    posterior = standardised_posterior(columns, "bernoulli")
    assert make_plan(posterior, Settings(exact=True)).method == tallmc.Automatic(exact=True)
    assert make_plan(posterior, Settings(method="mala", exact=True)).method.exact
    with pytest.raises(tallmc.InvalidInput, match="--exact must be left out, or come with"):
        make_plan(posterior, Settings(method="sgld", exact=True))


def test_the_command_passes_a_domain_to_a_method_that_has_one(columns):
    posterior = standardised_posterior(columns, "bernoulli")
    settings = Settings(method="projected_sgld", within="-0.5,inf", step_size=1e-3)
    within = make_plan(posterior, settings).method.dynamics.within
    assert (within.low, within.high) == (-0.5, np.inf)
    for wrong in ({"within": "1,0"}, {"within": "low"}):
        with pytest.raises(tallmc.InvalidInput, match="--within must be two numbers LOW,HIGH"):
            Settings(method="projected_sgld", **wrong)
    with pytest.raises(tallmc.InvalidInput, match="--within must be a setting of sgld"):
        make_plan(posterior, Settings(method="sgld", within="0,1"))
    with pytest.raises(tallmc.InvalidInput, match="--within must come with --method"):
        make_plan(posterior, Settings(within="0,1"))


# At least one method per kind of dynamics, and per setting that only some methods have.
RUN = [
    "cyclical_sgld",
    "asgld_cv_ps",
    "ewsg_vr",
    "flymc",
    "random_walk",
    "psgld",
    "sgrld",
    "sghmc_trajectories",
]


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_after(1, RUN))
def test_fit_runs_methods_of_every_kind(tmp_path, capsys, columns, method):
    options = ["--method", method, "--chains", 1, "--draws", 4, "--thin", 1, "--burn-in", 0]
    assert (
        fit(write_table(tmp_path, columns, "bernoulli"), "bernoulli", tmp_path / "out", *options)
        == 3
    )
    attributes = xr.open_datatree(tmp_path / "out" / "draws.nc").attrs
    # The count includes the rows read for the step size, even if the method needs no anchor.
    looked_at = tallmc.anchor.find_anchor(standardised_posterior(columns, "bernoulli")).n_row_evals
    assert attributes["n_row_evals_preparation"] >= looked_at
    assert f"method: {method}, step size" in capsys.readouterr().out


@pytest.mark.slow
def test_fit_without_a_method_chooses_one_and_says_how_wrong_it_may_be(tmp_path, capsys, columns):
    path = write_table(tmp_path, columns, "bernoulli")
    assert fit(path, "bernoulli", tmp_path / "out", method=None) == 0
    out = capsys.readouterr().out
    assert "method: chosen for these rows; pass --method to choose another" in out
    assert "chosen: 400 rows are few: every step uses all of them" in out
    assert "verdict: checked; nothing speaks against these draws" in out
    summary = pd.read_csv(tmp_path / "out" / "summary.csv", index_col="coefficient")
    assert summary["ess_bulk"].min() >= 1000
    mean, sd, error = exact_moments(columns, "bernoulli")
    assert np.abs((summary["mean"] - mean) / np.hypot(summary["mcse_mean"], error)).max() < 4.6
    assert np.abs((summary["sd"] - sd) / np.hypot(summary["mcse_sd"], error)).max() < 4.6
    settings = json.loads((tmp_path / "out" / "fit.json").read_text())["settings"]
    assert settings["method"] is None and settings["chains"] == 8 and settings["step_size"] > 0


def test_fit_ends_with_status_3_when_the_draws_should_not_be_trusted(tmp_path, capsys, columns):
    path = write_table(tmp_path, columns, "bernoulli")
    assert fit(path, "bernoulli", tmp_path / "out", "--draws", 10, method=None) == 3
    out = capsys.readouterr().out
    assert "effective draws for the worst parameter" in out
    assert "verdict: doubtful; do not trust these draws" in out
    assert (tmp_path / "out" / "draws.nc").exists()


@pytest.mark.slow
def test_fit_leaves_the_columns_as_they_are_when_asked(tmp_path, capsys, columns):
    options = ["--no-standardise", "--no-intercept", *SHORT]
    path = write_table(tmp_path, columns, "gaussian")
    assert fit(path, "gaussian", tmp_path / "out", *options) == 3
    content = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert content["columns"] == NAMES[1:]
    assert (content["means"], content["sds"]) == ([0.0, 0.0], [1.0, 1.0])
    assert content["description"]["scaling"] == "none"


@pytest.mark.slow
def test_fit_shows_progress_on_a_terminal(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert (
        fit(write_table(tmp_path, columns, "gaussian"), "gaussian", tmp_path / "out", "--draws", 50)
        == 3
    )
    assert "50 of 50 draws" in capsys.readouterr().err


@pytest.mark.slow
def test_fit_warns_of_too_few_draws_and_of_gradient_noise(tmp_path, capsys, columns):
    path = write_table(tmp_path, columns, "gaussian")
    assert fit(path, "gaussian", tmp_path / "short", "--draws", 10, "--thin", 1, "--chains", 2) == 3
    out = capsys.readouterr().out
    assert "the chains do not agree yet. Run longer." in out
    assert "effective draws for the worst parameter" in out
    noisy = ["--method", "sgld", "--batch-size", 2, "--step-size", 0.2 / 400, "--draws", 300]
    assert fit(path, "gaussian", tmp_path / "noisy", *noisy) == 3
    out = capsys.readouterr().out
    assert "doubt: step size and gradient noise shift posterior means" in out


@pytest.mark.slow
def test_fit_with_failed_chains_still_writes_the_draws(tmp_path, capsys, columns):
    path = write_table(tmp_path, columns, "gaussian")
    options = ["--step-size", 10, "--draws", 100, "--noise-variance", 1]
    assert fit(path, "gaussian", tmp_path / "out", *options) == 1
    out = capsys.readouterr().out
    assert "doubt: 4 of 4 chains ran away" in out
    assert "Make the step size smaller" in out
    assert "no chain completed, so there is no summary" in out
    tree = xr.open_datatree(tmp_path / "out" / "draws.nc")
    assert tree.attrs["outcomes"] == ["diverged"] * 4
    assert not (tmp_path / "out" / "summary.csv").exists()


def test_40_coefficients_are_shown_and_the_rest_counted(capsys):
    summary = pd.DataFrame({"mean": 1.0, "sd": 0.5}, index=[f"x{j}" for j in range(51)])
    print_coefficients(Console(), summary, {"mean": "mean"})
    out = capsys.readouterr().out
    assert "  x39 " in out
    assert "  x40 " not in out
    assert "11 more coefficients are in summary.csv" in out


def test_fit_does_not_replace_results_unasked(tmp_path, capsys, columns):
    path, out = write_table(tmp_path, columns, "gaussian"), tmp_path / "out"
    out.mkdir()
    (out / "draws.nc").write_text("precious")
    arguments = [
        "fit",
        path,
        "--family",
        "gaussian",
        "--response",
        "gaussian",
        "-o",
        out,
        "--draws",
        4,
        "--method",
        "sgld",
    ]
    assert "which has one. Pass --overwrite or another folder" in refused(capsys, *arguments)
    assert (out / "draws.nc").read_text() == "precious"
    assert call(*arguments, "--overwrite") == 3
    assert xr.open_datatree(out / "draws.nc").posterior["age"].shape == (4, 4)


@pytest.mark.slow
def test_the_unit_of_a_gaussian_response_does_not_matter(tmp_path, capsys, columns):
    """Prices of several hundred thousand give the right coefficients and standard deviations."""
    prices = columns | {"gaussian": 2e5 + 3e4 * columns["gaussian"]}
    path = write_table(tmp_path, prices, "gaussian")
    assert (
        fit(
            path,
            "gaussian",
            tmp_path / "out",
            "--draws",
            1000,
            "--method",
            "mala",
            "--step-size",
            0.002,
            "--thin",
            4,
        )
        == 0
    )
    table = pd.read_csv(tmp_path / "out" / "summary.csv", index_col=0)
    x = np.stack([np.ones(N_ROWS), columns["age"], columns["dose [mg]"]], axis=1)
    coefficients, squares, _, _ = np.linalg.lstsq(x, prices["gaussian"], rcond=None)
    errors = np.sqrt(squares[0] / (N_ROWS - 3) * np.diag(np.linalg.inv(x.T @ x)))
    for name, least_squares, error in zip(NAMES, coefficients, errors, strict=True):
        off = abs(table.loc[name, "mean"] - least_squares)
        assert off < 4.6 * table.loc[name, "mcse_mean"] + 0.01 * error
        assert abs(table.loc[name, "sd"] / error - 1) < 0.1
    # The posterior mean of σ is (2d + 3)/4N above that of the residuals, up to 1/N²; d is 3.
    off = table.loc["sigma", "mean"] / np.sqrt(squares[0] / N_ROWS) - 1
    mcse = table.loc["sigma", "mcse_mean"] / table.loc["sigma", "mean"]
    assert abs(off - 9 / (4 * N_ROWS)) < 4.6 * mcse + 1e-3


def test_fit_refuses_to_guess_the_noise_of_a_perfect_fit(tmp_path, capsys, columns):
    path = write_table(tmp_path, columns | {"gaussian": 2 * columns["age"]}, "gaussian")
    message = refused(
        capsys,
        "fit",
        path,
        "--family",
        "gaussian",
        "--response",
        "gaussian",
        "-o",
        tmp_path / "out",
    )
    assert "X and y must have noise and columns that float64 resolves" in message
    assert "If y is a function of the columns, pass noise_variance" in message


@pytest.mark.slow
def test_fit_refuses_a_column_named_like_the_noise(tmp_path, capsys):
    path = tmp_path / "table.csv"
    csv.write_csv(pa.table({"sigma": np.arange(9.0), "y": np.sin(np.arange(9.0))}), path)
    options = ["--family", "gaussian", "--response", "y", "-o", tmp_path / "out"]
    message = refused(capsys, "fit", path, *options)
    assert "columns must have a name other than 'sigma'" in message and "Rename" in message
    assert call("fit", path, *options, *SHORT) == 3  # accepted; four draws are too few


def test_fit_refuses_a_file_as_folder(tmp_path, capsys, columns):
    path = write_table(tmp_path, columns, "gaussian")
    message = refused(
        capsys, "fit", path, "--family", "gaussian", "--response", "gaussian", "-o", path
    )
    assert "--out must be a folder that exists or can be created" in message


@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        (
            "bernoulli",
            ["--method", "ula", "--batch-size", 5],
            "--batch-size must be left out with ula, which uses every row",
        ),
        (
            "bernoulli",
            ["--method", "asgld_cv", "--batch-size", 5],
            "left out with asgld_cv, which chooses its size",
        ),
        (
            "bernoulli",
            ["--method", "sgld", "--batch-size", 401],
            "--batch-size must be an int in [1, n_rows = 400]; got 401",
        ),
        ("bernoulli", ["--method", "nuts"], "--method must be one of sgld, sgld_cv, sgld_ps"),
        (
            "bernoulli",
            ["--noise-variance", 2],
            "--noise-variance must be left out unless the family is gaussian",
        ),
        (
            "bernoulli",
            ["--step-size", 0.1],
            "--step-size must come with --method; got 0.1. Without --method",
        ),
        (
            "bernoulli",
            ["--method", "sgld", "--step-size", 0],
            "--step-size must be a finite number and > 0; got 0.0",
        ),
        (
            "bernoulli",
            ["--prior", "normal(-1)"],
            "sd of --prior must be a finite number and > 0",
        ),
        ("bernoulli", ["--prior", "cauchy(1)"], "must be one of normal, student_t, laplace, horse"),
        ("bernoulli", ["--prior", "agee=normal(1)"], "name terms among Intercept, age, dose [mg]"),
        ("bernoulli", ["--family", "wald"], "--family must be one of bernoulli, binom"),
        ("bernoulli", ["--link", "cloglog"], "--link must be logit or probit for bernoulli"),
        ("bernoulli", ["--trials", "age"], "--trials must name a column for family bino"),
        ("bernoulli", ["--exposure", "age"], "be left out unless the family has the link log"),
        ("bernoulli", ["--weights", "dose"], "The columns are: age, dose [mg], bernoulli."),
        ("bernoulli", ["--level", "7"], "--level"),
        ("bernoulli", ["--separator", "##"], "--separator must be one character"),
        ("gaussian", ["--noise-variance", 0], "must be a finite number and > 0; got 0"),
        ("poisson", ["--method", "asgld_cv_ps"], "fixed size with --family poisson"),
        ("gaussian", ["--method", "asgld_cv"], "Use sgld_cv, or pass --noise-variance."),
    ],
)
def test_fit_refuses_settings_that_do_not_fit(tmp_path, capsys, columns, family, options, said):
    path = write_table(tmp_path, columns, family)
    assert said in refused(
        capsys,
        "fit",
        path,
        "--response",
        family,
        "--family",
        family,
        "-o",
        tmp_path / "out",
        *options,
    )


def test_fit_refuses_bad_tables_with_status_2(tmp_path, capsys, columns):
    path = write_table(tmp_path, columns, "bernoulli")
    out = ["-o", tmp_path / "out"]
    assert "does not exist" in refused(
        capsys, "fit", tmp_path / "no.csv", "--family", "bernoulli", *out
    )
    assert "The columns are: age, dose [mg], bernoulli." in refused(
        capsys, "fit", path, "--family", "bernoulli", *out
    )
    assert not (tmp_path / "out").exists()


def test_fit_turns_a_missing_mode_into_a_message(tmp_path, capsys, monkeypatch, columns):
    def lost(*_, **__):
        raise tallmc.PreparationError("no mode in sight")

    monkeypatch.setattr("tallmc.methods.suggestions.find_anchor", lost)
    path = write_table(tmp_path, columns, "gaussian")
    arguments = [
        "fit",
        path,
        "--family",
        "gaussian",
        "--response",
        "gaussian",
        "--method",
        "sgld",
        "-o",
        tmp_path / "out",
    ]
    assert refused(capsys, *arguments) == "tallmc: no mode in sight\n"


def test_help_documents_the_exit_statuses(capsys):
    for command in ("fit", "demo"):
        assert call(command, "--help") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert (
            "Exit status: 0 fine; 1 some chain failed; 2 bad input; "
            "3 the draws should not be trusted" in said
        )


@pytest.mark.slow
def test_demo_finds_the_truth_and_writes_its_files(tmp_path):
    """Run in a new process, which has the default precision, as users have."""
    code = "from tallmc.cli import main; main()"
    done = in_new_process("-c", code, "demo", "--rows", "20000", "-o", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "here"
    assert {path.name for path in out.iterdir()} == {"draws.nc", "summary.csv", "posterior.png"}
    assert (out / "posterior.png").read_bytes().startswith(b"\x89PNG")
    beta = xr.open_datatree(out / "draws.nc").posterior["beta"]
    assert beta.dims == ("chain", "draw", "beta_dim") and beta.shape[0] == 32
    assert beta.dtype == np.float32

    summary = pd.read_csv(out / "summary.csv", index_col="coefficient")
    assert summary["rhat"].max() <= 1.01
    assert summary["ess_bulk"].min() >= 1000
    assert "verdict: checked; nothing speaks against these draws" in done.stdout
    rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line.startswith(("  intercept ", "  x"))
    ]
    assert [row[0] for row in rows] == list(summary.index)
    true, mean, sd, z = np.array([row[1:5] for row in rows], float).T
    np.testing.assert_allclose(z, (mean - true) / sd, atol=0.02)
    assert np.abs(z).max() < 4.6
    assert (z**2).sum() < 20 + 4.6 * np.sqrt(40)
    assert "passes over the data" in done.stdout
    assert "saved: draws.nc, summary.csv, posterior.png in here" in done.stdout
