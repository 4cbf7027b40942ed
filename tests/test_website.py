"""The documentation site builds without warnings, has every public name, and has no broken link."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import markdown
import pytest
import yaml

import tallmc
from tallmc.methods.registry import all_methods
from website import command_line, methods, reference
from website.crawl import broken
from website.doctest_fences import with_fences
from website.gallery import Runs, examples, read, reduced_source, write_pages

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, with the code of the examples and without their output."""
    folder = tmp_path_factory.mktemp("website")
    generated = shutil.ignore_patterns("reference", "gallery")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=generated)
    for name in ("src", "website"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    sources = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": sources, "NO_MKDOCS_2_WARNING": "1"}
    website = ["website", "--docs", str(folder / "docs"), "--examples", "none"]
    for command in (website, ["mkdocs", "build", "--strict", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.docs
def test_nothing_is_broken_and_nothing_comes_from_elsewhere(site):
    assert not list(broken(site))


def test_the_crawler_sees_what_is_broken(tmp_path):
    (tmp_path / "index.html").write_text(
        '<img src="lost.png"><script src="https://elsewhere.example/x.js"></script>'
        '<a href="gone.html">a</a><a href="#nowhere">b</a><a id="here" href="#here">c</a>'
    )
    assert [line.split(" ", 1)[1] for line in broken(tmp_path)] == [
        "lacks lost.png",
        "loads https://elsewhere.example/x.js",
        "links to gone.html, which does not exist",
        "links to #nowhere, which has no such place",
    ]


@pytest.mark.docs
def test_every_public_name_is_in_the_reference(site):
    pages = "".join(
        page.read_text(encoding="utf-8") for page in (site / "reference").glob("tallmc*.html")
    )
    documented = set(re.findall(r'<h2 id="([\w.]+)"', pages))
    for page in reference.PAGES:
        for name, value in reference.public_objects(page.module).items():
            assert f"{value.__module__}.{value.__qualname__}" in documented, name


def test_every_module_with_public_names_has_a_page():
    modules = {page.module for page in reference.PAGES}
    public = {f"tallmc.{name}" for name in tallmc.__all__ if _is_module(name)}
    assert public <= modules


@pytest.mark.docs
def test_every_named_method_is_in_the_table_and_has_its_place(site):
    choose = (site / "choose.html").read_text(encoding="utf-8")
    details = (site / "reference" / "named-methods.html").read_text(encoding="utf-8")
    for name in all_methods():
        assert f"reference/named-methods.html#{name}" in choose
        assert f'id="{name}"' in details


def test_the_table_of_methods_gives_each_its_own_bias():
    lines = [line.strip("| ").split(" | ") for line in methods.table().splitlines()[2:]]
    bias = {re.findall("`(.*?)`", cells[0])[0]: cells[2] for cells in lines}
    assert bias["sgld"] == "step size and gradient noise"
    assert bias["ula"] == "step size"
    assert bias["mala"] == "none"
    assert bias["austerity_mh"].startswith("wrong decisions of the sequential tests")


@pytest.mark.docs
def test_every_command_is_in_the_reference(site):
    page = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    for command in ("fit", "resume", "report", "predict", "ingest", "methods"):
        assert f"tallmc {command}" in page


def test_the_list_of_commands_has_whole_sentences(tmp_path):
    command_line.write_page(tmp_path / "page.md")
    commands = (tmp_path / "page.md").read_text(encoding="utf-8").split("**Commands**:")[1]
    lines = re.findall(r"^\* `\w+`: (.*)$", commands.split("\n## ")[0], re.MULTILINE)
    assert len(lines) > 8 and all(line.endswith(".") and "..." not in line for line in lines)


@pytest.mark.docs
def test_search_works_without_a_server(site):
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "preferential" in index


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {
        str(page.relative_to(ROOT / "docs"))
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name not in ("reference", "gallery")
    }
    pages |= {f"gallery/{script.stem}.md" for script in examples()}
    assert not {page for page in pages if page not in text}


def test_files_that_pages_name_exist():
    pattern = re.compile(r"`((?:tests|benchmarks|website|examples)/[\w/]+\.\w+)")
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for path in pattern.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_examples_have_titles_texts_and_code_without_marks():
    for script in examples():
        example = read(script)
        assert example.title and example.text and "# reduced" not in example.code
        assert reduced_source(script.read_text(encoding="utf-8")).count("# reduced") == 0


def test_the_gallery_has_cards_in_the_order_of_the_navigation(tmp_path):
    (tmp_path / "million_rows.png").touch()
    write_pages(tmp_path, Runs.NONE)
    text = (tmp_path / "index.md").read_text(encoding="utf-8")
    cards = text.split("\n-   ")
    assert cards[0].endswith('<div class="grid cards" markdown>\n') and len(cards) == 1 + len(
        examples()
    )
    for script in examples():
        cells = json.loads((tmp_path / f"{script.stem}.ipynb").read_text())["cells"]
        code = [compile(cell["source"], "", "exec") for cell in cells if "outputs" in cell]
        assert len(code) > 3
    assert re.findall(r"\((\w+)\.md\)\*\*", text)[:2] == ["million_rows", "data_frame"]


def test_equations_become_mathml():
    pytest.importorskip("latex2mathml", reason="part of the extra docs")
    text = "Then\n\n```math\n\\frac{a}{b}\n```\n\n```text\nx\n```"
    html = markdown.markdown(text, extensions=["website.equations", "pymdownx.superfences"])
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in html
    assert "<mfrac><mi>a</mi><mi>b</mi></mfrac>" in html.replace("<mrow>", "").replace(
        "</mrow>", ""
    )
    assert html.count("<code>") == 1


def test_equations_of_the_pages_are_known_to_the_converter():
    """It shows a command that it does not know as text."""
    convert = pytest.importorskip("latex2mathml.converter", reason="part of the extra docs").convert
    for page in (ROOT / "docs").rglob("*.md"):
        for equation in re.findall(r"```math\n(.*?)\n```", page.read_text("utf-8"), re.DOTALL):
            assert "\\" not in convert(equation) and "&amp;" not in convert(equation), equation


def test_examples_of_docstrings_become_code_blocks():
    assert with_fences("Sum.\n\n>>> 1 + 1\n2\n\nMore.") == (
        "Sum.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    )


def test_configuration_uses_no_fonts_from_elsewhere_and_no_code_of_its_own():
    """Zensical reads the file too: no hooks, no Python tags."""
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert configuration["theme"]["font"] is False
    assert "hooks" not in configuration


def test_readme_is_short_and_shows_the_two_commands_first_of_all_code():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90
    code = [line.strip() for line in lines if line.startswith("    ")]
    assert code[0].startswith("make demo") and code[1].startswith("make test")


def test_the_messages_of_the_faq_are_those_of_the_library():
    source = "\n".join(piece for tree in _modules() for piece in _pieces(tree))
    messages = _messages_of_the_faq()
    assert len(messages) > 30
    assert [part for part in messages if part not in source] == []


def test_every_doubt_is_in_the_faq():
    """A doubt is a text in a function whose name has "doubts", or that is given to `doubting`."""
    messages = _messages_of_the_faq()
    doubts = [pieces for tree in _modules() for pieces in _doubts(tree)]
    assert len(doubts) > 15
    absent = [
        pieces
        for pieces in doubts
        if not any(message in piece for message in messages for piece in pieces)
    ]
    assert absent == []


def _modules():
    paths = (ROOT / "src" / "tallmc").rglob("*.py")
    return [ast.parse(path.read_text(encoding="utf-8")) for path in paths]


def _pieces(tree):
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


def _doubts(tree):
    """The constant pieces of each doubt of a module. Cures, which begin a sentence, are none."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.FunctionDef) and "doubts" in node.name:
            found = node.body[ast.get_docstring(node) is not None :]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "doubting":
            found = node.args
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "doubt":
            found = [node.value]
        for part in found:
            composed = [text for text in ast.walk(part) if isinstance(text, ast.JoinedStr)]
            pieces_of = [_pieces(text) for text in composed]
            inside = set().union(*pieces_of)
            pieces_of += [
                [piece] for piece in _pieces(part) if piece not in inside and piece[:1].islower()
            ]
            yield from (pieces for pieces in pieces_of if len(" ".join(pieces)) > 60)


def _messages_of_the_faq():
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8").split("## Words")[0]
    keys = re.findall(r"^(\*\*`.*?)\. [A-Z]", text, re.MULTILINE)
    return [part for key in keys for part in re.findall(r"`(.*?)`", key)]


def _is_module(name):
    return type(getattr(tallmc, name)).__name__ == "module"
