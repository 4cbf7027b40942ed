"""The sites of a NumPyro model: what a trace tells about them, and which of them are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ..core.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class SiteFacts:
    """What a trace tells about a site."""

    type: str
    is_observed: bool
    is_discrete: bool
    shape: tuple[int, ...]
    plates: frozenset[str]
    """The plates around the site."""
    dims: tuple[str, ...] | None
    """Names of the dimensions; None if none has a name."""
    size: int | None
    """The size of a plate."""

    @classmethod
    def of(cls, name: str, site: dict[str, Any]) -> SiteFacts:
        """From an entry of a trace."""
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


def check_plate(sites: dict[str, SiteFacts], plate: str, n_rows: int) -> None:
    plates = {name: site for name, site in sites.items() if site.type == "plate"}
    if plate not in plates:
        rule = "be the name of the model's plate over rows"
        cure = f"The model has the plates: {', '.join(plates) or 'none'}."
        raise InvalidInput("plate", rule, plate, cure)
    if plates[plate].size != n_rows:
        cure = 'Take the size from the data: numpyro.plate("N", len(y)).'
        rule = f"have one entry per row ({n_rows})"
        raise InvalidInput(f"plate {plate!r}", rule, plates[plate].size, cure)


def check_sites(sites: dict[str, SiteFacts], plate: str) -> None:
    inside = [site for site in sites.values() if plate in site.plates and site.type == "sample"]
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
    if not any(site.is_observed for site in inside):
        rule = f"have an observed site inside plate {plate!r}"
        raise InvalidInput("model", rule, "none", "Pass the data in rows, with obs=.")


def refuse_latent_rows(name: str) -> None:
    cure = (
        "If it is data, pass it in rows. Otherwise integrate it out: with one unknown per row, "
        "few rows say nothing about the others."
    )
    raise InvalidInput(f"site {name!r}", "not be one unknown per row", "a latent site", cure)


def _dims(
    name: str, site: dict[str, Any], shape: tuple[int, ...], frames: Any
) -> tuple[str, ...] | None:
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
