"""The experiments reproduce published data, closed forms and, in reduced form, figures."""

import json
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from experiments import synthetic
from experiments.__main__ import main
from experiments.chains import kernel_of, kernels, trace
from experiments.data import DATASETS, casp, data_folder, load, mnist, two_classes
from experiments.output import verdict_text
from experiments.putcha2023 import fig1, fig2a, fig4a
from experiments.putcha2023.discrepancy import KsdPath, as_run_path, prefixes, rows_to_reach
from experiments.putcha2023.methods import AsRun, burnt_in
from experiments.registry import EXPERIMENTS, experiment_named
from experiments.results import Claim, Curve, ExperimentSetting, Panel, Result, close, lower
from problems import linear, logistic, slow_after

QUIET = ExperimentSetting(None)


def ignore(share):
    """Progress callback that does nothing."""


def call(*arguments) -> str | int | None:
    """Run the command line and return its exit status."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


@pytest.fixture
def on_data(shared):
    return ExperimentSetting(shared / "data")


class TestData:
    def test_the_gaussian_rows_are_those_of_the_authors(self):
        mean, covariance = synthetic.conjugate_posterior(
            synthetic.bivariate(105, 10_000), synthetic.COVARIANCE, 1000.0
        )
        # The values are printed in the notebook of the authors.
        np.testing.assert_allclose(mean, [0.50156513, 5.19179439], rtol=0, atol=5e-9)
        np.testing.assert_allclose(covariance, [[9.866, 5.824], [5.824, 19.574]], rtol=0, atol=5e-4)

    def test_the_labels_are_those_of_the_authors(self):
        assert synthetic.classification(100, 1500, shares=(0.01, 0.99))[1].sum() == 988
        x, y = synthetic.classification(105, 15_000, flipped=0.3)
        assert x.shape == (10_000, 5)
        assert y.sum() == 4910

    def test_a_stratified_split_keeps_the_shares_of_the_classes(self):
        labels = np.repeat([0, 1], [703, 298])
        kept, held_out = synthetic.stratified_split(labels, 250, seed=0)
        assert sorted([*kept, *held_out]) == list(range(1001))
        assert np.bincount(labels[held_out]).tolist() == [176, 74]

    def test_casp_is_standardised_with_its_response(self, shared):
        x, y = casp(shared / "data")
        assert x.shape == (45_730, 10)
        np.testing.assert_allclose([x[:, 1:].mean(), y.mean()], 0, atol=1e-12)
        np.testing.assert_allclose([*x[:, 1:].std(axis=0), y.std()], 1)

    def test_images_are_between_zero_and_one_and_the_split_is_the_published_one(self, shared):
        split = mnist(shared / "data")
        assert split.X.shape == (60_000, 784) and split.X_held_out.shape == (10_000, 784)
        assert split.X.min() == 0 and split.X.max() == 1
        assert np.bincount(split.y_held_out).tolist()[:3] == [980, 1135, 1032]

    @pytest.mark.parametrize(("name", "shape"), [("pima", (768, 9)), ("parkinsons", (195, 23))])
    def test_small_tables_are_standardised_with_an_intercept(self, shared, name, shape):
        x, y = two_classes(name, shared / "data")
        assert x.shape == shape and set(y) == {0, 1}
        np.testing.assert_array_equal(x[:, 0], 1)
        np.testing.assert_allclose(x[:, 1:].std(axis=0), 1)

    def test_missing_data_are_refused_with_source_and_cure(self, tmp_path):
        with pytest.raises(
            tallmc.InvalidInput, match=r"include casp.npz.*UCI.*savez_compressed.*--data"
        ):
            load("casp", tmp_path)

    def test_a_file_without_its_arrays_is_refused(self, tmp_path):
        np.savez(tmp_path / "casp.npz", X=np.zeros((2, 9)))
        with pytest.raises(tallmc.InvalidInput, match=r"casp.npz must hold .* got 'no y'|no y"):
            load("casp", tmp_path)

    def test_the_folder_is_the_one_given_then_that_of_the_environment(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TALLMC_DATA", str(tmp_path))
        assert data_folder() == tmp_path
        assert data_folder(tmp_path.parent) == tmp_path.parent
        with pytest.raises(tallmc.InvalidInput, match="--data must name a folder"):
            data_folder(tmp_path / "nowhere")


class TestChains:
    def test_recorded_gradients_are_those_one_step_behind(self):
        posterior = linear(n_rows=8)
        start = np.array([[0.3, -0.2], [1.0, 1.0]])
        found = trace(
            [kernel_of(tallmc.methods.ula(step_size=0.01), posterior)] * 2,
            start,
            20,
            burn_in=3,
            seed=0,
            share=ignore,
        )
        assert found.positions.shape == found.gradients.shape == (2, 20, 2)
        for positions, gradients in zip(found.positions, found.gradients, strict=True):
            exact = [posterior.gradient(jnp.asarray(position)) for position in positions[:-1]]
            np.testing.assert_allclose(gradients[1:], exact, rtol=1e-12)

    def test_a_chain_is_the_same_beside_others_with_other_anchors(self):
        posterior = logistic(n_rows=40)
        anchors = [
            tallmc.anchor.find_anchor(posterior, at={"beta": jnp.asarray(at)})
            for at in ([0.0, 0.1], [0.5, -0.3])
        ]
        starts = np.array([anchor.position for anchor in anchors])
        method = tallmc.methods.sgld_cv_ps(step_size=1e-2, batch_size=4)
        together = trace(kernels(method, posterior, anchors), starts, 30, seed=5, share=ignore)
        alone = trace(
            kernels(method, posterior, [anchors[0]] * 2), starts, 30, seed=5, share=ignore
        )
        np.testing.assert_allclose(together.positions[0], alone.positions[0], rtol=1e-12)
        # The anchor affects the chain.
        assert np.abs(together.positions[1] - alone.positions[1]).max() > 1e-6

    def test_the_adaptive_size_as_run_has_no_lipschitz_constant_in_it(self):
        posterior = logistic(n_rows=2000)
        run = AsRun(QUIET, posterior, 1e-3, 20, 2, 3, [tallmc.anchor.find_anchor(posterior)] * 2)
        pilot = run.fixed("SGLD-CV-PS")
        mode = np.asarray(run.anchors[0].position)
        squares = np.sum((pilot.positions - mode) ** 2, axis=2)
        largest = max(np.quantile([0, *of_chain], 0.95) for of_chain in squares)
        found = run.adaptive("SGLD-CV-PS", pilot)
        before = np.sum((found.positions[:, :-1] - mode) ** 2, axis=2)
        np.testing.assert_array_equal(found.sizes[:, 0], 1)
        expected = np.clip(np.ceil(20 / largest * before), 1, 2000)
        # Rounding errors next to a whole number can change the size by one.
        assert np.mean(found.sizes[:, 1:] == expected) > 0.999

    def test_the_ksd_as_run_is_that_of_the_library_with_the_sign_flipped(self):
        posterior = linear(n_rows=8)
        found = trace(
            [kernel_of(tallmc.methods.ula(step_size=0.01), posterior)],
            np.zeros((1, 2)),
            60,
            seed=0,
            share=ignore,
        )
        path = as_run_path(found, prefixes(60, every=20), ignore)
        direct = tallmc.diagnose.ksd(
            found.positions[0, :19], found.gradients[0, :19], flipped_sign=True
        )
        assert path.log_ksd[0, 0] == pytest.approx(np.log10(direct), rel=1e-10)


class TestFigure1:
    @pytest.mark.parametrize("key", slow_after(1, ["a", "c", "b"]))
    def test_closed_forms_are_those_of_an_independent_calculation(self, key):
        exact = fig1.exact_at_10(fig1.problem_as_run(key))
        for label, value in fig1.EXACT_AT_10[key].items():
            assert exact[label].mean() == pytest.approx(value, rel=0.01)

    @pytest.mark.parametrize(
        "label", slow_after(1, ["SGLD-CV-PS Frobenius", "SGLD-CV WR", "SGLD-CV WOR"])
    )
    def test_simulated_curves_pass_through_the_published_table(self, label):
        # Published for n/N = 0.01.
        published = {"SGLD-CV WR": 806.2, "SGLD-CV WOR": 793.2, "SGLD-CV-PS Frobenius": 541.7}
        problem = fig1.problem_as_run("b")
        exact = fig1.exact_at_10(problem)[label]
        error = fig1.standard_errors(problem, label, exact, (10,))
        simulated = fig1.simulated_at(problem, label, (10,), QUIET)
        assert np.abs(simulated - exact.mean()) < 4.6 * error
        assert np.abs(simulated - published[label]) < 4.6 * np.sqrt(2) * error

    def test_weights_of_the_paper_and_of_its_code_can_be_told_apart(self):
        exact = fig1.exact_at_10(fig1.problem_as_run("b"))
        assert exact["SGLD-CV-PS Frobenius"].mean() > 1.05 * exact["SGLD-CV-PS"].mean()


class TestFigure2a:
    def test_uniform_subsamples_have_no_second_moment(self, on_data):
        radii = fig2a.second_moment_radii(fig2a.posterior(on_data))
        assert radii["SGLD"] == radii["SGLD-CV"] == pytest.approx(1.58, abs=0.005)
        assert radii["SGLD-PS"] < 1
        assert radii["SGLD-CV-PS"] < 1

    def test_discrepancies_as_run_are_those_published(self, on_data):
        target = fig2a.posterior(on_data)
        run = AsRun.prepared(on_data, target, step_size=fig2a.STEP_SIZE, size=fig2a.SIZE, chains=2)
        assert run.path("SGLD-PS", run.fixed("SGLD-PS")).end == pytest.approx(3.09, abs=0.1)
        assert run.path("SGLD-CV-PS", run.fixed("SGLD-CV-PS")).end == pytest.approx(1.44, abs=0.15)


class TestFigure4a:
    def test_divergences_as_run_are_those_published(self):
        x = synthetic.bivariate(105, fig4a.N_ROWS)
        target = tallmc.models.gaussian(
            x, fig4a.MODEL_COVARIANCE, np.zeros(2), fig4a.MODEL_PRIOR * np.eye(2)
        )
        starts = np.sqrt(fig4a.STATED_PRIOR) * np.random.default_rng(0).standard_normal((2, 2))
        traces = burnt_in(
            QUIET, target, starts, per_cent=10, passes=500, step_size=fig4a.STEP_SIZE, seed=1
        )
        for label, found in traces.items():
            divergence = fig4a.kl_paths(found.positions, x, per_pass=10)[:, -1].mean()
            assert divergence == pytest.approx(fig4a.TARGETS[label, 10], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant"),
    [(name, way) for name, experiment in EXPERIMENTS.items() for way in experiment.variants],
)
def test_every_experiment_holds_in_its_reduced_form(name, variant, shared):
    result = EXPERIMENTS[name].run(variant, ExperimentSetting(shared / "data", quick=True))
    failed = [claim for claim in result.claims if claim.required and not claim.holds]
    assert not failed


class TestVerdict:
    def test_a_claim_fails_outside_its_tolerance(self):
        assert close("x", 1.09, 1.0, 0.1).holds
        assert not close("x", 1.11, 1.0, 0.1).holds

    def test_lower_wants_two_standard_errors_chain_by_chain(self):
        worse = np.array([1.0, 5.0, 9.0])
        assert lower("x", worse - 0.1, worse).holds
        assert not lower("x", worse + np.array([-0.5, 0.4, 0.0]), worse).holds

    def test_rows_to_reach_a_level_are_counted_from_where_it_is_kept(self):
        steps, rows = np.arange(1, 5), np.array([10.0, 20.0, 30.0, 40.0])
        table = rows_to_reach(
            {
                "a": KsdPath(steps, np.array([[3.0, 1.0, 2.0, 0.5]]), rows),
                "b": KsdPath(steps, np.full((1, 4), 2.0), rows),
            }
        )
        assert table.rows[0][2] == "20"  # returns to the level 2, but does not exceed it
        assert table.rows[1][-1] == "never"

    def test_a_failed_claim_is_marked(self):
        result = Result([], [], [Claim("it rains", "yes", "no", holds=False)])
        assert not result.holds
        assert "| it rains | yes | no | **no** |" in verdict_text("name", "title", "run", result)


class TestCommand:
    @pytest.fixture
    def failing(self, monkeypatch):
        """An experiment with one claim that does not hold."""
        x = np.linspace(0, 1, 5)
        result = Result(
            [Panel("a", "t", "x", "y")],
            [Curve("a", "line", x, x**2, sd=x)],
            [Claim("it rains", "yes", "no", holds=False)],
        )
        experiment = type(EXPERIMENTS["putcha2023-fig3"])
        monkeypatch.setattr(experiment, "run", lambda self, variant, setting: result)

    @pytest.mark.smoke
    def test_an_experiment_runs_to_its_verdict(self, tmp_path, capsys):
        assert call("li2021-theorem41", "--quick", "--check", "-o", tmp_path) == 0
        assert "holds" in capsys.readouterr().out
        assert any(path.suffix == ".png" for path in tmp_path.iterdir())

    def test_check_fails_when_a_claim_does_not_hold(self, failing, tmp_path, capsys):
        assert call("putcha2023-fig3", "--as", "run", "-o", tmp_path) == 0
        assert call("putcha2023-fig3", "--as", "run", "-o", tmp_path, "--check") == 1
        stem = "putcha2023-fig3-as-run"
        assert {path.name for path in tmp_path.iterdir()} == {
            f"{stem}.{end}" for end in ("csv", "png", "md", "json")
        }
        verdict = json.loads((tmp_path / f"{stem}.json").read_text())
        assert verdict["holds"] is False
        assert verdict["origin"]["command"] == "python -m experiments putcha2023-fig3 --as run"
        text = (tmp_path / f"{stem}.md").read_text()
        assert all(str(verdict["origin"][key]) in text for key in ("command", "date", "revision"))
        assert (tmp_path / f"{stem}.csv").read_text().splitlines()[1] == "a,line,line,0,0,0"

    def test_every_experiment_is_listed(self, capsys):
        assert call("--list") == 0
        listed = capsys.readouterr().out
        assert all(name in listed for name in EXPERIMENTS)
        words = " ".join(listed.split())
        # The last sentence names two cores, too.
        assert words.count("on two cores") + words.count("on one H200 GPU") == len(EXPERIMENTS) + 1

    def test_a_panel_runs_its_figure(self):
        assert experiment_named("putcha2023-fig3b")[0] == "putcha2023-fig3"
        assert experiment_named("putcha2023-fig2b-ii")[0] == "putcha2023-fig2b"

    def test_a_way_that_an_experiment_does_not_have_is_refused(self, capsys, tmp_path):
        assert call("putcha2023-fig3", "--as", "works", "-o", tmp_path) == 2
        assert "--as must be one of run, meant" in capsys.readouterr().err

    def test_a_missing_package_is_named_before_the_work(self, monkeypatch, capsys, tmp_path):
        monkeypatch.setitem(sys.modules, "numpyro", None)
        assert call("nemeth2021-table2", "-o", tmp_path) != 0
        assert "pip install 'tallmc[numpyro]'" in capsys.readouterr().err.replace('"', "'")

    def test_an_unknown_name_is_refused(self, capsys):
        assert call("putcha2023-fig9") == 2
        assert "See python -m experiments --list" in capsys.readouterr().err

    def test_data_not_found_come_with_a_source(self, tmp_path, capsys):
        assert call("--datasets", "--data", tmp_path) == 0
        shown = capsys.readouterr().out
        assert shown.count("not found") == len(DATASETS)
        assert "UCI" in shown and "savez_compressed" in shown
        assert call("putcha2023-fig2a", "--data", tmp_path, "-o", tmp_path / "out") == 2
        assert "casp.npz" in capsys.readouterr().err


class TestPages:
    """The pages of the documents: one vocabulary of verdicts, and the run behind every number."""

    PAGES = Path(__file__).resolve().parents[2] / "docs" / "reproduction"
    VERDICTS = re.compile(
        r"\*\*(holds|holds with other settings|cannot be run as stated|does not hold)\*\*"
    )

    def rows(self, page: str, heading: str) -> list[list[str]]:
        """The cells of the table under a heading, without its first two lines."""
        text = (self.PAGES / page).read_text(encoding="utf-8").split(f"{heading}\n")[1]
        lines = re.findall(r"^\|.*$", text, flags=re.MULTILINE)[2:]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    def test_every_verdict_is_one_of_four(self):
        rows = self.rows("index.md", "# What holds")
        assert all(self.VERDICTS.match(verdict) for *_, verdict in rows)
        for page in ("putcha2023", "li2021", "nemeth2021", "poster"):
            assert any(f"({page}.md)" in document for document, *_ in rows)

    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_the_run_of_every_experiment_is_on_its_page(self, name):
        page = f"{name.split('-')[0].replace('talk', 'poster')}.md"
        runs = [row for row in self.rows(page, "## Runs") if f" {name} " in row[0]]
        assert runs
        for _, date, revision, machine in runs:
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
            assert re.fullmatch(r"[0-9a-f]{7}", revision)
            assert machine
