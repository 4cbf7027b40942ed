"""Public names are frozen, and importing the package loads no heavy dependency."""

import inspect
import subprocess
import sys

import tallmc
import tallmc.anchor
import tallmc.correction
import tallmc.results

NAMES = [
    "AbstractPosterior",
    "Adam",
    "Anchor",
    "Austerity",
    "Automatic",
    "CommunitySampler",
    "Budget",
    "Draws",
    "FitNote",
    "FlyMC",
    "InvalidInput",
    "LBFGS",
    "METHODS",
    "Method",
    "Newton",
    "NoiseCorrection",
    "Outcome",
    "Posterior",
    "PseudoMarginal",
    "PreparationError",
    "Progress",
    "SGD",
    "SamplingWarning",
    "SimplexSampler",
    "SubsampledMH",
    "LocalPosterior",
    "LocalSGLD",
    "ZigZag",
    "__version__",
    "asgld_cv",
    "asgld_cv_ps",
    "austerity_mh",
    "cache",
    "check",
    "cite",
    "consensus",
    "cp_sghmc",
    "cyclical_sgld",
    "diagnose",
    "dynamics",
    "ewsg",
    "ewsg_baoab",
    "ewsg_gla",
    "ewsg_overdamped",
    "ewsg_vr",
    "fit",
    "flymc",
    "from_numpyro",
    "from_pymc",
    "geometry",
    "gradient",
    "ingest",
    "laplace",
    "load",
    "mala",
    "mirrored_sgld",
    "mmsb_scir",
    "mmsb_sgrld",
    "marginal_effects",
    "models",
    "priors",
    "projected_sgld",
    "pseudo_marginal_mh",
    "psgld",
    "random_walk",
    "reflected_sgld",
    "reference",
    "report",
    "resume",
    "rows",
    "saga_ld",
    "saga_ld_ps",
    "scir",
    "sample",
    "schedule",
    "sg_baoab",
    "sgfs",
    "sghmc",
    "sghmc_cv",
    "sghmc_cv_ps",
    "sghmc_cv_trajectories",
    "sghmc_matrix",
    "sghmc_trajectories",
    "sgld",
    "sgld_cv",
    "sgld_cv_ps",
    "sgld_lm",
    "sgld_ps",
    "sgmclmc",
    "sgnht",
    "sgnht_cv",
    "sgnht_cv_ps",
    "sgrhmc",
    "sgrld",
    "sgrld_simplex",
    "smh",
    "store",
    "subsample",
    "subsampled_mh",
    "suggest",
    "svrg_ld",
    "tuna_mh",
    "tune",
    "tuning",
    "ula",
    "local_sgld",
    "zig_zag",
]


def test_public_names_are_frozen():
    assert sorted(tallmc.__all__) == sorted(NAMES)
    assert all(hasattr(tallmc, name) for name in NAMES)


def test_lazy_names_are_listed_and_importable():
    program = (
        "import tallmc; assert 'diagnose' in dir(tallmc); from tallmc import *; tune, diagnose.ess"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_the_core_needs_nothing_heavy_and_leaves_the_collector_on():
    heavy = (
        "blackjax xarray arviz_base arviz_stats typer rich pyarrow matplotlib pandas zarr netCDF4 "
        "scipy.special optax sklearn"
    )
    program = (
        f"import gc, sys, tallmc; print(*(set('{heavy}'.split()) & set(sys.modules))); "
        "assert gc.isenabled()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""


def test_every_named_method_is_public_and_says_what_it_is():
    for name, named in tallmc.METHODS.items():
        assert named.make is getattr(tallmc, name)
        assert named.make.__doc__
        assert set(named.axes) == {"dynamics", "gradient", "subsample", "size"}


def test_names_of_methods_mean_what_they_say():
    for name, named in tallmc.METHODS.items():
        axes = named.axes
        assert (axes["size"] == "adaptive") == name.startswith("asgld")
        assert name.endswith("_ps") == axes["subsample"].startswith("Preferential")
        assert ("_cv" in name) == (axes["gradient"] == "ControlVariate")
        assert ("ewsg" in name) == axes["subsample"].startswith("ExponentiallyWeighted")
        assert name.startswith("sgnht") == (axes["dynamics"] == "NoseHoover")


DOCUMENTED = [
    tallmc,
    tallmc.anchor,
    tallmc.correction,
    tallmc.diagnose,
    tallmc.dynamics,
    tallmc.geometry,
    tallmc.gradient,
    tallmc.methods,
    tallmc.models,
    tallmc.priors,
    tallmc.reference,
    tallmc.report,
    tallmc.results,
    tallmc.rows,
    tallmc.schedule,
    tallmc.sklearn,
    tallmc.store,
    tallmc.subsample,
    tallmc.tuning,
]


def test_public_functions_and_classes_are_documented_in_sections():
    missing = []
    for module in DOCUMENTED:
        for name in module.__all__:
            value = getattr(module, name)
            # RowBlock is a type alias.
            if not (inspect.isfunction(value) or inspect.isclass(value)) or name == "RowBlock":
                continue
            text = inspect.getdoc(value) or ""
            sections = {">>>"}
            if inspect.isfunction(value):
                signature = inspect.signature(value)
                sections |= {"**Arguments:**"} if signature.parameters else set()
                sections |= {"**Returns:**"} if signature.return_annotation != "None" else set()
            missing += [f"{module.__name__}.{name}: {s}" for s in sections if s not in text]
    assert missing == []
