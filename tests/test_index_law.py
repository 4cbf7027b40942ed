"""Rows are drawn with exactly the probabilities that the weights assume, at any number of rows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kept_programs import run_once
from problems import slow_after
from tallmc._core.random import random_words
from tallmc._rows.law import (
    CELL,
    AliasLaw,
    UniformLaw,
    alias_table,
    high_product,
    uniform_index,
    uniform_index_on_host,
)
from tallmc._rows.probabilities import probabilities
from tallmc.subsample.uniform import WithoutReplacement

LAWS = {
    "equal": lambda rng, n: np.ones(n),
    "lognormal": lambda rng, n: rng.lognormal(0, 2, n),
    "one-heavy": lambda rng, n: np.r_[float(n), np.ones(n - 1)],
    "two-levels": lambda rng, n: np.where(np.arange(n) % 3 == 0, 10.0, 0.1),
}


def realised(table) -> np.ndarray:
    """q_i: the units that each row holds in all cells, as a share of all units."""
    threshold, alias = table.threshold.astype(np.int64), table.alias
    own = np.arange(len(alias))
    threshold = np.where(alias == own, CELL, threshold)  # such a cell belongs to one row
    units = np.zeros(len(alias))
    np.add.at(units, own, threshold.astype(float))
    np.add.at(units, alias, (CELL - threshold).astype(float))
    return units[: len(table.probability)] / (len(alias) * float(CELL))


@pytest.mark.parametrize("n_rows", [1, 2, 3, 7, 64, 1000, 4097])
@pytest.mark.parametrize("law", LAWS)
def test_alias_table_realises_the_law_it_reports(law, n_rows):
    p = probabilities(LAWS[law](np.random.default_rng(n_rows), n_rows), floor=0.05)
    table = alias_table(p)
    assert table.alias.max() < n_rows
    np.testing.assert_allclose(realised(table), table.probability, rtol=1e-12)
    np.testing.assert_allclose(table.probability, p, rtol=1e-6)
    assert table.probability.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("law", slow_after(1, ["lognormal", "equal"]))
def test_no_row_is_unreachable_among_ten_million(law):
    n_rows = 10_000_000
    p = probabilities(LAWS[law](np.random.default_rng(0), n_rows), floor=0.05)
    q = realised(alias_table(p))
    assert q.min() > 0
    assert np.abs(q / p - 1).max() < 1e-6


def test_weights_far_below_one_unit_stay_reachable():
    p = probabilities(np.r_[1.0, np.full(9, 1e-18)], floor=0.0)
    table = alias_table(p)
    assert realised(table).min() > 0
    np.testing.assert_allclose(realised(table), table.probability, rtol=1e-12)


def test_a_draw_takes_the_row_of_its_cell_and_place():
    """Checked in every cell at the places where an off-by-one error would show.

    These are its first unit, the last of its own row, the one after, and its last.
    """
    p = probabilities(LAWS["lognormal"](np.random.default_rng(3), 13), floor=0.05)
    table, law = alias_table(p), AliasLaw.of(p, jnp.float64)
    n_cells, draw = len(table.alias), run_once(lambda words: law.draw(words))
    for cell in range(n_cells):
        threshold = int(table.threshold[cell])
        for place in {0, max(threshold - 1, 0), min(threshold, CELL - 1), CELL - 1}:
            words = np.array([[cell * (2**32 // n_cells), place]], np.uint32)
            assert int(draw(words)[0]) == (cell if place < threshold else table.alias[cell])


def test_alias_draws_follow_the_law():
    p = probabilities(LAWS["lognormal"](np.random.default_rng(1), 50), floor=0.05)
    law = AliasLaw.of(p, jnp.float64)
    drawn = run_once(lambda key: law.draw(random_words(key, (400_000,))))(jax.random.key(0))
    counts = np.bincount(drawn, minlength=50)
    assert stats.chisquare(counts, 400_000 * law.probabilities()).pvalue > 1e-5


def test_high_product_is_the_upper_half_of_the_product():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, (2, 1000), dtype=np.uint64)
    a[:4], b[:4] = [0, 2**32 - 1, 2**32 - 1, 1], [5, 2**32 - 1, 1, 2**32 - 1]
    found = run_once(high_product)(a.astype(np.uint32), b.astype(np.uint32))
    np.testing.assert_array_equal(found, a * b >> 32)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 1000, 10_000_000, 2**31 - 1])
def test_uniform_index_is_the_floor_of_a_64_bit_product(n_rows):
    """⌊wN/2⁶⁴⌋ hits each row for ⌊2⁶⁴/N⌋ or ⌈2⁶⁴/N⌉ words w.

    The law is then within N/2⁶⁴ of uniform, and every row is reachable.
    """
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (2000, 2), dtype=np.uint32)
    edges = [-(-row * 2**64 // n_rows) for row in (0, 1, n_rows // 2, n_rows - 1) if row < n_rows]
    edges = [w for edge in edges for w in (edge - 1, edge) if w >= 0] + [2**64 - 1]
    words = np.concatenate([words, np.array([[w >> 32, w & 0xFFFFFFFF] for w in edges], np.uint32)])
    expected = [((int(high) << 32) + int(low)) * n_rows >> 64 for high, low in words]
    found = run_once(uniform_index)(words, np.uint32(n_rows))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(uniform_index_on_host(words, n_rows), expected)


@pytest.mark.parametrize(
    ("n_rows", "size"), slow_after(2, [(6, 3), (4, 4), (6, 2), (6, 5), (5, 1)])
)
def test_every_set_is_equally_likely_without_replacement(n_rows, size):
    selection = WithoutReplacement(law=UniformLaw(n_rows, jnp.float64), size=size)
    draws = run_once(lambda key: selection.draw(key, 60_000))(jax.random.key(1))
    # A set is the sum of 2^i over its rows i.
    codes = np.sum(2 ** np.asarray(draws.indices, np.int64), axis=1)
    sets = [sum(2**i for i in rows) for rows in itertools.combinations(range(n_rows), size)]
    counts = np.bincount(codes, minlength=2**n_rows)[sets]
    if len(sets) > 1:
        assert stats.chisquare(counts).pvalue > 1e-5
    assert counts.sum() == 60_000


@pytest.mark.parametrize(
    ("n_rows", "size"), slow_after(2, [(1000, 501), (10**7, 1000), (1000, 400)])
)
def test_no_row_repeats_without_replacement(n_rows, size):
    selection = WithoutReplacement(law=UniformLaw(n_rows, jnp.float64), size=size)
    draws = run_once(lambda key: selection.draw(key, 20))(jax.random.key(0))
    drawn = np.sort(np.asarray(draws.indices), axis=1)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < n_rows
    np.testing.assert_allclose(draws.weights, n_rows / size)
