"""The log density of a PyMC model as JAX functions of unconstrained parameters and of rows.

`pm.Data` containers are shared variables of PyTensor graphs. Symbolic inputs take their place, so
that rows are arguments of the JAX functions and no constants. For the prior and the deterministics
the inputs have a static number of rows, N, because both may use this number. PyTensor then reduces
shapes to constants, and what is left of an input in a graph shows that the graph depends on rows.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.errors import InvalidInput
from ..rows.base import AbstractRows
from .block_likelihood import run_model

JaxFunction = Callable[..., Sequence[Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class RowGraphs:
    """The densities and the quantities of a PyMC model, as JAX functions."""

    parameters: tuple[str, ...]
    """The names of the value variables."""
    containers: dict[str, Any]
    """The dtypes of the containers of rows, by name."""
    row_variables: tuple[str, ...]
    quantity_names: tuple[str, ...]
    other_containers: tuple[str, ...]
    """Containers that are not among the rows, and are as long."""
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

    def log_likelihood(
        self, params: dict[str, Array], block: dict[str, Array]
    ) -> Float[Array, " n"]:
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

    def log_prior(self, params: dict[str, Array]) -> Float[Array, ""]:
        """The log density of everything that does not depend on rows, with the log-Jacobians."""
        with _without_precision_warnings():
            terms = self.of_prior(*self._values(params))
        return sum(terms, start=jnp.zeros(()))

    def quantities(self, params: dict[str, Array]) -> dict[str, Array]:
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

    def _values(self, params: dict[str, Array]) -> list[Array]:
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


def without_c_compiler() -> AbstractContextManager[None]:
    """PyTensor runs what it computes during a conversion in Python, which takes less time."""
    import pytensor

    return pytensor.config.change_flags(mode="FAST_COMPILE", cxx="")


@contextmanager
def _without_precision_warnings() -> Iterator[None]:
    """PyTensor's graphs ask for float64, which JAX turns into its own precision with a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        yield


def _import_jaxified_graph() -> Callable[..., JaxFunction]:
    """Import PyMC's translation to JAX.

    The import sets `jax_enable_x64` and `XLA_FLAGS` for the process. Both are put back. It runs in
    a thread of its own, which sees the setting of the process, not that of a context manager.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_imported_with_settings_kept).result()


def _imported_with_settings_kept() -> Callable[..., JaxFunction]:
    precision, flags = jax.config.values["jax_enable_x64"], os.environ.get("XLA_FLAGS")
    try:
        from pymc.sampling.jax import get_jaxified_graph
    finally:
        jax.config.update("jax_enable_x64", precision)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
    return get_jaxified_graph
