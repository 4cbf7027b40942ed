"""Citations name exactly the papers that the parts of a run come from."""

import inspect
import re

import pytest

import tallmc
from problems import in_a_new_process
from tallmc._core.part import import_topics, parts_by_name
from tallmc.methods.references import PAPERS, cited_in, papers_of

X, Y = [[1.0], [2.0], [0.5]], [1.0, 2.0, 0.0]


def posterior():
    return tallmc.models.linear_regression(X, Y, prior_variance=1.0, noise_variance=1.0)


def run(method):
    return tallmc.sample(posterior(), method, chains=2, n_draws=5, burn_in=0)


def years(bibliography):
    return sorted(re.findall(r"year = \{(\d+)\}", bibliography))


WITHOUT_PAPER = frozenset(
    {
        "AllRows",
        "Automatic",
        "Bandit",
        "Box",
        "Constant",
        "Dense",
        "Diagonal",
        "Entropic",
        "Fixed",
        "Full",
        "HalfSpace",
        "Halved",
        "Identity",
        "LogBarrier",
        "Method",
        "OfStep",
        "Polynomial",
        "Simple",
        "SimplexSampler",
        "StandardEffects",
        "SubsampledMH",
        "TargetNoise",
        "Uniform",
        "Update",
    }
)
"""Parts of this library, those that everybody knows, and those whose setting has the paper."""


def parts():
    import_topics()
    found = parts_by_name().items()
    return {name: part for name, part in found if not name.startswith("_")}


def test_every_part_names_a_paper_of_the_table_or_needs_none():
    known = {paper.citation for paper in PAPERS}
    for name, part in parts().items():
        if inspect.isabstract(part):
            continue
        assert (part.paper is None) == (name in WITHOUT_PAPER), name
        assert {*part.paper_by_setting.values(), part.paper or PAPERS[0].citation} <= known


def test_a_run_cites_its_parts_and_nothing_else():
    assert years(tallmc.cite(run(tallmc.methods.sgld(1e-3, batch_size=2)))) == ["2011"]
    found = tallmc.cite(run(tallmc.methods.sgld_cv_ps(1e-3, batch_size=2)))
    assert years(found) == ["2011", "2019", "2023"]
    assert "Putcha, Srshti and Nemeth, Christopher and Fearnhead, Paul" in found


def test_a_saved_run_cites_the_same(tmp_path):
    draws = run(tallmc.methods.sgld_cv_ps(1e-3, batch_size=2))
    draws.save(tmp_path / "draws.nc")
    assert tallmc.cite(tallmc.load(tmp_path / "draws.nc")) == tallmc.cite(draws)


@pytest.mark.slow
def test_a_stored_run_cites_the_same(tmp_path):
    draws = tallmc.sample(
        posterior(),
        tallmc.methods.sgnht(1e-3, batch_size=2, friction=1.0),
        n_draws=5,
        store=tmp_path / "run",
    )
    assert years(tallmc.cite(draws)) == ["2014"]
    assert tallmc.cite(tallmc.load(tmp_path / "run")) == tallmc.cite(draws)


@pytest.mark.parametrize(
    ("name", "year"), [("subsampled_mh", 2024), ("tuna_mh", 2020), ("smh", 2019)]
)
def test_the_rule_of_an_accept_step_decides_between_papers(name, year):
    named = tallmc.methods.METHODS[name]
    papers = papers_of(str(named.build()))
    assert [paper.year for paper in papers] == [year]
    assert papers == cited_in(named.reference)


def test_a_run_of_a_topic_that_is_not_imported_cites_its_paper():
    found = in_a_new_process()
    assert "tallmc.contrib.zig_zag" not in found["modules before papers"]
    assert found["papers"] == [2019]


def test_entries_are_well_formed_and_their_keys_differ():
    entries = [paper.bibtex for paper in PAPERS]
    for entry in entries:
        assert entry.count("{") == entry.count("}")
        assert re.match(r"@(inproceedings|article|misc)\{[a-z0-9]+,\n", entry), entry
    keys = [re.search(r"\{(\w+),", entry)[1] for entry in entries]
    assert len(set(keys)) == len(keys)


def test_authors_have_given_names():
    assert all(", " in author for paper in PAPERS for author in paper.authors)


def test_a_prompt_shows_the_entries_as_they_are():
    assert repr(tallmc.cite()) == tallmc.cite()
    assert tallmc.cite().startswith("@software{tallmc,")


def test_what_is_not_a_run_is_refused():
    with pytest.raises(tallmc.InvalidInput, match="result of sample"):
        tallmc.cite("draws")
