"""Check the shapes in jaxtyping annotations while tests run.

Only arrays are checked. The package validates other arguments itself, and tests expect its errors.
"""

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

_ARRAYS = (
    *("jaxtyping.", "[Array, ", "[np.ndarray, "),
    *("Scalar", "Vector", "Matrix", "PerRow", "Positions", "Indices"),
    *("Compact", "Moves", "Predictors"),
)
_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check_arrays(function):
    """Type checker for jaxtyping that checks only the array annotations of `function`."""
    annotations = getattr(function, "__annotations__", {})
    function.__annotations__ = {
        name: value
        for name, value in annotations.items()
        if any(word in str(value) for word in _ARRAYS) and "PyTree" not in str(value)
    }
    return _checked(function) if function.__annotations__ else function


def install() -> None:
    """Install the import hook. Must run before tallmc is imported for the first time."""
    install_import_hook("tallmc", "shape_checks.check_arrays")
