"""Random words equal those of Threefry, and normals have the right moments and tails."""

import jax
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from kept_programs import run_once
from tallmc._core.random import (
    folded_on_host,
    keys_on_host,
    new_key,
    random_words,
    standard_normal,
)


@run_once
def _words_and_those_of_jax(key, counter):
    apart = random_words(key, (10, 100), axis=-2)
    return random_words(key, (10, 100)), apart, threefry_2x32(jax.random.key_data(key), counter)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_words_are_those_of_jax_threefry(seed):
    key = jax.random.fold_in(new_key(seed), 7)
    counter = np.concatenate([np.zeros(1000, np.uint32), np.arange(1000, dtype=np.uint32)])
    words, apart, expected = _words_and_those_of_jax(key, counter)
    np.testing.assert_array_equal(np.swapaxes(apart, -1, -2), words)
    np.testing.assert_array_equal(
        np.asarray(words).reshape(1000, 2), np.asarray(expected).reshape(2, 1000).T
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normals_are_normal(dtype):
    z = np.asarray(run_once(lambda key: standard_normal(key, (1001, 999), dtype))(new_key(0)))
    assert z.dtype == dtype
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-5
    for power in (1, 2, 3, 4):
        values = z.astype(float).ravel() ** power
        truth = {1: 0, 2: 1, 3: 0, 4: 3}[power]
        assert abs(values.mean() - truth) / (values.std() / np.sqrt(z.size)) < 4.6
    beyond_four = (np.abs(z) > 4).sum()
    expected = z.size * 2 * stats.norm.sf(4)
    assert abs(beyond_four - expected) / np.sqrt(expected) < 4.6
    lag = np.corrcoef(z[:, :-1].ravel(), z[:, 1:].ravel())[0, 1]
    assert abs(lag) * np.sqrt(z.size) < 4.6


def test_keys_of_blocks_are_folded_as_by_jax():
    keys, numbers = keys_on_host(3, 0, 2), np.array([0, 64, 2**32 - 1], np.uint32)
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (None, 0))
    expected = run_once(lambda: jax.random.key_data(fold(keys, numbers)))()
    np.testing.assert_array_equal(folded_on_host(keys, numbers), expected)


def test_keys_give_different_streams():
    root = new_key(0)
    draw = run_once(lambda k: standard_normal(jax.random.fold_in(root, k), (100_000,), np.float64))
    first, second = (np.asarray(draw(k)) for k in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.6 / np.sqrt(100_000)
