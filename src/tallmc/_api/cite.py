"""`tallmc.cite`: the papers that a run is built on."""

from __future__ import annotations

from .._core.errors import InvalidInput
from .._version import __version__
from ..methods.references import papers_of
from ..results.draws import Draws

_SOFTWARE = f"""@software{{tallmc,
  author = {{{{The tallmc developers}}}},
  title = {{{{tallmc: Bayesian inference on tall data}}}},
  version = {{{__version__}}},
}}"""


class Bibliography(str):
    """BibTeX entries, one after the other; a prompt shows them as they are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def cite(draws: Draws | None = None) -> Bibliography:
    """BibTeX entries for this library, and for exactly the methods that a run used.

    **Arguments:**

    - `draws`: the result of a run, also of a stored or saved one. None for the library alone.

    **Returns:** a string with one entry per paper, for a `.bib` file.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> draws = tallmc.sample(posterior, tallmc.methods.sgld(0.1, 1), n_draws=10, burn_in=0)
    >>> tallmc.cite(draws).count("@")
    2
    """
    if draws is None:
        return Bibliography(_SOFTWARE)
    if not isinstance(draws, Draws):
        raise InvalidInput("draws", "be the result of sample, resume or load", draws)
    method = str(draws.settings["method"])
    if "shards" in draws.settings:
        method = f"consensus {method}"
    entries = (paper.bibtex for paper in papers_of(method))
    return Bibliography("\n\n".join((_SOFTWARE, *entries)))
