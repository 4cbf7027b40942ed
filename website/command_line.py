"""The page on the command line, from the program itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
import typer.main
from typer.cli import get_docs_for_click

from tallmc.cli.app import app


def write_page(file: Path) -> None:
    """Write the options of every command."""
    command: Any = typer.main.get_command(app)
    for each in command.commands.values():  # typer shortens them to 45 characters
        each.short_help = each.help.split("\n\n")[0].replace("\n", " ")
    context = typer.Context(command, info_name="tallmc")
    text = get_docs_for_click(obj=command, ctx=context, name="tallmc", title="Command line")
    file.write_text(text, encoding="utf-8")
