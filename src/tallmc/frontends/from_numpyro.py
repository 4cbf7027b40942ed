"""A NumPyro model with a plate over its rows, as a posterior.

    log p(θ, x_1, …, x_N) = log prior(θ) + Σ_i log p(x_i | θ)

θ are the unconstrained parameters, and the log prior includes the log-Jacobians.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..core.errors import InvalidInput
from ..core.layout import layout_of
from ..core.quantities import ComputedQuantities
from ..models.posterior import Posterior
from .block_likelihood import OneRow, check_block_likelihood, probed_rows, run_model
from .named_rows import named_rows, some_rows
from .numpyro_plate import ROWS_CURE, PlateModel
from .numpyro_sites import check_plate, check_sites


def from_numpyro(
    model: Callable[..., Any],
    rows: Any,
    plate: str,
    *,
    init_strategy: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Posterior:
    """The posterior of a NumPyro model with a plate over its rows.

    Draws have the names of the model's sample sites, in their constrained form, and of its
    deterministic sites. Deterministic sites inside the plate, and those that depend on rows, are
    left out. Plates name the dimensions. Sites that are observed outside the plate are part of the
    prior.

    **Arguments:**

    - `model`: a NumPyro model. It is called as `model(**rows, **kwargs)`.
    - `rows`: arrays or pandas columns by name, each with one entry per row; or rows from
      `tallmc.rows` whose columns have these names. The model sees them with a leading axis, one row
      at a time.
    - `plate`: the name of the plate over the rows.
    - `init_strategy`: where the search for the mode starts, as for `numpyro.infer.NUTS`. By default
      at the means of the priors, and at 0 in unconstrained space if there is no finite mean.
    - `kwargs`: further arguments of the model, the same for all rows.

    **Returns:** the posterior.

    **Raises:** `InvalidInput` if there is no such plate, or it has another size; a site is
    latent inside of it, discrete, or a `param` or `mutable` site; data are constants of the model;
    a prior depends on rows, or the log-likelihood of a row depends on other rows. `ImportError` if
    NumPyro is not installed.

    >>> import numpyro, numpyro.distributions as dist
    >>> def model(height):
    ...     mean = numpyro.sample("mean", dist.Normal(1.7, 1.0))
    ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    ...     with numpyro.plate("people", len(height)):
    ...         numpyro.sample("height", dist.Normal(mean, scale), obs=height)
    >>> posterior = from_numpyro(model, {"height": [1.62, 1.75, 1.80, 1.68]}, "people")
    >>> posterior.n_rows, list(posterior.quantities.shapes)
    (4, ['mean', 'scale'])
    """
    numpyro = _numpyro()
    table = named_rows(rows)
    if both := set(kwargs) & set(table.row_shapes):
        raise InvalidInput("kwargs", "not name columns of rows", sorted(both))
    converted = PlateModel(numpyro, model, plate, table.row_shapes, table.n_rows, kwargs)
    sites = run_model(lambda: converted.sites(table.n_rows), ROWS_CURE)
    check_plate(sites, plate, table.n_rows)
    check_sites(sites, plate)
    block = some_rows(table, probed_rows(table.n_rows))
    init = run_model(lambda: converted.init(block, init_strategy), ROWS_CURE)
    converted.check_latent_shapes(sites, init, block)
    converted.check_observed_values(init)
    converted.check_prior(init)
    check_block_likelihood(converted.log_likelihood, init, block, ROWS_CURE)
    names = converted.quantity_names(sites, init)
    layout, _ = layout_of(init)
    quantities = ComputedQuantities(
        lambda position: converted.quantities(layout.unravel(position), names),
        layout.dim,
        {name: dims for name in names if (dims := sites[name].dims) is not None},
        {},
    )
    return Posterior(
        OneRow(converted.log_likelihood),
        converted.log_prior,
        table,
        init,
        quantities=quantities,
    )


def _numpyro() -> ModuleType:
    try:
        import numpyro
    except ImportError:
        message = "tallmc.from_numpyro needs NumPyro: pip install tallmc[numpyro]"
        raise ImportError(message) from None
    return numpyro
