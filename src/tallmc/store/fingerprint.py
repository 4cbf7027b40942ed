"""Is it the same posterior, and the same machine? Data by their bytes, the model by its potential, the rest by its version."""

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

from .._compiler import loops_are_whole
from .._leaves import named_leaves
from .._posterior import AbstractPosterior
from .._version import __version__

_SAME_POTENTIAL = 1e-4


def fingerprint(posterior: AbstractPosterior) -> dict[str, Any]:
    """The rows, the start and the settings of a model by their sha256; of one with functions, the potential at the start too."""
    posterior = posterior.without_copies()  # another device may have others
    kinds = [f"{name} {type(value).__name__}" for name, value in vars(posterior).items()]
    digest = hashlib.sha256(f"{type(posterior).__name__} {kinds} {posterior.layout.names} {posterior.layout.shapes}".encode())
    for path, leaf in named_leaves(posterior).items():
        values = np.ascontiguousarray(leaf)
        digest.update(f"{path} {values.dtype} {values.shape}".encode())
        digest.update(values.data if values.size else b"")
    others = [leaf for leaf in jax.tree.leaves(posterior) if not eqx.is_array(leaf)]
    digest.update(repr([leaf for leaf in others if not callable(leaf)]).encode())
    potential = float(posterior.potential(posterior.init)) if any(map(callable, others)) else None
    return {"sha256": digest.hexdigest(), "potential": potential if potential is not None and np.isfinite(potential) else None}


def same_posterior(found: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Functions have no bytes to compare: two models of the same data are told apart by their potential."""
    if found["sha256"] != stored.get("sha256"):
        return False
    here, there = found["potential"], stored.get("potential")
    if here is None or there is None:
        return here is there
    return abs(here - there) <= _SAME_POTENTIAL * (1 + abs(there))


def environment() -> dict[str, str]:
    """What the last bits of a draw depend on."""
    device = jax.devices()[0]
    return {
        "tallmc": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "machine": platform.machine(),
        "processors": str(os.cpu_count()),
        "device": f"{device.platform} {device.device_kind}",
        "precision": str(jnp.zeros(0, float).dtype),
        "loops": "whole" if loops_are_whole() else "by kernel",
    }
