"""The papers in `papers.bib`, and which of them to cite for a run.

Text cites a paper by all its authors and its year, such as "Chen, Fox and Guestrin (2014)".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from .._core.part import import_topics, parts_by_name


class Paper(NamedTuple):
    """An entry of `papers.bib`."""

    bibtex: str
    authors: tuple[str, ...]
    """"Surname, given names", in the order of the paper."""
    year: int
    title: str
    venue: str

    @property
    def citation(self) -> str:
        """All authors and the year, by which text cites the paper."""
        *others, last = (author.partition(",")[0] for author in self.authors)
        return f"{', '.join(others)} and {last} ({self.year})"

    def __str__(self) -> str:
        return f"{self.citation}. {self.title}. {self.venue}."


def _paper(entry: str) -> Paper:
    """Read an entry of the form that the file has: one field per line, the kind and key first."""
    _, *lines, _ = entry.splitlines()
    pairs = (line.strip().partition(" = ") for line in lines)
    fields = {name: value.rstrip(",").strip("{}") for name, _, value in pairs}
    venue = next(
        fields[kind] for kind in ("booktitle", "journal", "howpublished") if kind in fields
    )
    authors = tuple(fields["author"].split(" and "))
    return Paper(entry, authors, int(fields["year"]), fields["title"], venue)


PAPERS = tuple(
    map(_paper, Path(__file__).with_name("papers.bib").read_text("utf-8").strip().split("\n\n"))
)
"""All papers, by the name of the first author."""

_NOT_PARTS = {
    "NUTS": "Hoffman and Gelman (2014)",
    "consensus": "Scott, Blocker, Bonassi, Chipman, George and McCulloch (2016)",
}
"""Papers of what makes draws without being a part of a method."""


def cited_in(text: str) -> tuple[Paper, ...]:
    """The papers that a text cites."""
    return tuple(paper for paper in PAPERS if paper.citation in text)


def papers_of(method: str) -> tuple[Paper, ...]:
    """The papers to cite for a run of a method, given the text of the method.

    A run keeps the text of its method, also in files. Its words are the classes of the parts.
    """
    names = set(re.findall(r"\w+", method))
    parts = parts_by_name()
    if any(name[0].isupper() and name not in parts for name in re.findall(r"\w+(?=\()", method)):
        import_topics()  # a stored run may be of a topic that is not imported yet
        parts = parts_by_name()
    cited = [paper for name, paper in _NOT_PARTS.items() if name in names]
    for part in (parts[name] for name in names & parts.keys()):
        cited += [part.paper] if part.paper is not None else []
        cited += [paper for setting, paper in part.paper_by_setting.items() if setting in method]
    return cited_in("; ".join(cited))
