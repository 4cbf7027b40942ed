"""Groups of chains and the length of calls change the speed of a run, never its draws."""

import numpy as np
import pytest

import tallmc
from problems import linear
from tallmc.engine import loop, run
from tallmc.engine.call_length import CallLength
from tallmc.subsample import Measured

METHODS = {
    "sgld": tallmc.sgld(0.01, size=3),
    "saga": tallmc.Method(gradient=tallmc.gradient.SAGA(), size=3, step_size=0.01),
    "measured": tallmc.Method(size=Measured(4, 0.5), step_size=0.01),
    "mala": tallmc.mala(0.3),
}


def sampled(method, chains, **settings):
    settings = {"draws": 40, "burn_in": 5, "thin": 2, "seed": 3} | settings
    return tallmc.sample(linear(), method, chains=chains, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_chains_in_groups_have_the_draws_that_they_have_together(name, monkeypatch):
    whole, groups, advance_group = sampled(METHODS[name], 7), set(), loop._advance_group

    def spy(kernel, source, keys, *others):
        groups.add(keys.shape[0])
        return advance_group(kernel, source, keys, *others)

    monkeypatch.setattr(loop, "_advance_group", spy)
    monkeypatch.setattr(loop, "_MOST_CHAINS_AT_ONCE", 4)
    for per_group in (2, 3):  # both divide 7 with a remainder
        monkeypatch.setattr(loop, "_CHAINS_PER_GROUP", per_group)
        monkeypatch.setattr(run, "_MOST_SLOTS", 64 + per_group)  # compiles another program
        found = sampled(METHODS[name], 7)
        assert found.positions.shape == whole.positions.shape
        np.testing.assert_array_equal(found.positions, whole.positions)
        assert found.n_row_evals == whole.n_row_evals
        for statistic, values in whole.sample_stats.items():
            np.testing.assert_array_equal(found.sample_stats[statistic], values)
    assert groups == {2, 3}


def test_a_chain_among_a_thousand_has_the_draws_that_it_has_among_three():
    many, few = sampled(METHODS["sgld"], 1000), sampled(METHODS["sgld"], 3)
    np.testing.assert_allclose(many.positions[:3], few.positions, rtol=1e-10)
    assert len(np.unique(many.positions[:, -1, 0])) == 1000


class Clock:
    """A machine on which a call of s steps in b blocks takes b·D + s·S seconds."""

    def __init__(self, block, draw, step):
        self.block, self.draw, self.step = block, draw, step

    def run(self, n_steps):
        """Steps of each call, and the time spent per step after the first ten calls."""
        length, first, calls = CallLength(self.block, self.draw), 0, []
        while first < n_steps:
            done = length.next(first)
            blocks = (first + done - 1) // self.block - first // self.block + 1
            took = blocks * self.draw + done * self.step
            length.learn(first, done, took)
            calls.append((first, done, took))
            first += done
        later = calls[10:]
        return calls, sum(took for *_, took in later) / sum(done for _, done, _ in later)


@pytest.mark.parametrize("draw", [1e-4, 0.1, 1.3, 13.0])
@pytest.mark.parametrize("step", [1e-6, 1e-4, 1e-2, 1.0])
def test_calls_are_short_and_draw_few_blocks_twice(draw, step):
    block = 512
    calls, per_step = Clock(block, draw, step).run(100_000 * block if step < 1e-3 else 100 * block)
    assert per_step <= 1.3 * (draw / block + step)
    longest = max(took for *_, took in calls)
    assert longest <= max(0.5, 5 * draw) * 1.05 + step


def test_calls_end_where_blocks_end():
    calls, _ = Clock(512, 0.01, 1e-5).run(200 * 512)
    assert all((first + done) % 512 == 0 for first, done, _ in calls[4:])
