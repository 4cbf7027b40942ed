"""Check the shapes in jaxtyping annotations while tests run.

Only arrays are checked. The package validates other arguments itself, and tests expect its errors.
Checks are made for a function when it is called for the first time: most functions of the package
are never called by the process that imports them, and to generate all checks takes ten seconds.

>>> from tallmc._core.arrays import IdentityMap
>>> IdentityMap().pull(np.zeros(3, int))  # doctest: +IGNORE_EXCEPTION_DETAIL
Traceback (most recent call last):
jaxtyping.TypeCheckError: int
"""

import functools
import inspect

import jaxtyping
import numpy as np  # noqa: F401, for the example
from beartype import BeartypeConf, beartype

_ARRAYS = (
    *("jaxtyping.", "[Array, ", "[np.ndarray, "),
    *("Scalar", "Vector", "Matrix", "PerRow", "Positions", "Indices"),
    *("Compact", "Moves", "Predictors"),
)
_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def _arrays(annotations) -> dict:
    return {
        name: value
        for name, value in annotations.items()
        if any(word in str(value) for word in _ARRAYS) and "PyTree" not in str(value)
    }


def check_arrays(function):
    """Type checker for jaxtyping that checks only the array annotations of `function`."""
    function.__annotations__ = _arrays(getattr(function, "__annotations__", {}))
    return _checked(function) if function.__annotations__ else function


def _jaxtyped_when_called(*, typechecker):
    check = _jaxtyped(typechecker=typechecker)

    def decorate(target):
        if inspect.isclass(target):
            return check(target)
        if not _arrays(target.__annotations__):
            return target
        checked = functools.cache(lambda: check(target))

        @functools.wraps(target)
        def call(*args, **kwargs):
            return checked()(*args, **kwargs)

        return call

    return decorate


def install() -> None:
    """Install the import hook. Must run before tallmc is imported for the first time."""
    jaxtyping.jaxtyped = _jaxtyped_when_called
    jaxtyping.install_import_hook("tallmc", "shape_checks.check_arrays")
