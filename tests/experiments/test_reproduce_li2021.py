"""The experiments on Li, Wang, Zha and Tao (2021): closed forms, counting, and small runs."""

import ast
from pathlib import Path

import numpy as np
import pytest

import tallmc
from experiments.li2021 import averages, fig1, fig4, fig5, fig6, gaussian
from experiments.li2021.ensemble import Ensemble
from experiments.li2021.steps import library_step
from experiments.li2021.table1 import PRINTED_STEPS, _predictive, methods
from experiments.results import ExperimentSetting

MODULES = sorted(Path(gaussian.__file__).parent.glob("*.py"))
NOT_OF_THE_PAPER = ("mala", "random_walk")
"""Methods whose step is a proposal, not the paper's h."""


def ignore(share):
    pass


def steps_in(tree: ast.Module) -> list[ast.expr]:
    """What every call of a method in a module passes as its step size."""
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tallmc.methods"
        for alias in node.names
    }
    calls = [
        (node.func.id, node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    first = [
        call.args[0] for name, call in calls if name in imported and name not in NOT_OF_THE_PAPER
    ]
    named = [
        keyword.value
        for name, call in calls
        if name == "Method"
        for keyword in call.keywords
        if keyword.arg == "step_size"
    ]
    return first + named


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_converts_h_by_the_one_function(path):
    for step in steps_in(ast.parse(path.read_text(encoding="utf-8"))):
        assert isinstance(step, ast.Call) and ast.unparse(step.func) == "library_step", (
            f"{path.name}:{step.lineno} passes {ast.unparse(step)}"
        )


def test_the_step_of_the_library_is_twice_h():
    assert library_step(5e-3) == 1e-2
    assert methods(PRINTED_STEPS)["EWSG"][0].step_size == 6e-3
    assert sum(len(steps_in(ast.parse(path.read_text(encoding="utf-8")))) for path in MODULES) > 15


def test_ewsg_of_figure_6_has_the_passes_of_the_paper():
    assert fig6.EWSG_STEPS * 2 * fig6.BATCH / fig6.N_ROWS == 1090
    assert fig6.ITERATIONS * fig6.BATCH / fig6.N_ROWS == 1090


def test_slowest_is_judged_relative_to_the_end():
    """A curve that ends at 0.0004 is within 0.05 of its end long before it stands still."""
    passes = np.arange(1.0, 31.0)
    kl = {label: np.full(30, 1.0) for label in ("SGLD", "pSGLD", "SGHMC", "EWSG")}
    kl["pSGLD"][:4] = 3.0
    kl["SVRG-LD"] = np.maximum(np.exp(-passes), 4e-4)
    paths = {label: [gaussian.KlPath(passes, of, 0.0, 0.0)] for label, of in kl.items()}
    claim = fig1._slowest(paths)
    assert claim.holds and "SVRG-LD 8.0" in claim.found and "pSGLD 5.0" in claim.found


def test_a_drifting_curve_does_not_stand_still():
    passes, sd = np.arange(40.0), np.full(40, 0.1)
    flat, drifting = np.zeros(40), -0.01 * passes
    assert fig5.Spread(passes, flat, sd, 1000).stands_still
    assert not fig5.Spread(passes, drifting, sd, 1000).stands_still


def test_steps_of_figure_5_last_three_times_the_slowest_relaxation(shared):
    problem = fig5.regression("pima", ExperimentSetting(shared / "data"))
    h = 2 * problem.friction / (problem.curvature * problem.posterior.n_rows)
    for share in fig5.SHARES:
        time = problem.steps(share) * share * h
        slowest = problem.friction / problem.smallest_curvature
        assert time == pytest.approx(3 * slowest, rel=1e-3)


@pytest.mark.parametrize("label", ["SGLD", "SGHMC"])
def test_divergences_are_those_of_the_linear_recursion(label):
    points, schedule = gaussian.centres(3), gaussian.compared()[label]
    found = gaussian.kl_path(schedule, points, chains=2000, passes=4, seed=0, share=ignore)
    h = gaussian.STEP_SIZES[label]
    exact = gaussian.exact_kl(label, points, h, steps=200)
    assert abs(found.end - exact) < 4.6 * found.error
    # Half the noise, as with a wrong step size convention, is told apart.
    assert abs(found.end - gaussian.exact_kl(label, points, h / 2, steps=200)) > 4.6 * found.error


def test_a_pass_counts_calls_of_gradients():
    steps = np.array([25, 50, 51])
    svrg = gaussian.compared()["SVRG-LD"]
    np.testing.assert_allclose(gaussian.weighted(0.05, 1).passes(steps), [1, 2, 2.04])
    np.testing.assert_allclose(svrg.passes(steps), [2, 3, 4.04])
    every, records = svrg.records(passes=30, per_pass=5)
    assert svrg.passes(np.array([every * records])) <= 30
    assert svrg.passes(np.array([every * (records + 1)])) > 30


def test_the_limit_of_averages_is_that_of_exact_sampling_for_short_and_long_times():
    # For T → 0 the average is one draw: Var ‖θ − c̄‖² = 4/50².
    assert averages.limit_of_small_steps(1e-4) == pytest.approx(4 / 50**2, rel=1e-3)
    # ∫ρ² for γ = 10 and curvature 50 is (1/50²)(3/20).
    long = averages.limit_of_small_steps(1e5) * 1e5
    assert long == pytest.approx(2 * 4 / 50**2 * 3 / 20, rel=1e-3)


def test_averages_have_the_exact_bias():
    points, h = gaussian.centres(0), 0.05
    errors = averages.average_errors(
        gaussian.weighted(h, 0), points, h, np.array([5.0, 50.0]), chains=200, seed=0, share=ignore
    )
    assert errors.shape == (2, 200)
    error = errors[1].std(ddof=1) / np.sqrt(200)
    assert abs(errors[1].mean() - averages.exact_bias(points, h)) < 4.6 * error
    assert errors[1].mean() > 20 * error


def test_pieces_are_the_positions(monkeypatch):
    monkeypatch.setattr("experiments.li2021.ensemble._FLOATS_PER_PIECE", 40)
    points = gaussian.centres(0)
    method = tallmc.methods.sgld(1e-2, 1)
    ensemble = Ensemble(gaussian.target(points), method, np.zeros((4, 2)), 3, seed=2)
    pieces = list(ensemble.pieces(12, ignore))
    assert [piece.shape[1] for piece in pieces] == [5, 5, 2]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), ensemble.positions(12, ignore))


def test_the_friction_of_appendix_f_is_unstable_at_the_papers_step():
    assert all(0.05 * fig4.corrected_friction(draw, 0.05) > 2 for draw in range(4))
    assert all(0.02 * fig4.corrected_friction(draw, 0.02) < 2 for draw in range(4))


def test_scores_are_those_of_the_mean_probability():
    signed_rows = np.array([[1.0, 0.0], [-2.0, 1.0], [0.5, 0.5]], np.float32)
    positions = np.array([[1.0, 2.0], [-3.0, 0.5]], np.float32)
    mean = (1 / (1 + np.exp(-signed_rows @ positions.T))).mean(axis=1)
    accuracy, log_likelihood = _predictive(signed_rows, positions)
    assert float(accuracy) == pytest.approx(np.mean(mean > 0.5))
    assert float(log_likelihood) == pytest.approx(np.log(mean).mean(), rel=1e-5)
