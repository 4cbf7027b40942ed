"""Cures that messages name exist: commands, options, names of the library, calls and arguments.

Messages are the strings of the source. A new one that names something else fails here. Calls are
compared with the signature of what they name; tests of the messages themselves execute them.
"""

import ast
import functools
import importlib
import inspect
import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import typer

import tallmc
from tallmc.cli.app import app
from tallmc.contrib.groups import LocalPosterior

SOURCE = Path(tallmc.__file__).parent
COMMANDS = vars(typer.main.get_command(app))["commands"]
OPTIONS = {
    name: {option for parameter in command.params for option in parameter.opts}
    | {option for parameter in command.params for option in parameter.secondary_opts}
    for name, command in COMMANDS.items()
}
PROSE = {"design", "developers", "posterior", "rows", "that"}
"""Words after "tallmc" that are no command."""
OBJECTS = {
    "draws": tallmc.Draws,
    "posterior": LocalPosterior,
    "tallmc": tallmc,
    "jax": jax,
    "np": np,
    "pandas": pd,
}
FOREIGN = {"X", "table", "client", "sparse", "C", "bs", "min", "s", "surv"}
"""Objects of the user, and functions of formulas."""
OF_OTHERS = {"axis", "columns", "constraints", "extrapolation", "index", "obs", "thousands"}
"""Arguments of formulaic, NumPy, NumPyro and pandas."""
OF_TERMS = {"age", "bs", "by", "ends", "type"}
"""Arguments of s(...) and surv(...) in formulas, which `test_smooths.py` and others execute, and
a column of the user."""


@functools.cache
def messages():
    """The strings of every file, joined where they are formatted; no docstrings, no HTML."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                left_out |= {id(part) for part in node.values}
        for node in ast.walk(tree):
            if (
                id(node) not in left_out
                and " " in (text := _text(node))
                and not _MARKUP.search(text)
            ):
                found.append((str(path.relative_to(SOURCE)), text))
    return found


def _text(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in node.values)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else ""


_MARKUP = re.compile(r"<|text-anchor")


def resolved(name):
    """What a dotted name of the library, or of an object that messages speak of, stands for."""
    first, *rest = name.split(".")
    found = OBJECTS[first]
    for part in rest:
        if inspect.ismodule(found) and not hasattr(found, part):
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)
    return found


@functools.cache
def public():
    """Everything that users call, by its last name; several things may share a name."""
    places = [tallmc, tallmc.Draws, LocalPosterior]
    for folder in ("", "contrib"):
        for path in (SOURCE / folder).iterdir():
            parent = f"tallmc.{folder}.".replace("..", ".")
            if not path.name.startswith("_") and (path.suffix == ".py" or path.is_dir()):
                places.append(importlib.import_module(parent + path.stem))
    found = {}
    for place in places:
        for name in getattr(place, "__all__", dir(place)):
            value = getattr(place, name, None)
            if callable(value) and not name.startswith("_"):
                found.setdefault(name, []).append(value)
    return found


def parameters(function):
    """Names of arguments; those of `sample` too where a function passes others on."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set()
    passes_on = any(each.kind is each.VAR_KEYWORD for each in found.values())
    return set(found) | (parameters(tallmc.sample) if passes_on else set())


def test_commands_and_options_exist():
    seen = 0
    for place, text in messages():
        named = re.findall(r"\btallmc ([a-z]+)", text)
        assert set(named) <= set(COMMANDS) | PROSE, (place, text)
        commands = [name for name in named if name in COMMANDS]
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            known = OPTIONS[commands[0]] if len(commands) == 1 else set().union(*OPTIONS.values())
            assert option in known, (place, option, text)
            seen += 1
    assert seen > 50


def test_names_of_the_library_exist():
    names = {
        (place, name)
        for place, text in messages()
        for name in re.findall(r"(?<![\w./-])tallmc(?:\.\w+)+", text)
    }
    assert len(names) > 30
    for place, name in names:
        assert resolved(name) is not None, (place, name)


def test_calls_have_the_arguments_that_messages_pass():
    calls = 0
    for place, text in messages():
        for name, inside in re.findall(r"(?<![\w-])([A-Za-z_][\w.]*\w)\(([^()]*)\)", text):
            keywords = re.findall(r"(?<![\w.])([a-z_]\w*)=(?!=)", inside)
            first = name.split(".")[0]
            is_call = keywords or not inside or "..." in inside
            if first in FOREIGN or not is_call:
                continue
            targets = [resolved(name)] if first in OBJECTS else public().get(name.split(".")[-1])
            assert targets, f"{place}: {name} in {text!r} is nothing that users can call"
            accepted = set().union(*map(parameters, targets))
            assert set(keywords) <= accepted | OF_OTHERS, (place, text)
            calls += 1
    assert calls > 20


def test_arguments_exist():
    seen = set()
    for place, text in messages():
        for keyword in re.findall(r"(?<![\w.\"'{-])([a-z]\w+)=(?![=\s])", text):
            seen.add((place, keyword, text))
    known = set().union(*(parameters(each) for of_name in public().values() for each in of_name))
    unknown = {each for each in seen if each[1] not in known | OF_OTHERS | OF_TERMS}
    assert len(seen) > 30
    assert not unknown


def test_packages_to_install_are_those_of_the_project():
    project = SOURCE.parents[1] / "pyproject.toml"
    if not project.exists():
        pytest.skip("an installed package has no pyproject.toml")
    text = project.read_text()
    for place, message in messages():
        for package in re.findall(r"pip install ['\"]?(?:tallmc\[)?([a-z]+)", message):
            assert re.search(rf"\b{package}\b", text), (place, message)
