"""When a run ends: enough effective draws that agree, or four times as many draws."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear
from tallmc._engine.run import Goal, Run, chain_keys, run_until

ESS = 150.0


def new_start():
    return jnp.broadcast_to(linear().init, (3, linear().dim))


def new_run(start=None, sink=None):
    bound = tallmc.methods.mala(0.5).prepare(linear()).kernel
    start = new_start() if start is None else start
    return Run(bound, chain_keys(0, 3), start, burn_in=20, thin=1, n_draws=200, sink=sink)


def ends_at(satisfied, run=None):
    """Draws at the end, and the numbers of draws that were judged."""
    judged = []

    def judge(positions, agreed):
        judged.append(positions.shape[1])
        return satisfied(positions.shape[1])

    run = new_run() if run is None else run
    assert run_until(run, Goal.of(None, ESS, None, None), satisfied=judge) is None
    return run.completed, judged


@pytest.fixture(scope="module")
def first():
    """Draws with which there are enough effective draws."""
    draws, judged = ends_at(lambda draws: True)
    assert judged == [draws]
    return draws


def test_the_run_goes_on_until_the_draws_agree(first):
    draws, judged = ends_at(lambda draws: draws > 2 * first)
    assert 2 * first < draws < 2.5 * first
    assert judged[0] == first and draws == judged[-1]
    assert all(after == -(-before * 6 // 5) for before, after in itertools.pairwise(judged))


def test_draws_that_never_agree_end_the_run_normally_at_four_times_as_many(first):
    draws, judged = ends_at(lambda draws: False)
    assert draws == 4 * first
    assert judged[0] == first and judged[-1] < draws


def test_a_resumed_run_makes_the_same_decisions(first):
    whole = new_run()
    ends_at(lambda draws: draws > 2 * first, whole)
    cut = new_run()
    cut.run_to(int(1.7 * first))
    resumed = new_run(sink=cut.sink)
    resumed.restore(cut.snapshot())
    ends_at(lambda draws: draws > 2 * first, resumed)
    np.testing.assert_array_equal(resumed.positions(), whole.positions())


def test_only_running_chains_are_judged():
    run = new_run(new_start().at[1].set(np.nan))
    shapes = []

    def judge(positions, agreed):
        shapes.append(positions.shape)
        return bool(np.isfinite(positions).all())

    run_until(run, Goal.of(None, ESS, None, None), satisfied=judge)
    assert shapes[-1][0] == 2


@pytest.mark.parametrize(
    ("bytes_of_memory", "limit"),
    [(2**40, "the limit of 500 draws per chain (draws per effective draw)"), (4000 * 3 * 5, None)],
)
def test_chains_that_mix_too_slowly_end_at_a_limit(monkeypatch, bytes_of_memory, limit):
    """Draws are limited by default: by those per effective draw, and by memory."""
    monkeypatch.setattr("tallmc._engine.run._MOST_PER_EFFECTIVE_DRAW", 0.01)
    monkeypatch.setattr("tallmc._engine.run.memory_of_machine", lambda: bytes_of_memory)
    run = new_run()
    with pytest.warns(tallmc.SamplingWarning, match=r"of 150,000 effective draws\. The chains mix"):
        found = run_until(run, Goal.of(None, 150_000.0, None, None))
    memory = bytes_of_memory // (4 * 3 * linear().dim * new_start().dtype.itemsize)
    assert found == (limit or f"the limit of {max(memory, 200):,} draws per chain (memory)")
    assert run.completed == int(found.split()[3].replace(",", ""))
