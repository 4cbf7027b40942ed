"""The families of responses, one file each, and their records."""

from . import (
    bernoulli,
    beta,
    gamma,
    gaussian,
    negative_binomial,
    ordinal,
    poisson,
    quantile,
    softmax,
    student_t,
    survival,
    tweedie,
    zero_counts,
)

_RECORDS = (
    *bernoulli.FAMILIES,
    gaussian.FAMILY,
    poisson.FAMILY,
    negative_binomial.FAMILY,
    softmax.FAMILY,
    ordinal.FAMILY,
    student_t.FAMILY,
    gamma.FAMILY,
    *zero_counts.FAMILIES,
    tweedie.FAMILY,
    beta.FAMILY,
    quantile.FAMILY,
    *survival.FAMILIES,
)
FAMILIES = {family.name: family for family in _RECORDS}
