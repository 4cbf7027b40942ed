"""A NumPyro model with a plate over its rows, as a posterior.

    log p(θ, x_1, …, x_N) = log prior(θ) + Σ_i log p(x_i | θ)

θ are the unconstrained parameters, and the log prior includes the log-Jacobians.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var
from jaxtyping import Array, Float, PyTree

from .._core.arrays import ComputedQuantities, layout_of
from .._core.errors import InvalidInput
from .._core.packages import missing
from ..models.posterior import Posterior
from .rows import check_block_likelihood, named_rows, rows_to_probe, run_model

Arrays = dict[str, Array]
Site = dict[str, Any]  # an entry of a trace


def depends_on_last(
    function: Callable[[Any, Any], Site], fixed: PyTree, varied: PyTree
) -> dict[str, bool]:
    """For each result of `function(fixed, varied)`: whether it depends on `varied`.

    The function is traced, not run, so the arguments may be shapes. The shape of `varied` does not
    count. A program called inside counts as if each of its results depended on all its arguments.
    """
    program, shapes = jax.make_jaxpr(function, return_shape=True)(fixed, varied)
    n_fixed = len(jax.tree.leaves(fixed))
    touched = set(program.jaxpr.invars[n_fixed:])
    for equation in program.jaxpr.eqns:
        inputs = {entry for entry in equation.invars if isinstance(entry, Var)}
        if inputs & touched:
            touched.update(equation.outvars)
    found = [isinstance(out, Var) and out in touched for out in program.jaxpr.outvars]
    by_name = jax.tree.unflatten(jax.tree.structure(shapes), found)
    return {name: any(jax.tree.leaves(value)) for name, value in by_name.items()}


# The sites of a NumPyro model: what a trace tells about them, and which of them are refused.
@dataclasses.dataclass(frozen=True)
class SiteFacts:
    """What a trace tells about a site."""

    type: str
    is_observed: bool
    is_discrete: bool
    shape: tuple[int, ...]
    plates: frozenset[str]  # the plates around the site
    dims: tuple[str, ...] | None  # names of the dimensions; None if none has a name
    size: int | None  # the size of a plate

    @classmethod
    def of(cls, name: str, site: Site) -> SiteFacts:
        is_sample, is_plate = site["type"] == "sample", site["type"] == "plate"
        frames = site.get("cond_indep_stack", ())
        shape = jnp.shape(site["value"]) if site["type"] in ("sample", "deterministic") else ()
        return cls(
            type=site["type"],
            is_observed=is_sample and site["is_observed"],
            is_discrete=is_sample and bool(site["fn"].support.is_discrete),
            shape=shape,
            plates=frozenset(frame.name for frame in frames),
            dims=_dims(name, site, shape, frames),
            size=site["args"][0] if is_plate else None,
        )


def check_sites(sites: dict[str, SiteFacts], plate: str, n_rows: int) -> None:
    """Raise unless the model has the plate over rows, and only sites that it may have."""
    plates = {name: site for name, site in sites.items() if site.type == "plate"}
    if plate not in plates:
        rule = "be the name of the model's plate over rows"
        cure = f"The model has the plates: {', '.join(plates) or 'none'}."
        raise InvalidInput("plate", rule, plate, cure)
    if plates[plate].size != n_rows:
        cure = 'Take the size from the data: numpyro.plate("N", len(y)).'
        rule = f"have one entry per row ({n_rows})"
        raise InvalidInput(f"plate {plate!r}", rule, plates[plate].size, cure)
    for name, site in sites.items():
        if site.type in ("param", "mutable"):
            cure = "Give it a prior: numpyro.sample(name, distribution)."
            raise InvalidInput(f"site {name!r}", "be a sample site", f"a {site.type} site", cure)
        if site.type != "sample" or site.is_observed:
            continue
        if plate in site.plates:
            refuse_latent_rows(name)
        if site.is_discrete:
            cure = "Sum it out, for example with numpyro.distributions.MixtureSameFamily."
            raise InvalidInput(f"site {name!r}", "be continuous", "a discrete latent", cure)
    if not any(site.is_observed and plate in site.plates for site in sites.values()):
        rule = f"have an observed site inside plate {plate!r}"
        raise InvalidInput("model", rule, "none", "Pass the data in rows, with obs=.")


def refuse_latent_rows(name: str) -> None:
    cure = (
        "If it is data, pass it in rows. Otherwise integrate it out: with one unknown per row, "
        "few rows say nothing about the others."
    )
    raise InvalidInput(f"site {name!r}", "not be one unknown per row", "a latent site", cure)


def _dims(name: str, site: Site, shape: tuple[int, ...], frames: Any) -> tuple[str, ...] | None:
    """Plates name dimensions, and so does `infer={"event_dims": [...]}`, as ArviZ reads it."""
    n_event = site["fn"].event_dim if site["type"] == "sample" else 0
    n_batch = len(shape) - n_event
    events = tuple(site.get("infer", {}).get("event_dims", ()))
    named = dict(enumerate(events, n_batch)) if len(events) == n_event else {}
    for frame in frames:
        axis = n_batch + frame.dim
        if axis >= 0 and shape[axis] == frame.size:
            named[axis] = frame.name
    if not named:
        return None
    return tuple(named.get(axis, f"{name}_dim_{axis}") for axis in range(len(shape)))


# A NumPyro model as functions of unconstrained parameters and of any number of its rows.
#
# The sites inside the plate over rows give the log-likelihoods of the rows: the model is called
# with a block of rows, and the plate's indices are replaced. Everything else is the log prior:
# NumPyro's own `potential_energy` without the sites of the plate. For the prior the model is traced
# with N rows of zeros, because it may use their number. The compiler removes what no result depends
# on.

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

        def run(block: Arrays) -> None:
            # Means instead of draws: an improper prior has none.
            model = self.numpyro.handlers.substitute(
                self._with_rows(n_rows), substitute_fn=_prior_mean
            )
            trace = self._trace(model, block)
            found.update({name: SiteFacts.of(name, site) for name, site in trace.items()})

        jax.eval_shape(run, self._shapes(n_rows))
        return found

    def init(self, block: Arrays, strategy: Callable[..., Any] | None) -> Arrays:
        """Unconstrained values of the latent sites at the start, in one compiled program."""
        from numpyro.distributions import biject_to

        start = _prior_mean if strategy is None else strategy
        with_rows = self._with_rows(_length(block))
        initialised = self.numpyro.handlers.substitute(with_rows, substitute_fn=start)

        def unconstrained(block: Arrays) -> Arrays:
            return {
                name: biject_to(site["fn"].support).inv(site["value"])
                for name, site in self._trace(initialised, block).items()
                if site["type"] == "sample" and not site["is_observed"]
            }

        return jax.jit(unconstrained)(block)

    def log_likelihood(self, params: Arrays, block: Arrays) -> Float[Array, " n"]:
        """The log-likelihood of each row of the block."""
        n_rows = _length(block)
        trace = self._constrained_trace(params, block)
        declared = trace[self.plate]["args"][0]
        total = jnp.zeros(n_rows)
        for site in trace.values():
            axis = _axis_of(site, self.plate)
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

    def log_prior(self, params: Arrays) -> Float[Array, ""]:
        """The log density of everything outside of the plate, with the log-Jacobians."""
        return jax.jit(lambda at: self._log_prior(at, self._zeros()))(params)

    def quantities(self, params: Arrays, names: list[str]) -> Arrays:
        """The constrained values of these sites."""
        found = self._all_quantities(params, self._zeros())
        return {name: found[name] for name in names}

    def quantity_names(self, sites: dict[str, SiteFacts], init: Arrays) -> list[str]:
        """The latent sites, and the deterministic sites that do not depend on rows."""
        depends = depends_on_last(self._all_quantities, init, self._shapes(self.n_rows))
        return [
            name
            for name, site in sites.items()
            if name in depends and not depends[name] and self.plate not in site.plates
        ]

    def check_observed_values(self, init: Arrays, block: Arrays) -> None:
        """Raise if observed values inside the plate are constants of the model."""

        def values(params: Arrays, block: Arrays) -> Arrays:
            return {
                name: site["value"]
                for name, site in self._constrained_trace(params, block).items()
                if _axis_of(site, self.plate) is not None and jnp.size(site["value"])
            }

        found = run_model(lambda: depends_on_last(values, init, block), ROWS_CURE)
        for name, depends in found.items():
            if not depends:
                rule = f"be observed through rows inside plate {self.plate!r}"
                cure = "Give the model an argument for these data, and pass them in rows."
                raise InvalidInput(f"site {name!r}", rule, "constants of the model", cure)

    def check_prior(self, init: Arrays) -> None:
        """Raise if something outside of the plate depends on rows."""

        def terms(params: Arrays, block: Arrays) -> Arrays:
            trace = self._constrained_trace(params, block)
            outside = {
                f"site {name!r}": _log_prob(site)
                for name, site in trace.items()
                if site["type"] == "sample" and _axis_of(site, self.plate) is None
            }
            return outside | {"the prior": self._log_prior(params, block)}

        for name, depends in depends_on_last(terms, init, self._shapes(self.n_rows)).items():
            if depends:
                rule = f"not depend on rows outside of plate {self.plate!r}"
                cure = "Move data into the plate; compute other numbers before, and pass them."
                raise InvalidInput(name, rule, "a density that does", cure)

    def _log_prior(self, params: Arrays, block: Arrays) -> Float[Array, ""]:
        from numpyro.infer.util import potential_energy

        prior = self.numpyro.handlers.block(
            self._with_rows(_length(block)),
            hide_fn=lambda site: _axis_of(site, self.plate) is not None,
        )
        with _TRACING:
            return -potential_energy(prior, (), {**block, **self.kwargs}, params)

    def _all_quantities(self, params: Arrays, block: Arrays) -> Arrays:
        from numpyro.infer.util import constrain_fn

        model = self._with_rows(_length(block))
        with _TRACING:
            keywords = {**block, **self.kwargs}
            return constrain_fn(model, (), keywords, params, return_deterministic=True)

    def _constrained_trace(self, params: Arrays, block: Arrays) -> dict[str, Site]:
        quantities = self._all_quantities(params, block)
        constrained = {name: value for name, value in quantities.items() if name in params}
        model = self._with_rows(_length(block))
        return self._trace(self.numpyro.handlers.substitute(model, data=constrained), block)

    def _trace(self, model: Callable[..., Any], block: Arrays) -> Site:
        with _TRACING:
            return self.numpyro.handlers.trace(model).get_trace(**block, **self.kwargs)

    def _with_rows(self, n_rows: int) -> Callable[..., Any]:
        """The model, with a plate of `n_rows` rows whatever its size and subsample size."""

        def replace_indices(site: Site) -> Array | None:
            if site["type"] != "plate" or site["name"] != self.plate:
                return None
            site["args"] = (site["args"][0], None)  # the plate's subsample size no longer holds
            return jnp.arange(n_rows)

        handlers = self.numpyro.handlers
        seeded = handlers.seed(self.model, jax.random.key(0))
        return handlers.substitute(seeded, substitute_fn=replace_indices)

    def _zeros(self) -> Arrays:
        shapes = self._shapes(self.n_rows)
        return jax.tree.map(lambda row: jnp.zeros(row.shape, row.dtype), shapes)

    def _shapes(self, n_rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        rows = self.row_shapes.items()
        return {name: jax.ShapeDtypeStruct((n_rows, *row.shape), row.dtype) for name, row in rows}


def _prior_mean(site: Site) -> Array | None:
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


def _axis_of(site: Site, plate: str) -> int | None:
    """The axis of the plate in a sample site's log density, from the end; None if outside."""
    frames = site["cond_indep_stack"] if site["type"] == "sample" else ()
    return next((frame.dim for frame in frames if frame.name == plate), None)


