"""The papers that named methods come from. Text cites them, and this table has what they are.

The records in `named.py` and `named_*.py` begin with a citation, such as "Chen, Fox and Guestrin
(2014)". The files of the parts also use short forms: "Dubey et al. (2016)", or the key
"nemeth-2021". `with_citations` turns both into citations.
"""

from __future__ import annotations

from typing import NamedTuple


class Reference(NamedTuple):
    """A paper.

    >>> REFERENCES[0].citation
    'Ahn, Korattikara and Welling (2012)'
    """

    authors: tuple[str, ...]
    """Surnames, in the order of the paper."""
    year: int
    title: str
    venue: str
    key: str | None = None
    """What the files of the parts call the paper, if it has a short name there."""
    is_et_al: bool = True
    """Whether "first author et al. (year)" means this paper, and no other one."""

    @property
    def citation(self) -> str:
        """All authors and the year."""
        *others, last = self.authors
        return f"{', '.join(others)} and {last} ({self.year})"

    @property
    def short_forms(self) -> tuple[str, ...]:
        """Other names of the paper in the text of this package."""
        first, second = self.authors[:2]
        several: tuple[str, ...] = (f"{first}, {second} et al. ({self.year})",)
        if self.is_et_al:
            several = (f"{first} et al. ({self.year})", *several)
        key = () if self.key is None else (self.key,)
        return key if len(self.authors) == 2 else (*several, *key)

    def __str__(self) -> str:
        return f"{self.citation}. {self.title}. {self.venue}."


REFERENCES = (
    Reference(
        ("Ahn", "Korattikara", "Welling"),
        2012,
        "Bayesian posterior sampling via stochastic gradient Fisher scoring",
        "ICML",
    ),
    Reference(
        ("Bierkens", "Fearnhead", "Roberts"),
        2019,
        "The zig-zag process and super-efficient sampling for Bayesian analysis of big data",
        "The Annals of Statistics",
    ),
    Reference(
        ("Chen", "Fox", "Guestrin"), 2014, "Stochastic gradient Hamiltonian Monte Carlo", "ICML"
    ),
    Reference(
        ("Cornish", "Vanetti", "Bouchard-Côté", "Deligiannidis", "Doucet"),
        2019,
        "Scalable Metropolis–Hastings for exact Bayesian inference with large datasets",
        "ICML",
    ),
    Reference(
        ("Dubey", "Reddi", "Williamson", "Póczos", "Smola", "Xing"),
        2016,
        "Variance reduction in stochastic gradient Langevin dynamics",
        "NeurIPS",
    ),
    Reference(
        ("Fu", "Zhang"),
        2017,
        "CPSG-MCMC: clustering-based preprocessing method for stochastic gradient MCMC",
        "AISTATS",
    ),
    Reference(
        ("Korattikara", "Chen", "Welling"),
        2014,
        "Austerity in MCMC land: cutting the Metropolis–Hastings budget",
        "ICML",
    ),
    Reference(
        ("Leimkuhler", "Matthews"),
        2013,
        "Rational construction of stochastic numerical methods for molecular sampling",
        "Applied Mathematics Research eXpress",
    ),
    Reference(
        ("Li", "Chen", "Carlson", "Carin"),
        2016,
        "Preconditioned stochastic gradient Langevin dynamics for deep neural networks",
        "AAAI",
    ),
    Reference(
        ("Li", "Wang", "Zha", "Tao"),
        2021,
        "Improving sampling accuracy of stochastic gradient MCMC methods via non-uniform "
        "subsampling of gradients",
        "AIMS; arXiv 2002.08949",
        "li-2021",
    ),
    Reference(
        ("Maclaurin", "Adams"), 2014, "Firefly Monte Carlo: exact MCMC with subsets of data", "UAI"
    ),
    Reference(
        ("Metropolis", "Rosenbluth", "Rosenbluth", "Teller", "Teller"),
        1953,
        "Equation of state calculations by fast computing machines",
        "The Journal of Chemical Physics",
    ),
    Reference(
        ("Nemeth", "Fearnhead"),
        2021,
        "Stochastic gradient Markov chain Monte Carlo",
        "Journal of the American Statistical Association",
        "nemeth-2021",
    ),
    Reference(
        ("Prado", "Nemeth", "Sherlock"),
        2024,
        "Metropolis–Hastings with scalable subsampling",
        "arXiv 2407.19602",
    ),
    Reference(
        ("Putcha", "Nemeth", "Fearnhead"),
        2023,
        "Preferential subsampling for stochastic gradient Langevin dynamics",
        "AISTATS",
        "putcha-2023",
    ),
    Reference(
        ("Quiroz", "Kohn", "Villani", "Tran"),
        2019,
        "Speeding up MCMC by efficient data subsampling",
        "Journal of the American Statistical Association",
    ),
    Reference(
        ("Roberts", "Tweedie"),
        1996,
        "Exponential convergence of Langevin distributions and their discrete approximations",
        "Bernoulli",
    ),
    Reference(
        ("Sommer", "Diao", "Robnik", "Seljak", "Rügamer"),
        2026,
        "Can microcanonical Langevin dynamics leverage mini-batch gradient noise?",
        "arXiv 2602.06500",
    ),
    Reference(
        ("Zhang", "Cooper", "De Sa"),
        2020,
        "Asymptotically optimal exact minibatch Metropolis–Hastings",
        "NeurIPS",
        is_et_al=False,
    ),
    Reference(
        ("Zhang", "Li", "Zhang", "Chen", "Wilson"),
        2020,
        "Cyclical stochastic gradient MCMC for Bayesian deep learning",
        "ICLR",
    ),
)
"""All papers, by the name of the first author."""


def with_citations(text: str) -> str:
    """The text with full citations in place of short forms.

    >>> with_citations("as in nemeth-2021, Table 1")
    'as in Nemeth and Fearnhead (2021), Table 1'
    """
    for reference in REFERENCES:
        for short in reference.short_forms:
            text = text.replace(short, reference.citation)
    return text


def cited_in(text: str) -> tuple[Reference, ...]:
    """The papers that a text with full citations cites.

    >>> [reference.year for reference in cited_in("Nemeth and Fearnhead (2021), Table 1")]
    [2021]
    """
    return tuple(reference for reference in REFERENCES if reference.citation in text)
