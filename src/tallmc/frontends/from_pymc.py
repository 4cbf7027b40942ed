"""A PyMC model whose rows are `pm.Data`, as a posterior.

    log p(θ, x_1, …, x_N) = log prior(θ) + Σ_i log p(x_i | θ)

θ are PyMC's unconstrained value variables, and the log prior includes the log-Jacobians.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..core.errors import InvalidInput
from ..core.layout import layout_of
from ..core.quantities import ComputedQuantities
from ..models.posterior import Posterior
from ..rows.base import AbstractRows
from .block_likelihood import OneRow, check_block_likelihood, probed_rows
from .named_rows import named_rows, some_rows
from .pymc_graphs import RowGraphs, without_c_compiler


def from_pymc(model: Any, rows: Any) -> Posterior:
    """The posterior of a PyMC model whose rows are `pm.Data` containers.

    Draws have the names of the model's free variables, in their constrained form, and of its
    deterministics. Deterministics that depend on rows are left out. The model's dims and coords
    name dimensions and entries. Observed variables that do not depend on rows are part of the
    prior. The search for the mode starts at the model's initial point.

    **Arguments:**

    - `model`: a `pymc.Model`. Its observed variables depend on rows through `pm.Data`.
    - `rows`: the names of the containers with one entry per row. Or the rows themselves, by the
      names of the containers whose values they replace: arrays or pandas columns by name, or rows
      from `tallmc.rows`.

    **Returns:** the posterior. JAX's default precision applies, not PyTensor's, and
    `jax_enable_x64` stays as it is.

    **Raises:** `InvalidInput` if a name is not that of a container; containers differ in length;
    observed values are constants of the model; a free variable is discrete, has one entry per row,
    or has a prior that depends on rows; the log-likelihood of a row depends on other rows; or an
    operation has no JAX version. `ImportError` if PyMC is not installed.

    >>> import pymc
    >>> with pymc.Model() as model:
    ...     height = pymc.Data("height", [1.62, 1.75, 1.80, 1.68])
    ...     scale = pymc.HalfNormal("scale", 1.0)
    ...     observed = pymc.Normal("observed", 1.7, scale, observed=height)
    >>> posterior = from_pymc(model, ["height"])
    >>> posterior.n_rows, list(posterior.quantities.shapes)
    (4, ['scale'])
    """
    pymc = _pymc()
    if not isinstance(model, pymc.Model):
        raise InvalidInput("model", "be a pymc.Model", type(model).__name__)
    table = named_rows(rows if _is_table(rows) else _values_of(model, rows))
    _check_containers(model, table)
    if model.discrete_value_vars:
        name = model.discrete_value_vars[0].name
        cure = "Sum it out, for example with pymc.Mixture or pymc_extras.marginalize."
        raise InvalidInput(f"variable {name!r}", "be continuous", "a discrete free variable", cure)
    with without_c_compiler():
        graphs = RowGraphs.of(model, table)
        start = model.initial_point(random_seed=0)
    dtype = jnp.result_type(float)
    init = {name: jnp.asarray(value, dtype) for name, value in start.items()}
    block = some_rows(table, probed_rows(table.n_rows))
    check_block_likelihood(graphs.log_likelihood, init, block, graphs.rows_cure())
    layout, _ = layout_of(init)
    dims = {
        name: tuple(dim or f"{name}_dim_{axis}" for axis, dim in enumerate(found))
        for name, found in model.named_vars_to_dims.items()
        if name in graphs.quantity_names
    }
    used = {dim for found in dims.values() for dim in found}
    quantities = ComputedQuantities(
        lambda position: graphs.quantities(layout.unravel(position)),
        layout.dim,
        dims,
        {
            dim: tuple(map(str, entries))
            for dim, entries in model.coords.items()
            if dim in used and entries is not None
        },
    )
    return Posterior(
        OneRow(graphs.log_likelihood), graphs.log_prior, table, init, quantities=quantities
    )


def _is_table(rows: Any) -> bool:
    return isinstance(rows, AbstractRows) or hasattr(rows, "keys")


def _values_of(model: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The values that the model's containers hold."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidInput("rows", "be the names of pm.Data containers", names, 'Pass ["x", "y"].')
    for name in names:
        _container(model, name)
    return {name: _container(model, name).get_value(borrow=True) for name in names}


def _check_containers(model: Any, table: AbstractRows) -> None:
    for name, row in table.row_shapes.items():
        shape = _container(model, name).get_value(borrow=True).shape[1:]
        if row.shape != shape:
            rule = f"have entries of the shape of the container, {shape}"
            raise InvalidInput(f"rows[{name!r}]", rule, row.shape)


def _container(model: Any, name: str) -> Any:
    containers = {container.name: container for container in model.data_vars}
    if name not in containers:
        found = ", ".join(containers) or "none"
        cure = f"The model has the containers: {found}. Data must be pm.Data(name, values)."
        raise InvalidInput("rows", "name pm.Data containers of the model", name, cure)
    return containers[name]


def _pymc() -> ModuleType:
    try:
        import pymc
    except ImportError:
        message = "tallmc.from_pymc needs PyMC: pip install tallmc[pymc]"
        raise ImportError(message) from None
    return pymc
