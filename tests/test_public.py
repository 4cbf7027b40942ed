"""What users import: the names are frozen, and importing them is light."""

import subprocess
import sys

import tallmc

NAMES = [
    "AbstractPosterior",
    "Adam",
    "Anchor",
    "PreparationError",
    "Draws",
    "InvalidInput",
    "LBFGS",
    "METHODS",
    "Method",
    "Newton",
    "Outcome",
    "Posterior",
    "Progress",
    "SamplingWarning",
    "__version__",
    "asgld_cv",
    "asgld_cv_ps",
    "dynamics",
    "gradient",
    "laplace",
    "mala",
    "models",
    "sample",
    "schedule",
    "sgld",
    "sgld_cv",
    "sgld_cv_ps",
    "sgld_ps",
    "subsample",
    "tune",
    "ula",
]


def test_public_names_are_frozen():
    assert sorted(tallmc.__all__) == sorted(NAMES)
    assert all(hasattr(tallmc, name) for name in NAMES)


def test_importing_the_core_needs_nothing_heavy():
    heavy = "xarray arviz_base arviz_stats typer rich pyarrow matplotlib pandas zarr netCDF4"
    program = f"import sys, tallmc; print(*(set('{heavy}'.split()) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_every_named_method_has_its_composition_and_equation():
    for name, named in tallmc.METHODS.items():
        assert named.make is getattr(tallmc, name)
        assert named.make.__doc__
        method = named.make(0.1) if named.size in ("N", "adaptive") else named.make(0.1, size=2)
        assert (named.size == "adaptive") == isinstance(method.size, tallmc.subsample.Adaptive)
        assert (named.gradient == "control variate") == isinstance(method.gradient, tallmc.gradient.ControlVariate)
        assert named.subsample.startswith("preferential") == isinstance(method.subsample, tallmc.subsample.Preferential)
        assert (named.dynamics == "MALA") == isinstance(method.dynamics, tallmc.dynamics.MALA)
