"""Descriptions of named methods: complete, free of short forms, and printed by the command line."""

import json
import re
import unicodedata

import pytest

import tallmc
from tallmc.methods import references
from tallmc.methods.description import describe
from tallmc.methods.references import PAPERS, cited_in
from tallmc.methods.registry import all_methods
from test_cite import parts
from test_cli import call, refused

METHODS = all_methods()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_equations_bias_cost_references_and_an_example_that_runs(name):
    method, named = describe(name), METHODS[name]
    assert any(part.equation for part in method.parts)
    assert method.bias and method.cost and method.references
    made = eval(method.example, {"tallmc": tallmc})
    assert made.axes == named.axes == method.axes
    assert made.exact == method.bias[0].startswith("None")


@pytest.mark.parametrize("name", METHODS)
def test_citations_are_full(name):
    """Keys of papers, such as chen-2014, are for comments."""
    method = describe(name)
    text = " ".join((*method.bias, *method.cost, *(part.equation for part in method.parts)))
    assert not re.search(r"[a-z]-(19|20)\d\d", text)


def test_every_method_begins_its_reference_with_a_paper_of_the_table_and_no_paper_is_idle():
    named = set()
    for record in METHODS.values():
        (paper,) = cited_in(record.reference)
        assert record.reference.startswith(paper.citation)
        named.add(paper)
    credits = [text for part in parts().values() for text in part.paper_by_setting.values()]
    credits += [part.paper or "" for part in parts().values()]
    credits += references._NOT_PARTS.values()
    assert named | set(cited_in(" ".join(credits))) == set(PAPERS)


def test_a_method_is_credited_to_those_who_proposed_it():
    assert describe("sgld").reference.startswith("Welling and Teh (2011)")
    assert describe("sghmc").reference.startswith("Chen, Fox and Guestrin (2014)")
    assert describe("sgnht").reference.startswith("Ding, Fang")


def test_text_is_that_of_the_parts():
    method = describe("sgld_cv")
    assert [part.name for part in method.parts] == ["Langevin", "ControlVariate", "Uniform"]
    equations = method.parts[0].equation
    assert equations in re.sub(r"(?m)^    ", "", tallmc.dynamics.langevin.__doc__)
    assert any("The bias at fixed ε is of order ε." in paragraph for paragraph in method.bias)
    assert any("found before the first step" in sentence for sentence in method.cost)


def test_parts_beyond_the_axes_are_described_too():
    assert "NoiseCorrection" in [part.name for part in describe("ewsg_vr").parts]
    assert "BoundedNoise" in [part.name for part in describe("asgld_cv").parts]
    assert "Cyclical" in [part.name for part in describe("cyclical_sgld").parts]


def test_a_bias_that_a_check_does_not_see_comes_first():
    said = "Pairs of chains at two step sizes do not see the bias of a preconditioner"
    assert describe("psgld").bias[0].startswith(said)


def test_exponential_weights_say_how_many_batches_they_take():
    assert any("M + 1 batches of rows" in sentence for sentence in describe("ewsg").cost)


def test_command_line_prints_one_method(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert call("methods", "sgld_cv_ps") == 0
    out = capsys.readouterr().out
    method = describe("sgld_cv_ps")
    words = " ".join(out.split())
    for said in (method.summary, method.reference, *method.bias, *method.cost, method.example):
        assert " ".join(said.split()) in words
    for reference in method.references:
        assert reference in words
    for part in method.parts:
        for line in part.equation.splitlines():
            assert f"        {line}".rstrip() in out.splitlines()  # equations are not wrapped
    equations = {line for part in method.parts for line in part.equation.splitlines()}
    shown = lambda line: sum(not unicodedata.combining(letter) for letter in line.rstrip())
    for line in out.splitlines():
        assert line.strip() in {e.strip() for e in equations} or shown(line) <= 80


def test_command_line_prints_one_method_as_json(capsys):
    assert call("methods", "sgfs", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "sgfs"
    assert found["parts"][0]["name"] == "FisherScoring"
    assert found["references"][0].startswith("Ahn, Korattikara and Welling (2012). Bayesian")


def test_command_line_refuses_a_method_that_does_not_exist(capsys):
    assert "name must be one of sgld, sgld_cv" in refused(capsys, "methods", "nuts")


def test_list_ends_with_the_papers(capsys):
    assert call("methods") == 0
    words = " ".join(capsys.readouterr().out.split())
    papers = cited_in(" ".join(named.reference for named in METHODS.values()))
    assert len(papers) >= 20 and all(str(paper) in words for paper in papers)
