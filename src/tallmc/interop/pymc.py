"""A PyMC model whose rows are `pm.Data`, as a posterior.

    log p(θ, x_1, …, x_N) = log prior(θ) + Σ_i log p(x_i | θ)

θ are PyMC's unconstrained value variables, and the log prior includes the log-Jacobians.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import ComputedQuantities, layout_of
from .._core.errors import InvalidInput
from .._core.packages import missing
from .._rows.access import AbstractRows
from ..models.posterior import Posterior
from .rows import check_block_likelihood, named_rows, rows_to_probe, run_model

# The log density of a PyMC model as JAX functions of unconstrained parameters and of rows.
#
# `pm.Data` containers are shared variables of PyTensor graphs. Symbolic inputs take their place, so
# that rows are arguments of the JAX functions and no constants. For the prior and the
# deterministics the inputs have a static number of rows, N, because both may use this number.
# PyTensor then reduces shapes to constants, and what is left of an input in a graph shows that the
# graph depends on rows.

JaxFunction = Callable[..., Sequence[Array]]
Arrays = dict[str, Array]


@dataclasses.dataclass(frozen=True, eq=False)
class RowGraphs:
    """The densities and the quantities of a PyMC model, as JAX functions."""

    parameters: tuple[str, ...]  # the names of the value variables
    containers: dict[str, Any]  # the dtypes of the containers of rows, by name
    row_variables: tuple[str, ...]
    quantity_names: tuple[str, ...]
    other_containers: tuple[str, ...]  # containers that are not among the rows, and are as long
    of_rows: JaxFunction
    of_prior: JaxFunction
    of_quantities: JaxFunction

    @classmethod
    def of(cls, model: Any, table: AbstractRows) -> RowGraphs:
        """Translate a model; raises `InvalidInput` if it cannot be."""
        jaxified = _import_jaxified_graph()
        containers = [found for found in model.data_vars if found.name in table.row_shapes]
        variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        terms = model.logp(vars=variables, sum=False)
        wanted = [*model.free_RVs, *model.deterministics]
        observed = [model.rvs_to_values[variable] for variable in model.observed_RVs]
        graphs, depends = _with_static_rows(
            [*terms, *model.replace_rvs_by_values(wanted), *observed], containers, table.n_rows
        )
        n_terms, n_wanted = len(terms), len(wanted)
        in_rows = dict(zip(variables, depends[:n_terms], strict=True))
        data_in_rows = dict(zip(model.observed_RVs, depends[n_terms + n_wanted :], strict=True))
        _check_free(model, in_rows, containers)
        _check_observed(model, in_rows, data_in_rows, table.n_rows)
        kept = [k for k in range(n_terms, n_terms + n_wanted) if not depends[k]]
        symbols = _symbols(containers, None)
        row_terms = [term for term, found in zip(terms, depends, strict=False) if found]
        values = model.value_vars

        def translated(inputs: list[Any], outputs: list[Any]) -> JaxFunction:
            cure = "Use operations that PyTensor translates to JAX."
            with _without_precision_warnings():
                return run_model(lambda: jaxified(inputs=inputs, outputs=outputs), cure)

        return cls(
            parameters=tuple(value.name for value in values),
            containers={container.name: container.dtype for container in containers},
            row_variables=tuple(found.name for found in variables if in_rows[found]),
            quantity_names=tuple(wanted[k - n_terms].name for k in kept),
            other_containers=tuple(
                other.name
                for other in model.data_vars
                if other not in containers
                and other.get_value(borrow=True).shape[:1] == (table.n_rows,)
            ),
            of_rows=translated([*values, *symbols.values()], _replaced(row_terms, symbols)),
            of_prior=translated(
                values, [graphs[k].sum() for k in range(n_terms) if not depends[k]]
            ),
            of_quantities=translated(values, [graphs[k] for k in kept]),
        )

    def log_likelihood(self, params: Arrays, block: Arrays) -> Float[Array, " n"]:
        """The log-likelihood of each row of the block."""
        rows = [
            block[name].astype(jax.dtypes.canonicalize_dtype(dtype))
            for name, dtype in self.containers.items()
        ]
        n_rows = rows[0].shape[0]
        with _without_precision_warnings():
            terms = self.of_rows(*self._values(params), *rows)
        total = jnp.zeros(n_rows)
        for name, term in zip(self.row_variables, terms, strict=True):
            if term.shape[:1] != (n_rows,):
                rule = "have one log density per row, along the first axis"
                found = f"shape {term.shape} for {n_rows} rows"
                raise InvalidInput(f"variable {name!r}", rule, found, self.rows_cure())
            total += term.reshape(n_rows, -1).sum(1)
        return total

    def log_prior(self, params: Arrays) -> Float[Array, ""]:
        """The log density of everything that does not depend on rows, with the log-Jacobians."""
        with _without_precision_warnings():
            terms = self.of_prior(*self._values(params))
        return sum(terms, start=jnp.zeros(()))

    def quantities(self, params: Arrays) -> Arrays:
        """The free variables, constrained, and the deterministics that do not depend on rows."""
        with _without_precision_warnings():
            found = self.of_quantities(*self._values(params))
        return dict(zip(self.quantity_names, map(jnp.asarray, found), strict=True))

    def rows_cure(self) -> str:
        """What to do if the model does not fit some of its rows."""
        cure = (
            "Every array with one entry per row must be pm.Data and named in rows, and the model "
            "must use each row by itself."
        )
        others = ", ".join(self.other_containers)
        return f"{cure} As long as the rows, and not named: {others}." if others else cure

    def _values(self, params: Arrays) -> list[Array]:
        return [params[name] for name in self.parameters]


def _check_free(model: Any, in_rows: dict[Any, bool], containers: list[Any]) -> None:
    """Raise if a free variable has one entry per row, or a prior that depends on rows."""
    dims = model.named_vars_to_dims
    row_dims = {dims[found.name][0] for found in containers if found.name in dims} - {None}
    for variable in model.free_RVs:
        if row_dims & set(dims.get(variable.name, ())) or in_rows[variable]:
            rule = "not depend on rows: neither its size nor its prior may"
            cure = (
                "Integrate out one unknown per row; compute numbers for a prior from the data "
                "before, as constants."
            )
            found = "a free variable that does"
            raise InvalidInput(f"variable {variable.name!r}", rule, found, cure)


def _check_observed(
    model: Any, in_rows: dict[Any, bool], data_in_rows: dict[Any, bool], n_rows: int
) -> None:
    """Raise if observed values are constants of the model, or nothing depends on rows."""
    for variable in model.observed_RVs:
        if data_in_rows[variable]:
            continue
        shape = model.rvs_to_values[variable].shape.eval()
        if in_rows[variable] or tuple(shape[:1]) == (n_rows,):
            rule = "be observed through pm.Data named in rows"
            cure = 'Write observed=pm.Data("y", y), and name "y" in rows.'
            raise InvalidInput(f"variable {variable.name!r}", rule, "constants of the model", cure)
    if not any(data_in_rows.values()) and not any(in_rows.values()):
        rule = "have an observed variable that depends on rows"
        raise InvalidInput("model", rule, "none", "Name the containers of the data in rows.")


def _symbols(containers: list[Any], n_rows: int | None) -> dict[Any, Any]:
    """An input in the place of each container, with a static number of rows or any number."""
    import pytensor.tensor as pt

    return {
        found: pt.tensor(
            found.name, dtype=found.dtype, shape=(n_rows, *found.get_value(borrow=True).shape[1:])
        )
        for found in containers
    }


def _replaced(graphs: list[Any], symbols: dict[Any, Any]) -> list[Any]:
    from pytensor.graph.replace import graph_replace

    return graph_replace(graphs, symbols, strict=False)


def _with_static_rows(
    graphs: list[Any], containers: list[Any], n_rows: int
) -> tuple[list[Any], list[bool]]:
    """The graphs with N rows, simplified, and whether each depends on rows."""
    from pytensor.graph.rewriting.utils import rewrite_graph
    from pytensor.graph.traversal import ancestors

    symbols = _symbols(containers, n_rows)
    simplified: Any = rewrite_graph(
        _replaced(graphs, symbols), include=("canonicalize",), clone=False
    )
    inputs = set(symbols.values())
    return simplified, [not inputs.isdisjoint(ancestors([graph])) for graph in simplified]


_TRACING = threading.RLock()


@contextmanager
def _without_precision_warnings() -> Iterator[None]:
    """PyTensor's graphs ask for float64, which JAX turns into its own precision with a warning.

    Filters belong to the process: a thread that leaves would take them from one that still traces.
    """
    with _TRACING, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        yield


def _import_jaxified_graph() -> Callable[..., JaxFunction]:
    """Import PyMC's translation to JAX.

    The import sets `jax_enable_x64` and `XLA_FLAGS` for the process. Both are put back. It runs in
    a thread of its own, which sees the setting of the process, not that of a context manager.
    """

    def imported() -> Callable[..., JaxFunction]:
        precision, flags = jax.config.values["jax_enable_x64"], os.environ.get("XLA_FLAGS")
        try:
            from pymc.sampling.jax import get_jaxified_graph
        finally:
            jax.config.update("jax_enable_x64", precision)
            os.environ.pop("XLA_FLAGS", None)
            if flags is not None:
                os.environ["XLA_FLAGS"] = flags
        return get_jaxified_graph

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(imported).result()


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
    try:
        import pymc
        import pytensor
    except ImportError:
        raise missing("pymc", "tallmc.from_pymc") from None
    if not isinstance(model, pymc.Model):
        raise InvalidInput("model", "be a pymc.Model", type(model).__name__)
    is_table = isinstance(rows, AbstractRows) or hasattr(rows, "keys")
    table = named_rows(rows if is_table else _values_of(model, rows))
    for name, row in table.row_shapes.items():
        shape = _container(model, name).get_value(borrow=True).shape[1:]
        if row.shape != shape:
            rule = f"have entries of the shape of the container, {shape}"
            raise InvalidInput(f"rows[{name!r}]", rule, row.shape)
    if model.discrete_value_vars:
        name = model.discrete_value_vars[0].name
        cure = "Sum it out, for example with pymc.Mixture or pymc_extras.marginalize."
        raise InvalidInput(f"variable {name!r}", "be continuous", "a discrete free variable", cure)
    # PyTensor runs what it computes during a conversion in Python, which takes less time.
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        graphs = RowGraphs.of(model, table)
        start = model.initial_point(random_seed=0)
    dtype = jnp.result_type(float)
    init = {name: jnp.asarray(value, dtype) for name, value in start.items()}
    check_block_likelihood(graphs.log_likelihood, init, rows_to_probe(table), graphs.rows_cure())
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
    densities = graphs.log_likelihood, graphs.log_prior
    return Posterior(*densities, table, init, batched=True, quantities=quantities)


def _values_of(model: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidInput("rows", "be the names of pm.Data containers", names, 'Pass ["x", "y"].')
    return {name: _container(model, name).get_value(borrow=True) for name in names}


def _container(model: Any, name: str) -> Any:
    containers = {container.name: container for container in model.data_vars}
    if name not in containers:
        found = ", ".join(containers) or "none"
        cure = f"The model has the containers: {found}. Data must be pm.Data(name, values)."
        raise InvalidInput("rows", "name pm.Data containers of the model", name, cure)
    return containers[name]