def _log_prob(site: Site) -> Float[Array, ...]:
    extra = (site["intermediates"],) if site["intermediates"] else ()
    log_prob = site["fn"].log_prob(site["value"], *extra)
    return log_prob if site["scale"] is None else site["scale"] * log_prob


def _length(block: Arrays) -> int:
    return jax.tree.leaves(block)[0].shape[0]


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
    try:
        import numpyro
    except ImportError:
        raise missing("numpyro", "tallmc.from_numpyro") from None
    table = named_rows(rows)
    if both := set(kwargs) & set(table.row_shapes):
        raise InvalidInput("kwargs", "not name columns of rows", sorted(both))
    converted = PlateModel(numpyro, model, plate, table.row_shapes, table.n_rows, kwargs)
    sites = run_model(lambda: converted.sites(table.n_rows), ROWS_CURE)
    check_sites(sites, plate, table.n_rows)
    block = rows_to_probe(table)
    init = run_model(lambda: converted.init(block, init_strategy), ROWS_CURE)
    for name, site in converted.sites(_length(block)).items():
        if name in init and site.shape != sites[name].shape:  # an entry per row without the plate
            refuse_latent_rows(name)
    converted.check_observed_values(init, block)
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
    densities = converted.log_likelihood, converted.log_prior
    return Posterior(*densities, table, init, batched=True, quantities=quantities)
