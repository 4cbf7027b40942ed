"""Groups of chains and the length of calls change the speed of a run, never its draws."""

import numpy as np
import pytest

import tallmc
from problems import linear, slow_after
from tallmc._engine import chains
from tallmc._engine.kernel import AbstractKernel
from tallmc._engine.run import CallLength
from tallmc.subsample import TargetNoise

METHODS = {
    "sgld": tallmc.methods.sgld(0.01, batch_size=3),
    "saga": tallmc.Method(gradient=tallmc.gradient.SAGA(), batch_size=3, step_size=0.01),
    "measured": tallmc.Method(batch_size=TargetNoise(4, 0.5), step_size=0.01),
    "mala": tallmc.methods.mala(0.3),
}


def sampled(method, n_chains, **settings):
    settings = {"n_draws": 40, "burn_in": 5, "thin": 2, "seed": 3} | settings
    return tallmc.sample(linear(), method, chains=n_chains, **settings)


@pytest.mark.parametrize("name", slow_after(1, METHODS))
def test_chains_in_groups_have_the_draws_that_they_have_together(name, monkeypatch):
    monkeypatch.setattr(AbstractKernel, "fewest_per_group", 7)
    whole = sampled(METHODS[name], 7)
    for per_group in (2, 3):  # both divide 7 with a remainder
        monkeypatch.setattr(AbstractKernel, "fewest_per_group", per_group)
        groups = chains._groups(7, fewest=per_group)
        assert {len(group) for group in groups} == {per_group}
        found = sampled(METHODS[name], 7)
        assert found.positions.shape == whole.positions.shape
        np.testing.assert_allclose(found.positions, whole.positions, rtol=1e-10)
        assert found.n_row_evals == whole.n_row_evals
        for statistic, values in whole.sample_stats.items():
            np.testing.assert_allclose(found.sample_stats[statistic], values, rtol=1e-9)


@pytest.mark.parametrize("n_chains", [1, 2, 4, 5, 7, 64, 100, 1000, 5000])
def test_every_chain_is_in_one_group_and_groups_have_one_size(n_chains):
    groups = chains._groups(n_chains, fewest=4)
    assert len({len(group) for group in groups}) == 1 and len(groups[0]) <= 128
    np.testing.assert_array_equal(np.unique(np.concatenate(groups)), np.arange(n_chains))
    np.testing.assert_array_equal(np.concatenate(groups)[:n_chains], np.arange(n_chains))


def test_a_chain_among_a_thousand_has_the_draws_that_it_has_among_three():
    many, few = sampled(METHODS["sgld"], 1000), sampled(METHODS["sgld"], 3)
    np.testing.assert_allclose(many.positions[:3], few.positions, rtol=1e-10)
    assert len(np.unique(many.positions[:, -1, 0])) == 1000


@pytest.mark.parametrize("step", [1e-6, 1e-4, 1e-2, 1.0])
def test_the_host_looks_at_the_run_every_half_second(step):
    length, first, took = CallLength(512), 0, []
    for _ in range(50):
        done = length.next(first)
        took.append(done * step)
        length.learn(done, took[-1])
        first += done
    assert max(took) <= max(0.5 * 1.05, 8 * step)
    assert min(took[20:]) > 0.1 or step >= 0.1


def test_long_calls_end_where_blocks_end():
    length, first = CallLength(512), 0
    for call in range(30):
        done = length.next(first)
        length.learn(done, 1e-5 * done)
        first += done
        assert call < 6 or first % 512 == 0
