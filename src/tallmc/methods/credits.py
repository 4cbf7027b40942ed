"""The papers that the parts of a method come from, so that a run can be cited.

A run keeps the text of its method, also in files. The names of the classes in this text are the
parts that the run used.
"""

from __future__ import annotations

import re

from .references import Reference, cited_in

NUTS = "NUTS"
"""What the reference sampler calls its method."""
CONSENSUS = "consensus"
"""What stands for `tallmc.consensus`, which runs another method on every shard."""

CREDITS = {
    "Adaptive": "Putcha, Nemeth and Fearnhead (2023)",
    "Austerity": "Korattikara, Chen and Welling (2014)",
    "CommunitySampler": "Li, Ahn and Welling (2016)",
    "ControlVariate": "Baker, Fearnhead, Fox and Nemeth (2019)",
    "Cyclical": "Zhang, Li, Zhang, Chen and Wilson (2020)",
    "Determinantal": "Zhang, Kjellström and Mandt (2017)",
    "ExponentiallyWeighted": "Li, Wang, Zha and Tao (2021)",
    "FisherScoring": "Ahn, Korattikara and Welling (2012)",
    "FlyMC": "Maclaurin and Adams (2014)",
    "GeometricLangevin": "Bou-Rabee and Owhadi (2010)",
    "HMC": "Duane, Kennedy, Pendleton and Roweth (1987)",
    "Hamiltonian": "Chen, Fox and Guestrin (2014)",
    "Langevin": "Welling and Teh (2011)",
    "LeimkuhlerMatthews": "Leimkuhler and Matthews (2013)",
    "LocalSGLD": "Ahn, Korattikara, Liu, Rajan and Welling (2015)",
    "MALA": "Roberts and Tweedie (1996)",
    "MatrixFriction": "Chen, Fox and Guestrin (2014)",
    "Microcanonical": "Sommer, Diao, Robnik, Seljak and Rügamer (2026)",
    "Mirrored": "Hsieh, Kavis, Rolland and Cevher (2018)",
    "ModeJumpingHMC": "Duane, Kennedy, Pendleton and Roweth (1987)",
    "NoiseCorrection": "Ahn, Korattikara and Welling (2012)",
    "NoiseDiagonal": "Sommer, Diao, Robnik, Seljak and Rügamer (2026)",
    "NoseHoover": "Ding, Fang, Babbush, Chen, Skeel and Neven (2014)",
    "Optimal": "Putcha, Nemeth and Fearnhead (2023)",
    "PoissonDisk": "Zhang, Öztireli, Mandt and Salvi (2019)",
    "Preferential": "Putcha, Nemeth and Fearnhead (2023)",
    "Projected": "Bubeck, Eldan and Lehec (2018)",
    "PseudoMarginal": "Quiroz, Kohn, Villani and Tran (2019)",
    "RMSprop": "Li, Chen, Carlson and Carin (2016)",
    "RandomWalk": "Metropolis, Rosenbluth, Rosenbluth, Teller and Teller (1953)",
    "Recipe": "Ma, Chen and Fox (2015)",
    "Reflected": "Bossy, Gobet and Talay (2004)",
    "RiemannianHamiltonian": "Ma, Chen and Fox (2015)",
    "RiemannianLangevin": "Patterson and Teh (2013)",
    "SAGA": "Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)",
    "SVRG": "Dubey, Reddi, Williamson, Póczos, Smola and Xing (2016)",
    "Splitting": "Leimkuhler and Matthews (2013)",
    "Stratified": "Fu and Zhang (2017)",
    "Underdamped": "Chen, Fox and Guestrin (2014)",
    "ZigZag": "Bierkens, Fearnhead and Roberts (2019)",
    NUTS: "Hoffman and Gelman (2014)",
    CONSENSUS: "Scott, Blocker, Bonassi, Chipman, George and McCulloch (2016)",
    # A setting decides between papers.
    "SimplexSampler cir": "Baker, Fearnhead, Fox and Nemeth (2018)",
    "SimplexSampler expanded": "Patterson and Teh (2013)",
    "SubsampledMH thinned": "Prado, Nemeth and Sherlock (2024)",
    "SubsampledMH tuna": "Zhang, Cooper and De Sa (2020)",
    "SubsampledMH factorised": "Cornish, Vanetti, Bouchard-Côté, Deligiannidis and Doucet (2019)",
}
WITHOUT_PAPER = frozenset(
    {
        "AllRows",
        "Automatic",
        "Bandit",
        "Constant",
        "Dense",
        "Diagonal",
        "Fixed",
        "Full",
        "Halved",
        "Identity",
        "Measured",
        "Method",
        "Polynomial",
        "Simple",
        "Uniform",
    }
)
"""Parts that need no citation: those of this library, and those that everybody knows."""


def papers_of(method: str) -> tuple[Reference, ...]:
    """The papers to cite for a run of a method, given the text of the method.

    >>> [paper.year for paper in papers_of("Method(dynamics=NoseHoover(friction=1.0))")]
    [2014]
    """
    setting = re.search(r"(?:rule|transition)='(\w+)", method)
    names = re.findall(r"\w+", method)
    parts = [*names, *(f"{name} {setting[1]}" for name in names if setting)]
    return cited_in("; ".join(CREDITS[part] for part in parts if part in CREDITS))


def is_credited(part: str) -> bool:
    """Whether it is known what to cite for a part."""
    return part in WITHOUT_PAPER or any(name.split()[0] == part for name in CREDITS)
