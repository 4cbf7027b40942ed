"""Read CSV text whose separator, encoding and decimal sign are not known.

The separator is the one of `, ; tab |` that occurs most often in the header. Text that is not UTF-8
is read as Windows-1252, which contains Latin-1. Decimal commas are understood where commas do not
separate columns.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import InvalidInput
from ...ingestion.errors import unreadable

if TYPE_CHECKING:
    import pyarrow as pa

STDIN = "-"
_SEPARATORS = ",;\t|"
_NAMES = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}
_OTHER_ENCODING = "cp1252"
_HEAD = 2**16
_CHECKED = 1000
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})*")


def read_csv(path: Path, separator: str | None) -> tuple[pa.Table, list[str]]:
    """The table in a file (`-`: standard input), and notes on how it was read."""
    import pyarrow as pa

    notes: list[str] = []
    try:
        content = _content(path)
        head = content[:_HEAD].to_pybytes() if content.size else b""
        if not head.strip():
            raise unreadable(path, "CSV", "it is empty")
        encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
        header = head.decode(encoding, "replace").lstrip("\ufeff\r\n").splitlines()[0]
        separator = _separator(header, separator, path)
        table = _parsed(content, separator, encoding)
        if not _is_decoded(table):
            table = _parsed(content, separator, _OTHER_ENCODING)
            notes.append(f"{path.name} is not UTF-8: read as Windows-1252 (Latin-1)")
        if separator != "," and (columns := _with_decimal_commas(table)):
            table = _parsed(content, separator, encoding, decimal=",")
            notes.append(f"decimal commas in {', '.join(columns)}")
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        raise unreadable(path, "CSV", error, _cure(path, error)) from None
    return table, notes


def _cure(path: Path, error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "Save it as UTF-8."
    return "Name the separator with --separator (separator)." if "columns" in str(error) else ""


def _content(path: Path) -> pa.Buffer:
    import pyarrow as pa

    if str(path) == STDIN:
        return pa.py_buffer(sys.stdin.buffer.read())
    if path.suffix.lower() == ".gz":
        return pa.input_stream(str(path), compression="gzip").read_buffer()
    if not path.stat().st_size:
        return pa.py_buffer(b"")
    return pa.memory_map(str(path)).read_buffer()


def _separator(header: str, given: str | None, path: Path) -> str:
    if given is not None:
        chosen = _NAMES.get(given, given)
        if len(chosen) != 1:
            raise InvalidInput("--separator (separator)", "be one character", given)
        return chosen
    unquoted = re.sub(r'"[^"]*"', "", header)
    ending = "".join(path.suffixes).lower()
    first = "\t" if ".tsv" in ending else ","
    candidates = first + _SEPARATORS.replace(first, "") + (" " if ".txt" in ending else "")
    return max(candidates, key=unquoted.count)


def _parsed(content: pa.Buffer, separator: str, encoding: str, decimal: str = ".") -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    convert = csv.ConvertOptions(
        strings_can_be_null=True, quoted_strings_can_be_null=False, decimal_point=decimal
    )

    def parse(*, slowly: bool) -> pa.Table:
        return csv.read_csv(
            pa.BufferReader(content),
            read_options=csv.ReadOptions(encoding=encoding, use_threads=not slowly),
            parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=slowly),
            convert_options=convert,
        )

    try:
        return parse(slowly=False)
    except pa.ArrowInvalid:
        try:
            return parse(slowly=True)  # lines within quotes; errors have the number of the line
        except pa.ArrowInvalid as error:
            shifted = re.sub(r"Row #(\d+)", lambda found: f"row {int(found[1]) - 1}", str(error))
            raise pa.ArrowInvalid(shifted) from None


def _is_decoded(table: pa.Table) -> bool:
    """Whether names and text are UTF-8; Arrow makes other text binary."""
    from pyarrow import types

    try:
        return bool(table.column_names) and not any(map(types.is_binary, table.schema.types))
    except UnicodeDecodeError:
        return False


def _with_decimal_commas(table: pa.Table) -> list[str]:
    """Columns of text such as "1,5", of which not all look like whole thousands."""
    from pyarrow import types

    found = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_string(column.type):
            texts = column.drop_null()[:_CHECKED].to_pylist()
            decimal = all(_DECIMAL_COMMA.fullmatch(text.strip()) for text in texts)
            if texts and decimal and not all(_THOUSANDS.fullmatch(text) for text in texts):
                found.append(name)
    return found
