"""Families of responses by name, as users of tables give it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._core.errors import InvalidInput, check_number
from ..models.families import FAMILIES
from ..models.regression import Family

_OTHER_NAMES = {other: family.name for family in FAMILIES.values() for other in family.other_names}


def find_family(name: str, link: str | None = None) -> tuple[Family, str]:
    """The family of this name or of one of its other names, and its link."""
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    known = _OTHER_NAMES.get(plain.replace("_", ""), plain)
    if known not in FAMILIES:
        rule = f"be one of {', '.join(FAMILIES)}"
        raise InvalidInput("--family (family)", rule, name)
    if plain == "probit" and link is None:
        link = "probit"
    family = FAMILIES[known]
    return family, family.link(link)


def check_noise_variance(family: Family, noise_variance: float | None) -> float | None:
    """The known noise variance of the response; None if it is sampled."""
    if noise_variance is None:
        return None
    name = "--noise-variance (noise_variance)"
    if family.name != "gaussian":
        raise InvalidInput(name, "be left out unless the family is gaussian", noise_variance)
    return check_number(name, noise_variance, 0, low_open=True)


def known_noise(variance: float, response_sd: float, dtype: Any) -> Any:
    """The noise variance in the units of a response that was divided by its sd."""
    return jnp.asarray(variance / np.float64(response_sd) ** 2, dtype)
