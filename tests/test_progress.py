"""Progress reports match the run, displays fit their output, and no display stops a run."""

import dataclasses
import io
import itertools
import sys
import types
import warnings

import numpy as np
import pytest
from rich.console import Console

import tallmc
from problems import linear
from tallmc._engine import run as facts
from tallmc._engine.run import CallLength
from tallmc.results import display as live
from tallmc.results import display as show
from tallmc.results.display import bar, line
from tallmc.subsample import TargetNoise

SETTINGS = {"chains": 3, "n_draws": 800, "burn_in": 13, "seed": 7}
METHOD = tallmc.Method(batch_size=TargetNoise(4, 0.5), step_size=0.01)


@pytest.fixture(autouse=True, scope="module")
def _short_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallLength, "next", lambda length, first: 60)
        yield


def run(**settings):
    return tallmc.sample(linear(), METHOD, **SETTINGS | settings)


@pytest.fixture(scope="module")
def heard(_short_blocks):
    found = []
    draws = run(callback=lambda now: None if now.is_preparing else found.append(now))
    return draws, found


@pytest.mark.slow
def test_facts_are_those_of_the_run(heard):
    draws, found = heard
    last = found[-1]
    assert len(found) > 10
    assert (last.draws, last.step, last.n_steps) == (800, 813, 813)
    assert last.n_row_evals == draws.n_row_evals_sampling
    assert last.passes == pytest.approx(last.n_row_evals / 12)
    assert last.steps_per_second == pytest.approx(813 / last.seconds, rel=1e-6)
    assert last.seconds_left == 0
    assert (last.stage, last.ended) == ("finished", True)
    assert {(now.stage, now.ended) for now in found[:-1]} == {("sampling", False)}
    assert all(
        before.n_row_evals < after.n_row_evals for before, after in itertools.pairwise(found[:-1])
    )
    middle = found[len(found) // 2]
    assert middle.seconds_left == pytest.approx((813 - middle.step) / middle.steps_per_second)
    for chain, now in enumerate(last.chains):
        assert now.outcome is tallmc.diagnose.Outcome.OK
        assert now.step_size == 0.01
        length = last.draws - found[-3].draws
        assert now.batch_size == pytest.approx(
            draws.sample_stats["batch_size"][chain, -length:].mean()
        )
        assert now.grad_noise == pytest.approx(
            draws.sample_stats["grad_noise"][chain, -length:].mean()
        )


def test_effective_draws_so_far_are_those_of_all_draws(monkeypatch):
    monkeypatch.setattr(facts, "_SHARE", np.inf)
    found = []
    draws = run(callback=lambda now: found.append(now.ess))
    assert found[-1] == pytest.approx(tallmc.diagnose.ess(draws.positions).min())
    assert found[0] is None or found[0] < found[-1]


def test_effective_draws_grow_with_the_draws_although_estimates_are_seldom():
    """From 1,000 evenly spaced draws at most 1,000 are effective; no estimate is minutes old."""
    tracker = object.__new__(facts.ProgressTracker)
    tracker.history, tracker.spent, tracker.last, tracker.share = (
        facts.ThinnedHistory(facts._TRACKED_DRAWS, 2, 1),
        0.0,
        None,
        None,
    )
    rng = np.random.default_rng(0)
    for draws in range(400, 20_001, 400):
        tracker.history.add(rng.normal(size=(2, 400, 1)))
        found = tracker.ess(np.inf if draws < 10_000 else 0.0, draws)
        assert 0.5 < found / (2 * draws) < 2


@pytest.mark.slow
def test_a_goal_in_effective_draws_says_how_far_it_is():
    found = []
    run(
        n_draws=None,
        ess=20,
        callback=lambda now: found.append((now.wanted_draws, now.wanted_ess, now.seconds_left)),
    )
    assert {(wanted_draws, ess) for wanted_draws, ess, _ in found} == {(None, 20)}
    assert any(left is not None for *_, left in found)


def test_lines_say_everything(heard):
    _, found = heard
    said = line(found[-1])
    for words in (
        "800 of 800 draws",
        "ESS ",
        "steps/s",
        "rows (",
        "passes)",
        "step 0.01",
        "rows per step",
        "noise ",
        "finished after",
    ):
        assert words in said
    assert " gone, " in line(found[3]) and line(found[3]).endswith(" left")
    assert "\n" not in said
    assert bar(found[-1]).startswith("100%|████████████████████| 800 of 800 draws")
    assert 4 <= bar(found[3]).index("|") <= 5


def test_lines_about_steps_that_read_no_rows_do_not_speak_of_rows(heard):
    said = line(dataclasses.replace(heard[1][-1], n_row_evals=0))
    assert "row" not in said and "pass" not in said and "step 0.01" in said


def test_the_live_table_has_a_row_a_chain(heard):
    _, found = heard
    console = Console(file=io.StringIO(), width=120)
    console.print(live.rendered(found[-1]))
    said = console.file.getvalue()
    rows = [row.split() for row in said.splitlines() if row.strip()[:1].isdigit()]
    assert [row[0] for row in rows[:3]] == ["0", "1", "2"]
    assert all(row[1] == "800" and row[2] == "0.01" for row in rows[:3])
    for words in (
        "chain",
        "step size",
        "rows per step",
        "noise",
        "steps/s",
        "passes",
        "ESS",
        "finished after",
    ):
        assert words in said


def test_failed_chains_are_named_in_the_table(monkeypatch):
    found = []
    start = np.zeros((3, 2))
    start[1] = 1e11
    with pytest.warns(tallmc.SamplingWarning, match="chain 1"):
        run(start=start, callback=found.append)
    console = Console(file=io.StringIO(), width=120)
    console.print(live.rendered(found[-1]))
    assert "diverged" in console.file.getvalue()
    assert "1 of 3 chains failed" in line(found[-1])


def test_plain_lines_when_it_is_no_terminal_and_only_if_asked(monkeypatch, capsys):
    monkeypatch.setattr(show, "_FIRST_LINE", 0.0)
    monkeypatch.setattr(show, "_BETWEEN_LINES", 0.0)
    for progress, lines in ((True, True), (None, False), (False, False)):
        run(progress=progress)
        said = capsys.readouterr().err
        assert ("tallmc: " in said and "\x1b" not in said) == lines


class Redrawn:
    """What a display shows in the end."""

    def __init__(self):
        self.shown = []

    def __call__(self, now):
        self.shown.append(line(now))


@pytest.mark.parametrize("goal", [{"n_draws": 700}, {"n_draws": None, "ess": 200}])
def test_the_last_thing_shown_is_the_final_state(goal, monkeypatch, capsys):
    display = Redrawn()
    monkeypatch.setattr(show, "_open", lambda stack, lines_too: display)
    draws = run(**goal)
    ess = tallmc.diagnose.ess(draws.positions).min()
    wanted = "" if "ess" not in goal else " of 200"
    last = display.shown[-1]
    assert f"{draws.positions.shape[1]:,} " in last and f"ESS {ess:,.0f}{wanted} " in last
    assert "finished after" in last and "left" not in last
    assert "finished" not in display.shown[-2]


def test_the_last_thing_shown_of_a_run_stopped_early_says_what_stopped_it(monkeypatch):
    display, heard = Redrawn(), []
    monkeypatch.setattr(show, "_open", lambda stack, lines_too: display)
    draws = run(max_rows=2000, callback=heard.append)
    assert "stopped by the limit of 2,000 rows after" in display.shown[-1]
    assert heard[-1].ended and heard[-1].n_row_evals == draws.n_row_evals_sampling
    assert f"{draws.positions.shape[1]} of 800 draws" in display.shown[-1]


def test_lines_end_with_the_final_state_only_if_the_run_was_long_enough_for_lines(
    heard, monkeypatch
):
    _, found = heard
    monkeypatch.setattr(show, "_BETWEEN_LINES", 3600.0)
    for first_line, printed in ((0.0, 2), (3600.0, 0)):
        monkeypatch.setattr(show, "_FIRST_LINE", first_line)
        stream = io.StringIO()
        lines = show.Lines(stream)
        for now in (found[2], found[3], found[-1]):
            lines(now)
        said = stream.getvalue().splitlines()
        assert len(said) == printed
        assert all("finished after" in last for last in said[1:])


def test_a_live_table_on_a_real_terminal(terminal, capsys):
    with terminal() as shown:
        run()
    said = shown[0]
    assert "rows per step" in said and "800 of 800 draws" in said and "\x1b[" in said
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("where", ["opened", "shown", "closed"])
def test_a_failing_display_never_stops_a_run(where, monkeypatch):
    class Broken:
        def __call__(self, now):
            if where == "shown":
                raise RuntimeError("no such screen")

        def close(self):
            if where == "closed":
                raise RuntimeError("no such screen")

    def broken(stack, lines_too):
        if where == "opened":
            raise RuntimeError("no such screen")
        display = Broken()
        stack.callback(display.close)
        return display

    whole = run()
    monkeypatch.setattr(show, "_open", broken)
    with pytest.warns(
        UserWarning,
        match=r"progress is no longer shown \(RuntimeError: no such screen\); the run continues",
    ) as caught:
        found = run(progress=True)
    assert sum("no longer shown" in str(warning.message) for warning in caught) == 1
    np.testing.assert_array_equal(found.positions, whole.positions)


def test_notebooks_get_one_line_that_is_redrawn(monkeypatch):
    """IPython is not installed, so a stand-in records what it is asked to display."""
    updates = []

    class Handle:
        def update(self, data, raw):
            updates.append(data["text/plain"])

    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: type("ZMQInteractiveShell", (), {})()
    display.display = lambda data, raw, display_id: Handle()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", tallmc.SamplingWarning)
        run()
    assert updates and updates[-1].startswith("100%|█")
    assert all("\n" not in update for update in updates)
