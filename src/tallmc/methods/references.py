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
    """"Surname, given names", in the order of the paper."""
    year: int
    title: str
    venue: str
    key: str | None = None
    """What the files of the parts call the paper, if it has a short name there."""
    is_et_al: bool = True
    """Whether "first author et al. (year)" means this paper, and no other one."""

    @property
    def surnames(self) -> tuple[str, ...]:
        """The authors without their given names."""
        return tuple(author.partition(",")[0] for author in self.authors)

    @property
    def citation(self) -> str:
        """All authors and the year."""
        *others, last = self.surnames
        return f"{', '.join(others)} and {last} ({self.year})"

    @property
    def bibtex(self) -> str:
        """The entry for a bibliography."""
        first = self.title.split()[0]
        name = "".join(filter(str.isalnum, f"{self.surnames[0]}{self.year}{first}")).lower()
        kind, field = _kind(self.venue)
        # Braces keep the capitals of names such as Langevin.
        lines = (
            f"@{kind}{{{name},",
            f"  author = {{{' and '.join(self.authors)}}},",
            f"  title = {{{{{self.title}}}}},",
            f"  {field} = {{{self.venue}}},",
            f"  year = {{{self.year}}},",
            "}",
        )
        return "\n".join(lines)

    @property
    def short_forms(self) -> tuple[str, ...]:
        """Other names of the paper in the text of this package."""
        first, second = self.surnames[:2]
        several: tuple[str, ...] = (f"{first}, {second} et al. ({self.year})",)
        if self.is_et_al:
            several = (f"{first} et al. ({self.year})", *several)
        key = () if self.key is None else (self.key,)
        return key if len(self.authors) == 2 else (*several, *key)

    def __str__(self) -> str:
        return f"{self.citation}. {self.title}. {self.venue}."


_CONFERENCES = ("AAAI", "AISTATS", "ICLR", "ICML", "KDD", "NeurIPS", "UAI")


def _kind(venue: str) -> tuple[str, str]:
    """The type of a BibTeX entry, and the field for the venue."""
    if venue in _CONFERENCES:
        return "inproceedings", "booktitle"
    return ("misc", "howpublished") if venue.startswith("arXiv") else ("article", "journal")


