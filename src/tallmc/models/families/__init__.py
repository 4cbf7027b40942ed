"""The families of responses, one file each, and their records."""

from . import (
    bernoulli,
    beta,
    binomial,
    gamma,
    gaussian,
    negative_binomial,
    ordinal,
    poisson,
    softmax,
    student_t,
    zero_counts,
)

_RECORDS = (
    bernoulli.FAMILY,
    binomial.FAMILY,
    gaussian.FAMILY,
    poisson.FAMILY,
    negative_binomial.FAMILY,
    softmax.FAMILY,
    ordinal.FAMILY,
    student_t.FAMILY,
    gamma.FAMILY,
    *zero_counts.FAMILIES,
    beta.FAMILY,
)
FAMILIES = {family.name: family for family in _RECORDS}
