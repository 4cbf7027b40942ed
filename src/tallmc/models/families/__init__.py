"""The families of responses, one file and one record each."""

from . import (
    bernoulli,
    binomial,
    gamma,
    gaussian,
    negative_binomial,
    ordinal,
    poisson,
    softmax,
    student_t,
)

_MODULES = (
    bernoulli,
    binomial,
    gaussian,
    poisson,
    negative_binomial,
    softmax,
    ordinal,
    student_t,
    gamma,
)
FAMILIES = {module.FAMILY.name: module.FAMILY for module in _MODULES}
