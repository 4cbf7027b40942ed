"""Columns as codes: every product is that of the matrix, and so are the draws."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tallmc._core.arrays import DenseMap, DiagonalMap
from tallmc._rows.law import Batch
from tallmc.models.design import (
    CodedColumns,
    Columns,
    GroupedObservations,
    GroupTerm,
    Observations,
    columns_of,
    design_data,
)

N = 300


def _coded(seed=0, grouped=False):
    """A block with two factors between the numbers and, perhaps, a group term."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, 5, N), rng.integers(1, 4, N)], axis=1).astype(np.uint8)
    dense = np.column_stack([np.ones(N), rng.normal(size=N)])
    x = CodedColumns(jnp.asarray(dense), jnp.asarray(codes), (4, 3), (0, 5, 1, 2, 3, 4, 6, 7, 8))
    scaling = tuple(
        (jnp.asarray(rng.uniform(1, 2, size)), jnp.asarray(rng.normal(size=size)))
        for size in x.sizes
    )
    y = jnp.asarray(rng.integers(0, 3, N).astype(float))
    if not grouped:
        return Observations(x, y), scaling
    groups = rng.integers(0, 6, N), rng.normal(size=(N, 2))
    term = GroupTerm(jnp.asarray(groups[0]), jnp.asarray(groups[1]), 6)
    return GroupedObservations(x, y, None, None, (term,)), scaling


def _matrix(block, scaling):
    """The same columns, one by one."""
    x = block.fixed if isinstance(block, GroupedObservations) else block.x
    dense, codes = np.asarray(x.dense), np.asarray(x.codes)
    columns = [*dense.T]
    for k, size in enumerate(x.sizes):
        gain, base = map(np.asarray, scaling[k])
        columns += [base[j] + gain[j] * (codes[:, k] == j + 1) for j in range(size)]
    matrix = np.empty((N, len(columns)))
    matrix[:, list(x.places)] = np.stack(columns, axis=1)
    for term in getattr(block, "terms", ()):
        member = np.eye(term.n_groups)[np.asarray(term.codes)]
        products = member[:, :, None] * np.asarray(term.columns)[:, None, :]
        matrix = np.column_stack([matrix, products.reshape(N, -1)])
    return matrix


@jax.jit
def _products(x: Columns, m, r, w, factor):
    scale = jnp.abs(m[:, 0])
    return {
        "vector": x @ m[:, 0],
        "matrix": x @ m,
        "sums": x.sums(r[:, 0]),
        "sums of columns": x.sums(r),
        "gram": x.gram(w),
        "norms": x.norms(),
        "leverages": x.squared() @ scale,
        "column squares": x.squared().sums(w),
        "metric": x.pulled(DenseMap(factor)),
        "diagonal metric": x.pulled(DiagonalMap(scale)),
        "dense": x.matrix(),
    }


@pytest.mark.parametrize("grouped", [False, True])
def test_every_product_of_codes_is_that_of_the_matrix(grouped):
    block, scaling = _coded(grouped=grouped)
    whole, rng = _matrix(block, scaling), np.random.default_rng(1)
    d = whole.shape[1]
    args = rng.normal(size=(d, 4)), rng.normal(size=(N, 4)), rng.normal(size=N)
    args = *map(jnp.asarray, args), jnp.asarray(rng.normal(size=(d, d)))
    found = _products(columns_of(block, scaling), *args)
    expected = _products(Columns(jnp.asarray(whole)), *args)
    assert columns_of(block, scaling).shape == (N, d)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(found["dense"], whole, rtol=1e-13, atol=1e-13)
