"""Identify a posterior and the environment of a run.

Data in memory are compared by their bytes, row stores by the digest of their manifest, models with
functions also by their potential, and software by its version.
"""

from __future__ import annotations

import hashlib
import os
import platform
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from .._version import __version__
from ..core.compiler import loops_are_whole
from ..core.pytrees import named_leaves
from ..models.posterior import AbstractPosterior
from ..rows.sharded import ShardedRows

_POTENTIAL_TOLERANCE = 1e-4


def fingerprint(posterior: AbstractPosterior) -> dict[str, Any]:
    """The sha256 of rows, start and settings; for a model with functions also its potential."""
    model = posterior.model
    kinds = [f"{name} {type(value).__name__}" for name, value in vars(model).items()]
    header = f"{type(model).__name__} {kinds} {model.layout.names} {model.layout.shapes}"
    digest = hashlib.sha256(header.encode())
    # The quantities and the description are shown; `predictive` repeats the arrays of the model.
    left_out = ("rows", "quantities", "description", "predictive")
    settings = {name: value for name, value in vars(posterior).items() if name not in left_out}
    if isinstance(posterior.rows, ShardedRows):
        digest.update(posterior.rows.identity.encode())
        contents: Any = settings
    else:
        contents = (settings, posterior.data)
    for path, leaf in named_leaves(contents).items():
        values = np.ascontiguousarray(leaf)
        digest.update(f"{path} {values.dtype} {values.shape}".encode())
        digest.update(values.data if values.size else b"")
    static_leaves = [leaf for leaf in jax.tree.leaves(model) if not eqx.is_array(leaf)]
    digest.update(repr([leaf for leaf in static_leaves if not callable(leaf)]).encode())
    potential = (
        float(posterior.potential(posterior.init)) if any(map(callable, static_leaves)) else None
    )
    is_finite = potential is not None and np.isfinite(potential)
    return {"sha256": digest.hexdigest(), "potential": potential if is_finite else None}


def same_posterior(found: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether two fingerprints describe the same posterior.

    Functions have no bytes to compare, so models with functions are compared by their potential.
    """
    if found["sha256"] != stored.get("sha256"):
        return False
    here, there = found["potential"], stored.get("potential")
    if here is None or there is None:
        return here is there
    return abs(here - there) <= _POTENTIAL_TOLERANCE * (1 + abs(there))


def environment() -> dict[str, str]:
    """The versions and hardware on which the last bits of a draw depend."""
    device = jax.devices()[0]
    return {
        "tallmc": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processors": str(os.cpu_count()),
        "device": f"{device.platform} {device.device_kind}",
        "precision": str(jnp.zeros(0, float).dtype),
        "loops": "whole" if loops_are_whole() else "by kernel",
    }