REFERENCES = (
    Reference(
        ("Ahn, Sungjin", "Korattikara, Anoop", "Welling, Max"),
        2012,
        "Bayesian posterior sampling via stochastic gradient Fisher scoring",
        "ICML",
    ),
    Reference(
        ("Ahn, Sungjin", "Korattikara, Anoop", "Liu, Nathan", "Rajan, Suju", "Welling, Max"),
        2015,
        "Large-scale distributed Bayesian matrix factorization using stochastic gradient MCMC",
        "KDD",
    ),
    Reference(
        ("Baker, Jack", "Fearnhead, Paul", "Fox, Emily B.", "Nemeth, Christopher"),
        2018,
        "Large-scale stochastic sampling from the probability simplex",
        "NeurIPS",
    ),
    Reference(
        ("Baker, Jack", "Fearnhead, Paul", "Fox, Emily B.", "Nemeth, Christopher"),
        2019,
        "Control variates for stochastic gradient MCMC",
        "Statistics and Computing",
    ),
    Reference(
        ("Bierkens, Joris", "Fearnhead, Paul", "Roberts, Gareth O."),
        2019,
        "The zig-zag process and super-efficient sampling for Bayesian analysis of big data",
        "The Annals of Statistics",
    ),
    Reference(
        ("Bossy, Mireille", "Gobet, Emmanuel", "Talay, Denis"),
        2004,
        "A symmetrized Euler scheme for an efficient approximation of reflected diffusions",
        "Journal of Applied Probability",
    ),
    Reference(
        ("Bou-Rabee, Nawaf", "Owhadi, Houman"),
        2010,
        "Long-run accuracy of variational integrators in the stochastic context",
        "SIAM Journal on Numerical Analysis",
    ),
    Reference(
        ("Bubeck, Sébastien", "Eldan, Ronen", "Lehec, Joseph"),
        2018,
        "Sampling from a log-concave distribution with projected Langevin Monte Carlo",
        "Discrete & Computational Geometry",
    ),
    Reference(
        ("Chen, Tianqi", "Fox, Emily B.", "Guestrin, Carlos"),
        2014,
        "Stochastic gradient Hamiltonian Monte Carlo",
        "ICML",
    ),
    Reference(
        (
            "Cornish, Rob",
            "Vanetti, Paul",
            "Bouchard-Côté, Alexandre",
            "Deligiannidis, George",
            "Doucet, Arnaud",
        ),
        2019,
        "Scalable Metropolis–Hastings for exact Bayesian inference with large datasets",
        "ICML",
    ),
    Reference(
        (
            "Ding, Nan",
            "Fang, Youhan",
            "Babbush, Ryan",
            "Chen, Changyou",
            "Skeel, Robert D.",
            "Neven, Hartmut",
        ),
        2014,
        "Bayesian sampling using stochastic gradient thermostats",
        "NeurIPS",
    ),
    Reference(
        ("Duane, Simon", "Kennedy, A. D.", "Pendleton, Brian J.", "Roweth, Duncan"),
        1987,
        "Hybrid Monte Carlo",
        "Physics Letters B",
    ),
    Reference(
        (
            "Dubey, Avinava",
            "Reddi, Sashank J.",
            "Williamson, Sinead A.",
            "Póczos, Barnabás",
            "Smola, Alexander J.",
            "Xing, Eric P.",
        ),
        2016,
        "Variance reduction in stochastic gradient Langevin dynamics",
        "NeurIPS",
    ),
    Reference(
        ("Fu, Tianfan", "Zhang, Zhihua"),
        2017,
        "CPSG-MCMC: clustering-based preprocessing method for stochastic gradient MCMC",
        "AISTATS",
    ),
    Reference(
        ("Hoffman, Matthew D.", "Gelman, Andrew"),
        2014,
        "The No-U-Turn sampler: adaptively setting path lengths in Hamiltonian Monte Carlo",
        "Journal of Machine Learning Research",
    ),
    Reference(
        ("Hsieh, Ya-Ping", "Kavis, Ali", "Rolland, Paul", "Cevher, Volkan"),
        2018,
        "Mirrored Langevin dynamics",
        "NeurIPS",
    ),
    Reference(
        ("Korattikara, Anoop", "Chen, Yutian", "Welling, Max"),
        2014,
        "Austerity in MCMC land: cutting the Metropolis–Hastings budget",
        "ICML",
    ),
    Reference(
        ("Leimkuhler, Benedict", "Matthews, Charles"),
        2013,
        "Rational construction of stochastic numerical methods for molecular sampling",
        "Applied Mathematics Research eXpress",
    ),
    Reference(
        ("Li, Chunyuan", "Chen, Changyou", "Carlson, David", "Carin, Lawrence"),
        2016,
        "Preconditioned stochastic gradient Langevin dynamics for deep neural networks",
        "AAAI",
    ),
    Reference(
        ("Li, Wenzhe", "Ahn, Sungjin", "Welling, Max"),
        2016,
        "Scalable MCMC for mixed membership stochastic blockmodels",
        "AISTATS",
        is_et_al=False,
    ),
    Reference(
        ("Li, Ruilin", "Wang, Xin", "Zha, Hongyuan", "Tao, Molei"),
        2021,
        "Improving sampling accuracy of stochastic gradient MCMC methods via non-uniform "
        "subsampling of gradients",
        "AIMS; arXiv 2002.08949",
        "li-2021",
    ),
    Reference(
        ("Ma, Yi-An", "Chen, Tianqi", "Fox, Emily B."),
        2015,
        "A complete recipe for stochastic gradient MCMC",
        "NeurIPS",
    ),
    Reference(
        ("Maclaurin, Dougal", "Adams, Ryan P."),
        2014,
        "Firefly Monte Carlo: exact MCMC with subsets of data",
        "UAI",
    ),
    Reference(
        (
            "Metropolis, Nicholas",
            "Rosenbluth, Arianna W.",
            "Rosenbluth, Marshall N.",
            "Teller, Augusta H.",
            "Teller, Edward",
        ),
        1953,
        "Equation of state calculations by fast computing machines",
        "The Journal of Chemical Physics",
    ),
    Reference(
        ("Nemeth, Christopher", "Fearnhead, Paul"),
        2021,
        "Stochastic gradient Markov chain Monte Carlo",
        "Journal of the American Statistical Association",
        "nemeth-2021",
    ),
    Reference(
        ("Patterson, Sam", "Teh, Yee Whye"),
        2013,
        "Stochastic gradient Riemannian Langevin dynamics on the probability simplex",
        "NeurIPS",
    ),
    Reference(
        ("Prado, Estevão B.", "Nemeth, Christopher", "Sherlock, Chris"),
        2024,
        "Metropolis–Hastings with scalable subsampling",
        "arXiv 2407.19602",
    ),
    Reference(
        ("Putcha, Srshti", "Nemeth, Christopher", "Fearnhead, Paul"),
        2023,
        "Preferential subsampling for stochastic gradient Langevin dynamics",
        "AISTATS",
        "putcha-2023",
    ),
    Reference(
        ("Quiroz, Matias", "Kohn, Robert", "Villani, Mattias", "Tran, Minh-Ngoc"),
        2019,
        "Speeding up MCMC by efficient data subsampling",
        "Journal of the American Statistical Association",
    ),
    Reference(
        ("Roberts, Gareth O.", "Tweedie, Richard L."),
        1996,
        "Exponential convergence of Langevin distributions and their discrete approximations",
        "Bernoulli",
    ),
    Reference(
        (
            "Scott, Steven L.",
            "Blocker, Alexander W.",
            "Bonassi, Fernando V.",
            "Chipman, Hugh A.",
            "George, Edward I.",
            "McCulloch, Robert E.",
        ),
        2016,
        "Bayes and big data: the consensus Monte Carlo algorithm",
        "International Journal of Management Science and Engineering Management",
    ),
    Reference(
        ("Sommer, Emanuel", "Diao, Kangning", "Robnik, Jakob", "Seljak, Uroš", "Rügamer, David"),
        2026,
        "Can microcanonical Langevin dynamics leverage mini-batch gradient noise?",
        "arXiv 2602.06500",
    ),
    Reference(
        ("Welling, Max", "Teh, Yee Whye"),
        2011,
        "Bayesian learning via stochastic gradient Langevin dynamics",
        "ICML",
    ),
    Reference(
        ("Zhang, Cheng", "Kjellström, Hedvig", "Mandt, Stephan"),
        2017,
        "Determinantal point processes for mini-batch diversification",
        "UAI",
    ),
    Reference(
        ("Zhang, Cheng", "Öztireli, Cengiz", "Mandt, Stephan", "Salvi, Giampiero"),
        2019,
        "Active mini-batch sampling using repulsive point processes",
        "AAAI",
    ),
    Reference(
        ("Zhang, Ruqi", "Cooper, A. Feder", "De Sa, Christopher M."),
        2020,
        "Asymptotically optimal exact minibatch Metropolis–Hastings",
        "NeurIPS",
        is_et_al=False,
    ),
    Reference(
        ("Zhang, Ruqi", "Li, Chunyuan", "Zhang, Jianyi", "Chen, Changyou", "Wilson, Andrew Gordon"),
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
