"""A NumPyro model as functions of unconstrained parameters and of any number of its rows.

The sites inside the plate over rows give the log-likelihoods of the rows: the model is called with
a block of rows, and the plate's indices are replaced. Everything else is the log prior: NumPyro's
own `potential_energy` without the sites of the plate. For the prior the model is traced with N rows
of zeros, because it may use their number. The compiler removes what no result depends on.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..core.errors import InvalidInput
from .block_likelihood import probed_rows, run_model
from .dependence import depends_on_last
from .named_rows import block_shapes
from .numpyro_sites import SiteFacts, refuse_latent_rows

ROWS_CURE = (
    "Every array with one entry per row must be in rows, and the model must use each row by itself."
)

_TRACING = threading.RLock()
"""NumPyro keeps its handlers in one stack per process, and threads read rows of a row store."""


@dataclasses.dataclass(frozen=True, eq=False)
class PlateModel:
    """A NumPyro model that is called with any number of its rows. It holds none."""

    numpyro: ModuleType
    model: Callable[..., Any]
    plate: str
    row_shapes: dict[str, jax.ShapeDtypeStruct]
    n_rows: int
    kwargs: dict[str, Any]

    def sites(self, n_rows: int) -> dict[str, SiteFacts]:
        """The sites of the model, from a trace with `n_rows` rows."""
        found = {}

        def run(block: dict[str, Array]) -> None:
            # Means instead of draws: an improper prior has none.
            model = self.numpyro.handlers.substitute(
                self._with_rows(n_rows), substitute_fn=_prior_mean
            )
            trace = self._trace(model, block)
            found.update({name: SiteFacts.of(name, site) for name, site in trace.items()})

        jax.eval_shape(run, block_shapes(self.row_shapes, n_rows))
        return found

    def init(
        self, block: dict[str, Array], strategy: Callable[..., Any] | None
    ) -> dict[str, Array]:
        """Unconstrained values of the latent sites at the start, in one compiled program."""
        from numpyro.distributions import biject_to

        start = _prior_mean if strategy is None else strategy
        with_rows = self._with_rows(_length(block))
        initialised = self.numpyro.handlers.substitute(with_rows, substitute_fn=start)

        def unconstrained(block: dict[str, Array]) -> dict[str, Array]:
            return {
                name: biject_to(site["fn"].support).inv(site["value"])
                for name, site in self._trace(initialised, block).items()
                if site["type"] == "sample" and not site["is_observed"]
            }

        return jax.jit(unconstrained)(block)

    def log_likelihood(
        self, params: dict[str, Array], block: dict[str, Array]
    ) -> Float[Array, " n"]:
        """The log-likelihood of each row of the block."""
        n_rows = _length(block)
        trace = self._constrained_trace(params, block)
        declared = trace[self.plate]["args"][0]
        total = jnp.zeros(n_rows)
        for site in trace.values():
            axis = _axis_of(site, self.plate) if site["type"] == "sample" else None
            if axis is None:
                continue
            log_prob = _log_prob(site)
            if log_prob.ndim < -axis or log_prob.shape[axis] != n_rows:
                rule = f"have one log density per row in plate {self.plate!r}"
                found = f"shape {log_prob.shape} for {n_rows} rows"
                raise InvalidInput(f"site {site['name']!r}", rule, found, ROWS_CURE)
            per_row = jnp.moveaxis(log_prob, axis, 0).reshape(n_rows, -1).sum(1)
            # A plate that has fewer rows than it declares multiplies them by this ratio.
            total += per_row if declared == n_rows else per_row / (declared / n_rows)
        return total

    def log_prior(self, params: dict[str, Array]) -> Float[Array, ""]:
        """The log density of everything outside of the plate, with the log-Jacobians."""
        return jax.jit(lambda at: self._log_prior(at, self._zeros()))(params)

    def quantities(self, params: dict[str, Array], names: list[str]) -> dict[str, Array]:
        """The constrained values of these sites."""
        found = self._all_quantities(params, self._zeros())
        return {name: found[name] for name in names}

    def quantity_names(self, sites: dict[str, SiteFacts], init: dict[str, Array]) -> list[str]:
        """The latent sites, and the deterministic sites that do not depend on rows."""
        depends = depends_on_last(self._all_quantities, init, self._all_shapes())
        return [
            name
            for name, site in sites.items()
            if name in depends and not depends[name] and self.plate not in site.plates
        ]

    def check_latent_shapes(
        self, sites: dict[str, SiteFacts], init: dict[str, Array], block: dict[str, Array]
    ) -> None:
        """Raise if a latent site has one entry per row without the plate."""
        for name, site in self.sites(_length(block)).items():
            if name in init and site.shape != sites[name].shape:
                refuse_latent_rows(name)

    def check_observed_values(self, init: dict[str, Array]) -> None:
        """Raise if observed values inside the plate are constants of the model."""

        def values(params: dict[str, Array], block: dict[str, Array]) -> dict[str, Array]:
            trace = self._constrained_trace(params, block)
            return {name: site["value"] for name, site in trace.items() if self._is_data(site)}

        block = block_shapes(self.row_shapes, probed_rows(self.n_rows))
        for name, depends in run_model(
            lambda: depends_on_last(values, init, block), ROWS_CURE
        ).items():
            if not depends:
                rule = f"be observed through rows inside plate {self.plate!r}"
                cure = "Give the model an argument for these data, and pass them in rows."
                raise InvalidInput(f"site {name!r}", rule, "constants of the model", cure)

    def check_prior(self, init: dict[str, Array]) -> None:
        """Raise if something outside of the plate depends on rows."""

        def terms(params: dict[str, Array], block: dict[str, Array]) -> dict[str, Array]:
            trace = self._constrained_trace(params, block)
            outside = {
                f"site {name!r}": _log_prob(site)
                for name, site in trace.items()
                if site["type"] == "sample" and _axis_of(site, self.plate) is None
            }
            return outside | {"the prior": self._log_prior(params, block)}

        for name, depends in depends_on_last(terms, init, self._all_shapes()).items():
            if depends:
                rule = f"not depend on rows outside of plate {self.plate!r}"
                cure = "Move data into the plate; compute other numbers before, and pass them."
                raise InvalidInput(name, rule, "a density that does", cure)

    def _is_data(self, site: dict[str, Any]) -> bool:
        return (
            site["type"] == "sample"
            and _axis_of(site, self.plate) is not None
            and math.prod(jnp.shape(site["value"])) > 0
        )

    def _log_prior(self, params: dict[str, Array], block: dict[str, Array]) -> Float[Array, ""]:
        from numpyro.infer.util import potential_energy

        prior = self.numpyro.handlers.block(
            self._with_rows(_length(block)),
            hide_fn=lambda site: (
                site["type"] == "sample" and _axis_of(site, self.plate) is not None
            ),
        )
        with _TRACING:
            return -potential_energy(prior, (), {**block, **self.kwargs}, params)

    def _all_quantities(
        self, params: dict[str, Array], block: dict[str, Array]
    ) -> dict[str, Array]:
        from numpyro.infer.util import constrain_fn

        model = self._with_rows(_length(block))
        keywords = {**block, **self.kwargs}
        with _TRACING:
            return constrain_fn(model, (), keywords, params, return_deterministic=True)

    def _constrained_trace(
        self, params: dict[str, Array], block: dict[str, Array]
    ) -> dict[str, dict[str, Any]]:
        constrained = {
            name: value
            for name, value in self._all_quantities(params, block).items()
            if name in params
        }
        model = self._with_rows(_length(block))
        return self._trace(self.numpyro.handlers.substitute(model, data=constrained), block)

    def _trace(self, model: Callable[..., Any], block: dict[str, Array]) -> dict[str, Any]:
        with _TRACING:
            return self.numpyro.handlers.trace(model).get_trace(**block, **self.kwargs)

    def _with_rows(self, n_rows: int) -> Callable[..., Any]:
        """The model, with a plate of `n_rows` rows whatever its size and subsample size."""

        def replace_indices(site: dict[str, Any]) -> Array | None:
            if site["type"] != "plate" or site["name"] != self.plate:
                return None
            site["args"] = (site["args"][0], None)  # the plate's subsample size no longer holds
            return jnp.arange(n_rows)

        handlers = self.numpyro.handlers
        seeded = handlers.seed(self.model, jax.random.key(0))
        return handlers.substitute(seeded, substitute_fn=replace_indices)

    def _zeros(self) -> dict[str, Array]:
        return jax.tree.map(lambda row: jnp.zeros(row.shape, row.dtype), self._all_shapes())

    def _all_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return block_shapes(self.row_shapes, self.n_rows)


def _prior_mean(site: dict[str, Any]) -> Array | None:
    """The mean of a continuous latent site; the image of 0 if no finite mean is known.

    Nothing is drawn: programs that draw from a gamma distribution take seconds to compile.
    """
    if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete:
        return None
    from numpyro.distributions import biject_to

    distribution = site["fn"]
    transform = biject_to(distribution.support)
    shape = site["kwargs"].get("sample_shape", ()) + distribution.shape()
    zero = jnp.zeros(transform.inverse_shape(shape))
    try:
        unconstrained = transform.inv(jnp.broadcast_to(distribution.mean, shape))
    except (NotImplementedError, AttributeError):
        return transform(zero)
    return transform(jnp.where(jnp.all(jnp.isfinite(unconstrained)), unconstrained, zero))


def _axis_of(site: dict[str, Any], plate: str) -> int | None:
    """The axis of the plate in the site's log density, counted from the end; None if outside."""
    return next((f.dim for f in site["cond_indep_stack"] if f.name == plate), None)


def _log_prob(site: dict[str, Any]) -> Float[Array, ...]:
    extra = (site["intermediates"],) if site["intermediates"] else ()
    log_prob = site["fn"].log_prob(site["value"], *extra)
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _length(block: dict[str, Array]) -> int:
    return jax.tree.leaves(block)[0].shape[0]
