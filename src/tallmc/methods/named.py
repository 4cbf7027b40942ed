"""The methods of the papers by name: each is a composition of parts.

`named_langevin.py` has the methods of the SGLD family, `named_momentum.py` the methods with
momentum, `named_constrained.py` those in boxes and simplices, `named_ewsg.py` exponential weights
for further integrators, `named_exact.py` those whose accept steps or rates read a few rows, and
this file the full-data methods, FlyMC and the table of all methods.
momentum, `named_ewsg.py` exponential weights for further integrators, `named_exact.py` those whose
accept steps or rates read a few rows, `named_simplex.py` those for points on simplices, and this
file the full-data methods, FlyMC and the table of all methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..dynamics import MALA, Langevin, RandomWalk
from ..gradient import Full
from ..subsample import AllRows
from .base import AbstractMethod
from .firefly import BoundChoice, FlyMC
from .method import Method, StepSize
from .named_constrained import mirrored_sgld, projected_sgld, reflected_sgld
from .named_ewsg import ewsg_baoab, ewsg_gla
from .named_exact import austerity_mh, pseudo_marginal_mh, smh, subsampled_mh, tuna_mh, zig_zag
from .named_langevin import (
    asgld_cv,
    asgld_cv_ps,
    cyclical_sgld,
    ewsg_overdamped,
    psgld,
    saga_ld,
    saga_ld_ps,
    sgfs,
    sgld,
    sgld_cv,
    sgld_cv_ps,
    sgld_lm,
    sgld_ps,
    sgrld,
    svrg_ld,
)
from .named_local import local_sgld
from .named_microcanonical import sgmclmc
from .named_momentum import (
    cp_sghmc,
    ewsg,
    ewsg_vr,
    sg_baoab,
    sghmc,
    sghmc_cv,
    sghmc_cv_ps,
    sghmc_cv_trajectories,
    sghmc_matrix,
    sghmc_trajectories,
    sgnht,
    sgnht_cv,
    sgnht_cv_ps,
    sgrhmc,
)
from .named_network import mmsb_scir, mmsb_sgrld
from .named_simplex import scir, sgrld_simplex


def ula(step_size: StepSize) -> Method:
    """Unadjusted Langevin algorithm: exact gradients, one pass over the data per step.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.ula(step_size=0.1).dynamics
    Langevin()
    """
    return Method(dynamics=Langevin(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def mala(step_size: StepSize) -> Method:
    """Metropolis-adjusted Langevin algorithm: exact, one pass over the data per step.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.mala(step_size=0.1).dynamics
    MALA()
    """
    return Method(dynamics=MALA(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def random_walk(step_size: StepSize) -> Method:
    """Random-walk Metropolis: exact, one pass over the data per step.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.

    **Returns:** a `Method`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.random_walk(step_size=0.1).dynamics
    RandomWalk()
    """
    return Method(dynamics=RandomWalk(), gradient=Full(), subsample=AllRows(), step_size=step_size)


def flymc(step_size: StepSize, fraction: float = 0.1, bound: BoundChoice | None = None) -> FlyMC:
    """Firefly Monte Carlo: exact, uses bright rows and a share of all rows.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `fraction`: the share of the rows whose brightness is redrawn per step.
    - `bound`: the lower bound on each likelihood. By default the bound of logistic regression.

    **Returns:** a `FlyMC`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.flymc(step_size=0.1).fraction
    0.1
    """
    return FlyMC(step_size=step_size, fraction=fraction, bound=bound)


class Named(NamedTuple):
    """A named method.

    >>> METHODS["sgld_cv"].axes["gradient"]
    'ControlVariate'
    """

    make: Callable[..., AbstractMethod]
    """Function of the step size and further settings that returns the method."""
    reference: str
    """Citation of a paper in `references.py`, and the place in the paper."""
    example: dict[str, Any]
    """Example values of the settings other than the step size."""

    @property
    def summary(self) -> str:
        """What the method is: the first line of the documentation of `make`."""
        return (self.make.__doc__ or "").partition("\n")[0]

    @property
    def axes(self) -> dict[str, str]:
        """Labels of the parts: dynamics, gradient, subsample, size."""
        return self.make(1.0, **self.example).axes


METHODS = {
    "ula": Named(ula, "Putcha, Nemeth and Fearnhead (2023), eq. 2", {}),
    "mala": Named(mala, "Roberts and Tweedie (1996)", {}),
    "random_walk": Named(
        random_walk, "Metropolis, Rosenbluth, Rosenbluth, Teller and Teller (1953)", {}
    ),
    "flymc": Named(flymc, "Maclaurin and Adams (2014)", {}),
    "subsampled_mh": Named(subsampled_mh, "Prado, Nemeth and Sherlock (2024)", {}),
    "tuna_mh": Named(tuna_mh, "Zhang, Cooper and De Sa (2020)", {}),
    "smh": Named(smh, "Cornish, Vanetti, Bouchard-Côté, Deligiannidis and Doucet (2019)", {}),
    "austerity_mh": Named(austerity_mh, "Korattikara, Chen and Welling (2014), algorithm 1", {}),
    "pseudo_marginal_mh": Named(
        pseudo_marginal_mh, "Quiroz, Kohn, Villani and Tran (2019)", {"size": 20}
    ),
    "mmsb_scir": Named(mmsb_scir, "Li, Ahn and Welling (2016), with SCIR for SGRLD", {}),
    "mmsb_sgrld": Named(mmsb_sgrld, "Li, Ahn and Welling (2016)", {}),
    "zig_zag": Named(zig_zag, "Bierkens, Fearnhead and Roberts (2019), section 5", {}),
    "sgrld_simplex": Named(sgrld_simplex, "Patterson and Teh (2013)", {"size": 2}),
    "scir": Named(scir, "Baker, Fearnhead, Fox and Nemeth (2018)", {"size": 2}),
    "sgld": Named(sgld, "Putcha, Nemeth and Fearnhead (2023), eqs. 3, 4", {"size": 2}),
    "sgld_cv": Named(sgld_cv, "Putcha, Nemeth and Fearnhead (2023), eq. 5", {"size": 2}),
    "sgld_ps": Named(sgld_ps, "Putcha, Nemeth and Fearnhead (2023), eqs. 8, 11", {"size": 2}),
    "sgld_cv_ps": Named(
        sgld_cv_ps, "Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16", {"size": 2}
    ),
    "asgld_cv": Named(asgld_cv, "Putcha, Nemeth and Fearnhead (2023), eqs. 5, 19", {}),
    "asgld_cv_ps": Named(asgld_cv_ps, "Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16, 19", {}),
    "cyclical_sgld": Named(
        cyclical_sgld, "Zhang, Li, Zhang, Chen and Wilson (2020)", {"size": 2, "cycle": 4}
    ),
    "local_sgld": Named(local_sgld, "Ahn, Korattikara, Liu, Rajan and Welling (2015)", {"size": 2}),
    "sgld_lm": Named(sgld_lm, "Leimkuhler and Matthews (2013)", {"size": 2}),
    "psgld": Named(psgld, "Li, Chen, Carlson and Carin (2016)", {"size": 2}),
    "sgfs": Named(sgfs, "Ahn, Korattikara and Welling (2012), Algorithm 1", {"size": 2}),
    "sgrld": Named(sgrld, "Nemeth and Fearnhead (2021), Table 1", {"size": 2}),
    "projected_sgld": Named(
        projected_sgld, "Bubeck, Eldan and Lehec (2018)", {"size": 2, "within": (-2.0, 2.0)}
    ),
    "reflected_sgld": Named(
        reflected_sgld, "Bossy, Gobet and Talay (2004)", {"size": 2, "within": (-2.0, 2.0)}
    ),
    "mirrored_sgld": Named(
        mirrored_sgld,
        "Hsieh, Kavis, Rolland and Cevher (2018)",
        {"size": 2, "mirrors": (-2.0, 2.0)},
    ),
    "svrg_ld": Named(
        svrg_ld, "Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)", {"size": 2, "every": 10}
    ),
    "saga_ld": Named(
        saga_ld, "Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)", {"size": 2}
    ),
    "saga_ld_ps": Named(
        saga_ld_ps, "Putcha, Nemeth and Fearnhead (2023), eq. 16 with SAGA's table", {"size": 2}
    ),
    "ewsg_overdamped": Named(
        ewsg_overdamped, "Li, Wang, Zha and Tao (2021), appendix E", {"size": 2}
    ),
    "sghmc": Named(sghmc, "Nemeth and Fearnhead (2021), Table 1", {"size": 2, "friction": 1.0}),
    "sghmc_matrix": Named(
        sghmc_matrix, "Nemeth and Fearnhead (2021), Table 1", {"size": 2, "friction": 1.0}
    ),
    "sghmc_cv": Named(
        sghmc_cv,
        "Nemeth and Fearnhead (2021), Table 1 and section 2.3",
        {"size": 2, "friction": 1.0},
    ),
    "sghmc_cv_ps": Named(
        sghmc_cv_ps,
        "Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16",
        {"size": 2, "friction": 1.0},
    ),
    "sghmc_trajectories": Named(
        sghmc_trajectories,
        "Chen, Fox and Guestrin (2014)",
        {"size": 2, "length": 5, "friction": 1.0},
    ),
    "sghmc_cv_trajectories": Named(
        sghmc_cv_trajectories,
        "Nemeth and Fearnhead (2021), section 6",
        {"size": 2, "friction": 1.0},
    ),
    "sg_baoab": Named(sg_baoab, "Leimkuhler and Matthews (2013)", {"size": 2, "friction": 1.0}),
    "sgnht": Named(sgnht, "Nemeth and Fearnhead (2021), Table 1", {"size": 2, "friction": 1.0}),
    "sgnht_cv": Named(
        sgnht_cv,
        "Nemeth and Fearnhead (2021), Table 1 and section 2.3",
        {"size": 2, "friction": 1.0},
    ),
    "sgnht_cv_ps": Named(
        sgnht_cv_ps,
        "Putcha, Nemeth and Fearnhead (2023), eqs. 12, 16",
        {"size": 2, "friction": 1.0},
    ),
    "sgrhmc": Named(sgrhmc, "Nemeth and Fearnhead (2021), Table 1", {"size": 2}),
    "cp_sghmc": Named(cp_sghmc, "Fu and Zhang (2017)", {"size": 20, "friction": 1.0}),
    "sgmclmc": Named(
        sgmclmc, "Sommer, Diao, Robnik, Seljak and Rügamer (2026)", {"size": 2, "friction": 1.0}
    ),
    "ewsg": Named(ewsg, "Li, Wang, Zha and Tao (2021), eq. 4", {"size": 2, "friction": 1.0}),
    "ewsg_baoab": Named(
        ewsg_baoab, "Li, Wang, Zha and Tao (2021), footnote 2", {"size": 2, "friction": 1.0}
    ),
    "ewsg_gla": Named(
        ewsg_gla, "Li, Wang, Zha and Tao (2021), footnote 2", {"size": 2, "friction": 1.0}
    ),
    "ewsg_vr": Named(
        ewsg_vr,
        "Li, Wang, Zha and Tao (2021), appendix F",
        {"size": 2, "friction": 1.0, "every": 10},
    ),
}
"""All named methods."""
