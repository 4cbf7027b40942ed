"""Citations name exactly the papers that the parts of a run come from."""

import re

import pytest

import problems
import tallmc
from tallmc.methods.credits import CREDITS, is_credited, papers_of
from tallmc.methods.references import REFERENCES, cited_in

X, Y = [[1.0], [2.0], [0.5]], [1.0, 2.0, 0.0]


def posterior():
    return tallmc.models.linear_regression(X, Y, prior_variance=1.0, noise_variance=1.0)


def run(method):
    return tallmc.sample(posterior(), method, chains=2, draws=5, burn_in=0)


def years(bibliography):
    return sorted(re.findall(r"year = \{(\d+)\}", bibliography))


def test_every_part_and_every_named_method_is_credited():
    axes = (problems.DYNAMICS, problems.GRADIENTS, problems.SUBSAMPLES, problems.SIZES)
    parts = {type(part).__name__ for axis in axes for part in axis.values()}
    schedules = {name for name in tallmc.schedule.__all__ if not name.startswith("Abstract")}
    made = {
        type(named.make(1.0, **named.example)).__name__ for named in tallmc.METHODS.values()
    } - {"Method"}
    classes = {name for name in parts | made | schedules if name[0].isupper()}
    assert not {name for name in classes if not is_credited(name)}


def test_every_credit_is_a_paper_of_the_table():
    for citation in CREDITS.values():
        assert [paper.citation for paper in cited_in(citation)] == [citation]


def test_a_run_cites_its_parts_and_nothing_else():
    assert years(tallmc.cite(run(tallmc.sgld(1e-3, size=2)))) == ["2011"]
    found = tallmc.cite(run(tallmc.sgld_cv_ps(1e-3, size=2)))
    assert years(found) == ["2011", "2019", "2023"]
    assert "Putcha, Srshti and Nemeth, Christopher and Fearnhead, Paul" in found


def test_a_saved_run_cites_the_same(tmp_path):
    draws = run(tallmc.sgld_cv_ps(1e-3, size=2))
    draws.save(tmp_path / "draws.nc")
    assert tallmc.cite(tallmc.load(tmp_path / "draws.nc")) == tallmc.cite(draws)


def test_a_stored_run_cites_the_same(tmp_path):
    draws = tallmc.sample(
        posterior(), tallmc.sgnht(1e-3, size=2, friction=1.0), draws=5, store=tmp_path / "run"
    )
    assert years(tallmc.cite(draws)) == ["2014"]
    assert tallmc.cite(tallmc.store.load(tmp_path / "run")) == tallmc.cite(draws)


@pytest.mark.parametrize(
    ("name", "year"), [("subsampled_mh", 2024), ("tuna_mh", 2020), ("smh", 2019)]
)
def test_the_rule_of_an_accept_step_decides_between_papers(name, year):
    named = tallmc.METHODS[name]
    papers = papers_of(str(named.make(1.0, **named.example)))
    assert [paper.year for paper in papers] == [year]
    assert papers == cited_in(named.reference)


def test_entries_are_well_formed_and_their_keys_differ():
    entries = [paper.bibtex for paper in REFERENCES]
    for entry in entries:
        assert entry.count("{") == entry.count("}")
        assert re.match(r"@(inproceedings|article|misc)\{[a-z0-9]+,\n", entry), entry
    keys = [re.search(r"\{(\w+),", entry)[1] for entry in entries]
    assert len(set(keys)) == len(keys)


def test_authors_have_given_names():
    assert all(", " in author for paper in REFERENCES for author in paper.authors)


def test_a_prompt_shows_the_entries_as_they_are():
    assert repr(tallmc.cite()) == tallmc.cite()
    assert tallmc.cite().startswith("@software{tallmc,")


def test_what_is_not_a_run_is_refused():
    with pytest.raises(tallmc.InvalidInput, match="result of sample"):
        tallmc.cite("draws")
