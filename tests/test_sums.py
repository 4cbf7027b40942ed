"""Compensated sums in single precision keep the rounding errors."""

import math

import numpy as np
import pytest

from kept_programs import run_once
from problems import slow_after
from tallmc._rows.passes import split_sum


@pytest.mark.parametrize("n", slow_after(3, [1, 2048, 2049, 2, 7, 5000, 8192]))
def test_a_split_sum_is_as_good_as_one_in_double_precision(n):
    rng = np.random.default_rng(n)
    values = (rng.normal(size=n) * 10 ** rng.uniform(-4, 4, n)).astype(np.float32)
    exact, size = math.fsum(map(float, values)), np.abs(values.astype(float)).sum()
    high, low = (float(part) for part in run_once(split_sum)(values))
    assert high == np.float32(high) and low == np.float32(low)
    assert abs(high + low - exact) <= 1e-12 * size
    if n >= 2048:
        assert abs(float(values.sum()) - exact) > 1e-10 * size  # a plain sum is less accurate
