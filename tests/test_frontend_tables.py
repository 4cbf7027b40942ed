"""Tables of any kind become exact designs, or are refused in one line that has the cure."""

import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from pyarrow import csv, parquet

import tallmc
from tallmc._core.errors import in_shell, python_words
from tallmc._fit import encoding
from tallmc._fit.encoding import DesignEncoding
from tallmc._fit.model import RegressionModel
from tallmc._fit.reading import read_table
from tallmc._ingestion.errors import TableError
from tallmc._ingestion.values import _letters_as_codes, from_numpy

GOOD = {"age": [20.0, 30.0, 40.0, 70.0], "smoker": [True, False, False, True], "y": [0, 1, 1, 0]}
N = 200


def write(folder: Path, columns, kind: str = "csv") -> Path:
    path = folder / f"table.{kind}"
    if kind == "npz":
        np.savez(path, **columns)
    elif kind == "csv":
        csv.write_csv(pa.table(columns), path)
    else:
        parquet.write_table(pa.table(columns), path)
    return path


def make_design(table, response=None, response_kind="number", dtype="float32", **choices):
    model = RegressionModel("gaussian", response=response, **choices)
    return encoding.make_design(table, model, response_kind, dtype)


def design_of(source, response="y", kind="number", **options):
    return make_design(read_table(source), response, response_kind=kind, **options)


def refusal(source, response="y", kind="number", **options) -> str:
    """The message, which must be one line of an `InvalidInput`."""
    with pytest.raises(tallmc.InvalidInput) as caught:
        design_of(source, response, kind, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def many(**columns):
    """A table of N rows with a response and a covariate."""
    return {"age": np.linspace(20, 60, N) ** 2, "y": np.arange(N) % 3 * 1.5, **columns}


# Reading


def text_of(table) -> dict[str, list]:
    """The values of a table by column: numbers, or text with None where it is missing."""
    return {
        name: [None if code < 0 else column.levels[code] for code in column.numbers]
        if column.kind == "text"
        else column.numbers.tolist()
        for name, column in table.columns.items()
    }


def sources(folder: Path):
    """The same table in all forms that are read."""
    frame = pd.DataFrame({"age": [20.5, 31.0], "city": ["Rome", "Oslo"]})
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_csv(folder / "a.tsv", index=False, sep="\t")
    frame.to_csv(folder / "semicolons.csv", index=False, sep=";")
    frame.to_csv(folder / "decimals.csv", index=False, sep=";", decimal=",")
    frame.to_csv(folder / "bars.txt", index=False, sep="|")
    frame.to_csv(folder / "utf16.csv", index=False, encoding="utf-16")
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    frame.to_parquet(folder / "a.parquet")
    frame.to_feather(folder / "a.feather")
    arrow = pa.Table.from_pandas(frame)
    with pa.ipc.new_stream(str(folder / "stream.arrow"), arrow.schema) as stream:
        stream.write_table(arrow)
    columns = {"age": frame["age"].to_numpy(), "city": np.array(["Rome", "Oslo"])}
    np.savez(folder / "a.npz", **columns)
    yield from sorted(folder.iterdir())
    yield from (str(folder / "a.csv"), frame, pl.from_pandas(frame), arrow, columns)
    yield arrow.to_batches()[0]
    yield frame.astype({"city": "category"})
    yield frame.to_dict("records")
    yield {"age": [20.5, 31.0], "city": pl.Series(["Rome", "Oslo"], dtype=pl.Categorical)}
    yield np.array([(20.5, "Rome"), (31.0, "Oslo")], [("age", float), ("city", "U9")])


def test_all_forms_of_a_table_are_read_alike(tmp_path):
    for source in sources(tmp_path):
        table = read_table(source)
        assert text_of(table) == {"age": [20.5, 31.0], "city": ["Rome", "Oslo"]}, source
        assert table.columns["city"].levels == ("Oslo", "Rome"), source


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a;b\n1;2\n3;7\n")))
    table = read_table("-")
    assert text_of(table) == {"a": [1, 3], "b": [2, 7]}
    assert table.description == "standard input"


def test_folders_are_read_with_their_partitions(tmp_path):
    for year, city in ((2019, "Rome"), (2020, "Oslo")):
        folder = tmp_path / "parts" / f"year={year}" / f"city={city}"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"age": [year / 2]}), folder / "rows.parquet")
    table = read_table(tmp_path / "parts")
    expected = {"age": [1009.5, 1010.0], "year": [2019, 2020], "city": ["Rome", "Oslo"]}
    assert text_of(table) == expected
    assert table.description == "parts"
    parquet.write_table(pa.table({"weight": [1]}), folder / "zz.parquet")
    message = refusal(tmp_path / "parts")
    assert "in every file; got year=2020/city=Oslo/zz.parquet, which lacks age and also" in message


def test_missing_values_of_all_kinds_are_missing(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,c\n1,x,NA\n,,\nNaN,z,\n")
    table = read_table(path)
    assert text_of(table)["b"] == ["x", None, "z"]
    assert np.isnan(table.columns["a"].numbers).tolist() == [False, True, True]
    assert table.columns["c"].kind == "missing"
    frame = pd.DataFrame({"a": pd.array([1, pd.NA], "Int64"), "b": ["x", pd.NA], "c": [None, True]})
    table = read_table(frame)
    assert np.isnan(table.columns["a"].numbers).tolist() == [False, True]
    assert text_of(table)["b"] == ["x", None]
    assert table.columns["c"].kind == "boolean"


def test_latin_1_is_read_and_said(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes("âge,café\n1,thé\n2,été\n".encode("latin-1"))
    table = read_table(path)
    assert text_of(table) == {"âge": [1, 2], "café": ["thé", "été"]}
    assert table.notes == ("table.csv is not UTF-8: read as Windows-1252 (Latin-1)",)
    assert table.notes[0] in make_design(table, "âge").notes


def test_spaces_around_names_are_removed(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(" age , y\n1,2\n2,5\n")
    assert list(read_table(path).columns) == ["age", "y"]
    assert list(read_table(pd.DataFrame({" age ": [1], 7: [2]})).columns) == ["age", "7"]


def test_declared_orders_of_levels_are_kept():
    sizes = ["small", "large", "huge"]
    frame = pd.DataFrame({"size": pd.Categorical(sizes, categories=sizes)})
    assert read_table(frame).columns["size"].levels == tuple(sizes)
    enum = pl.DataFrame({"size": pl.Series(sizes, dtype=pl.Enum(sizes))})
    assert read_table(enum).columns["size"].levels == tuple(sizes)
    numbers = read_table(pd.DataFrame({"n": pd.Categorical([10, 9, 10])})).columns["n"]
    assert (numbers.levels, numbers.numbers.tolist()) == (("9", "10"), [1, 0, 1])


def test_lines_within_quotes_are_one_value(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('a,b\n"two\nlines",2\n')
    assert text_of(read_table(path)) == {"a": ["two\nlines"], "b": [2]}


def test_csv_decimals_far_below_whole_numbers_are_read(tmp_path):
    """Column types are inferred from the whole file, not from its first block."""
    n_rows = 300_000
    path = tmp_path / "table.csv"
    with path.open("w") as file:
        file.write("late,x,y\n")
        file.writelines(f",{row},{row % 2}\n" for row in range(n_rows))
        file.write("7,0.5,1\n")
    assert path.stat().st_size > 2 * 2**20
    table = read_table(path)
    assert table.columns["x"].numbers[-1] == 0.5
    assert table.columns["late"].numbers[-1] == 7
    assert np.isnan(table.columns["late"].numbers).sum() == n_rows


def test_excluded_columns_are_not_there():
    assert list(read_table(GOOD, exclude=["age"]).columns) == ["smoker", "y"]
    with pytest.raises(TableError, match=r"--exclude .* got 'agee'. The columns are: age, smoker"):
        read_table(GOOD, exclude=["agee"])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ([[1, 2], [3, 4]], "got 'list'. Give the columns names: pandas.DataFrame(rows, columns"),
        (np.eye(2), "got 'ndarray'. Give the columns names"),
        (scipy.sparse.eye(3), "pandas.DataFrame.sparse.from_spmatrix"),
        (pl.DataFrame({"a": [1]}).lazy(), "got 'LazyFrame'. Read it first: table.collect()."),
        (pd.Series([1]), "Put a single column into a data frame."),
        (None, "got 'NoneType'"),
        ({"a": [1, 2], "b": [1]}, "columns of equal length; got lengths a: 2, b: 1"),
        ({"a": np.eye(2)}, "one 1-D array per column; got a of shape (2, 2)"),
        (pd.DataFrame({"a": [1, "x"]}), "column 'a' must hold values of one kind"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "must be different in DataFrame; got more"),
        ({}, "TABLE must have at least one row; got dict with none"),
    ],
)
def test_objects_that_are_no_table_come_with_the_cure(source, found):
    with pytest.raises(TableError) as caught:
        read_table(source)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.csv", b"", "TABLE must be a readable CSV file; got a.csv: it is empty"),
        ("a.csv", b"a,b\n", "TABLE must have at least one row; got a.csv with none"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "row 2: Expected 2 columns, got 3"),
        ("a.csv", b"a,a\n1,2\n", "column names must be different in a.csv; got more than one a"),
        ("a.csv", b"a, a\n1,2\n", "got more than one a"),
        ("a.csv", b",a\n1,2\n", "column 1 without a name. pandas writes row numbers this way"),
        (
            "a.csv.gz",
            gzip.compress(b"a\n1\n" * 99, mtime=0)[:15],
            "a.csv.gz: Truncated compressed stream",
        ),
        ("a.csv.gz", b"a,b\n1,2\n", "TABLE must be a readable CSV file; got a.csv.gz: "),
        ("a.parquet", b"neither", "TABLE must be a readable Parquet file; got a.parquet: "),
        ("a.feather", b"neither", "TABLE must be a readable Arrow file; got a.feather: "),
        ("a.npz", b"neither", "TABLE must be a readable .npz file; got a.npz: not an archive"),
        ("a.xlsx", b"", "end in one of .csv, .csv.gz, .tsv"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path, name, content, found):
    path = tmp_path / name
    path.write_bytes(content)
    assert found in refusal(path)


def test_paths_without_a_table_are_refused(tmp_path):
    message = refusal(tmp_path / "nowhere.csv")
    assert "must be a file or folder; got" in message and "nowhere.csv, which does not" in message
    assert "which has none" in refusal(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    assert "a row store. Open it with tallmc.rows.open" in refusal(tmp_path)


@pytest.mark.parametrize("named", [{}, {"feature_names": np.array(["a", "b"])}])
def test_npz_matrix_has_further_columns_beside_it(tmp_path, named):
    matrix = np.array([[1.0, 5.0], [2.0, 5.5], [4.0, 7.0]])
    columns = {"X": matrix, "y": np.array([1.5, 2.5, 0.0]), "w": np.array([1.0, 2.0, 3.0])}
    path = write(tmp_path, {**columns, **named}, "npz")
    design = design_of(path, weights="w", standardise=False, intercept=False)
    assert design.names == (("a", "b") if named else ("x1", "x2"))
    np.testing.assert_array_equal(design.x, matrix)
    np.testing.assert_array_equal(design.weights, [1, 2, 3])


def test_npz_shapes_are_checked(tmp_path):
    x, y = np.eye(3), np.arange(3)
    assert "columns of equal length; got lengths a: 2, y: 3" in refusal(
        write(tmp_path, {"a": np.ones(2), "y": y}, "npz")
    )
    assert "one 1-D array per column, or a 2-D X with y; got Z of shape (3, 3)" in refusal(
        write(tmp_path, {"Z": x, "y": y}, "npz")
    )
    few = {"X": x, "y": y, "feature_names": np.array(["a"])}
    assert "feature_names must name each of the 3 columns of X; got 1 names" in refusal(
        write(tmp_path, few, "npz")
    )
    twice = {"X": np.eye(2), "y": np.arange(2), "feature_names": np.array(["a", "a"])}
    assert "more than one a" in refusal(write(tmp_path, twice, "npz"))


def test_pickles_are_never_loaded(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([{}, {}], dtype=object), y=np.arange(2))
    path = tmp_path / "table.npz"
    path.write_bytes(buffer.getvalue())
    assert "Pickles can run code" in refusal(path)


# Designs


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_design_is_standardised_behind_an_intercept(tmp_path, kind):
    design = design_of(write(tmp_path, GOOD, kind), kind="binary")
    age, smoker = np.array(GOOD["age"]), np.array(GOOD["smoker"], float)
    expected = np.stack([np.ones(4), (age - 40) / np.sqrt(350), (smoker - 0.5) / 0.5], axis=1)
    assert design.names == ("Intercept", "age", "smoker")
    assert design.encoding.scaled.terms.terms == {"Intercept": (0,), "age": (1,), "smoker": (2,)}
    assert design.x.dtype == np.float32
    np.testing.assert_array_equal(design.x, expected.astype(np.float32))
    np.testing.assert_array_equal(design.y, [0, 1, 1, 0])
    np.testing.assert_array_equal(np.array(design.encoding.scaled.means), [0, 40, 0.5])
    np.testing.assert_allclose(
        np.array(design.encoding.scaled.sds), [1, np.sqrt(350), 0.5], rtol=1e-15
    )
    assert design.notes == ()


def test_design_can_be_left_as_it_is():
    design = design_of(GOOD, kind="binary", standardise=False, intercept=False)
    np.testing.assert_array_equal(design.x, np.stack([GOOD["age"], GOOD["smoker"]], axis=1))
    assert design.names == ("age", "smoker")
    np.testing.assert_array_equal(
        [np.array(design.encoding.scaled.means), np.array(design.encoding.scaled.sds)],
        [[0, 0], [1, 1]],
    )


def test_scaled_columns_and_response_turn_back_into_the_table():
    """The whole model is the same: y and every column are linear in the scaled ones."""
    columns = many(city=np.array(["a", "b", "c", "d"])[np.arange(N) % 4])
    for options in ({"intercept": False}, {"dtype": "float64"}):
        design = design_of(columns, **options)
        back = design.x * np.array(design.encoding.scaled.sds) + np.array(
            design.encoding.scaled.means
        )
        dummies = [np.array(columns["city"]) == level for level in "bcd"]
        parts = [np.ones(N)] * (design.names[0] == "Intercept") + [columns["age"], *dummies]
        tolerance = 1e-6 if design.x.dtype == np.float32 else 1e-14
        np.testing.assert_allclose(back, np.stack(parts, axis=1), rtol=tolerance, atol=tolerance)
        response = design.encoding.response
        np.testing.assert_allclose(design.y * response.sd + response.mean, columns["y"], atol=1e-14)
        centred = design.names[0] == "Intercept"
        assert (response.mean != 0) == centred
        assert (np.array(design.encoding.scaled.means) != 0).any() == centred
        np.testing.assert_allclose(design.x[:, -1].std(), 1, rtol=1e-6)


def test_text_becomes_categories_with_a_stated_baseline():
    city = ["Rome", "Oslo", "Kyiv", "Rome", "Oslo"]
    columns = {"city": city, "age": [1, 2, 3, 5, 8], "y": [0.1, 0.2, 0.4, 0.3, 0.0]}
    for source in (columns, pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)):
        design = design_of(source, standardise=False)
        assert design.names == ("Intercept", "city[T.Oslo]", "city[T.Rome]", "age")
        assert design.encoding.scaled.terms.terms == {
            "Intercept": (0,),
            "city": (1, 2),
            "age": (3,),
        }
        assert design.notes == ("city: 3 levels, baseline 'Kyiv'",)
        expected = [[1, 0, 1, 1], [1, 1, 0, 2], [1, 0, 0, 3], [1, 0, 1, 5], [1, 1, 0, 8]]
        np.testing.assert_array_equal(design.x, expected)


def test_cures_can_be_pasted_also_where_a_name_has_a_space():
    message = refusal(many(**{"shop no": [f"s{row % 150}" for row in range(N)]}))
    assert "pass --categorical 'shop no' for up to 1000 levels" in in_shell(message)
    assert "pass categorical='shop no' for up to 1000 levels" in python_words(message)
    assert message.endswith("(1 | `shop no`).")


def test_many_levels_are_refused_unless_asked_for():
    columns = many(code=[f"c{row % 150}" for row in range(N)])
    message = refusal(columns)
    assert "column 'code' must have at most 100 levels, as it holds text; got 150, such" in message
    assert "--exclude" in message and "--categorical code (categorical)" in message
    assert len(design_of(columns, categorical=["code"]).encoding.scaled.terms.terms["code"]) == 149


def test_numbers_become_categories_on_request():
    columns = many(year=np.arange(N) % 3 + 2018)
    assert design_of(columns).names == ("Intercept", "age", "year")
    design = design_of(columns, categorical=["year"])
    assert design.names == ("Intercept", "age", "year[T.2019]", "year[T.2020]")
    with pytest.raises(TableError, match=r"--categorical .* got 'yeer'"):
        design_of(columns, categorical=["yeer"])
    missing = {**columns, "year": np.where(np.arange(N) == 0, np.nan, columns["year"])}
    dropped = design_of(missing, categorical=["year"], missing="drop")
    assert dropped.names == design.names


def test_dates_are_refused_with_the_cure(tmp_path):
    days = np.array(["2020-01-01", "2020-02-01"] * 2, "datetime64[D]")
    for kind in ("csv", "parquet"):
        message = refusal(write(tmp_path, {**GOOD, "day": days}, kind), kind="binary")
        assert "be numbers, booleans or text; got day (date32[day]). Turn dates into" in message
    assert "day (datetime64[" in refusal(pd.DataFrame({**GOOD, "day": days}), kind="binary")
    assert design_of({**GOOD, "day": days}, kind="binary", exclude=["day"]).names[-1] == "smoker"


def test_identifiers_are_named():
    numbers = np.arange(N) + 1000
    (note,) = design_of(many(customer=numbers)).notes
    assert "'customer' looks like an identifier (a different whole number in each row)" in note
    (note,) = design_of(many(customer_id=numbers % 9)).notes
    assert "'customer_id' looks like an identifier (by its name): leave it out" in note
    message = refusal(many(name=[f"n{row}" for row in range(N)]))
    assert "column 'name' must have at most 100 levels" in message
    assert "200, such as 'n0', a different one in each row. Leave it out of the" in message
    assert "random intercept" not in message
    assert design_of(many(floats=np.linspace(0, 1, N) ** 3)).notes == ()


def test_integers_that_floats_cannot_hold_are_refused():
    columns = many(tweet=np.arange(N) + 10**18)
    message = refusal(columns)
    assert "column 'tweet' must hold numbers below 2^53; got 1000000000000000199, which" in message
    assert "Leave it out of the formula or with --exclude" in message
    assert design_of(columns, exclude=["tweet"]).names == ("Intercept", "age")


def test_weights_offsets_and_trials_are_no_covariates():
    columns = many(w=np.ones(N), o=np.full(N, 0.5), e=np.full(N, np.e), t=np.full(N, 7))
    columns["y"] = np.arange(N) % 8
    design = design_of(columns, kind="count", weights="w", offset="o", exposure="e", trials="t")
    assert design.names == ("Intercept", "age")
    np.testing.assert_array_equal(design.weights, np.ones(N))
    np.testing.assert_allclose(design.offset, np.full(N, 1.5), rtol=1e-15)
    np.testing.assert_array_equal(design.trials, np.full(N, 7))
    np.testing.assert_array_equal(design.y, columns["y"])
    assert "--trials (trials) must be at least the response; got 6 in row 8" in refusal(
        {**columns, "t": np.full(N, 6)}, kind="count", trials="t", standardise=False
    )
    assert "--weights (weights) must be positive or 0; got -1 in row 1" in refusal(
        {**columns, "w": np.full(N, -1.0)}, weights="w", standardise=False
    )
    assert "--exposure (exposure) must be positive; got 0 in row 1" in refusal(
        {**columns, "e": np.zeros(N)}, exposure="e", standardise=False
    )
    assert "--offset (offset) must name a column of dict; got 'oo'" in refusal(columns, offset="oo")
    assert "Add the values to the table as a column" in refusal(columns, offset=np.ones(N))


def test_offset_has_the_scale_of_a_standardised_response():
    design = design_of(many(o=np.linspace(0, 3, N)), offset="o")
    expected = np.linspace(0, 3, N) / design.encoding.response.sd
    np.testing.assert_allclose(design.offset, expected, rtol=1e-15)


def test_columns_named_weight_are_noted():
    (note,) = design_of(many(Weight=np.linspace(1, 2, N) ** 2)).notes
    assert note.startswith("column 'Weight' is a covariate; if it weights the rows, pass --weights")
    assert design_of(many(Weight=np.ones(N)), weights="Weight").notes == ()


def test_missing_values_are_counted_by_column_or_dropped(tmp_path):
    columns = {
        "age": [None, 30.0, None, 70.0, 1.0, 2.0],
        "smoker": [True, None, False, True, False, True],
        "y": [0, 1, 1, None, 2, 3],
        "city": ["Rome", "Oslo", "Oslo", "Oslo", "Rome", "Kyiv"],
        "unused": [None] * 6,
    }
    for kind in ("csv", "parquet"):
        path = write(tmp_path, columns, kind)
        message = refusal(path, exclude=["unused"])
        found = "got age: 2 missing, smoker: 1 missing, y: 1 missing. Drop these rows with"
        assert found in message and "--missing drop (missing='drop')" in message
        design = design_of(path, missing="drop", exclude=["unused"], standardise=False)
        assert design.notes[0] == "dropped 4 of 6 rows with missing values"
        assert design.names == ("Intercept", "age", "smoker", "city[T.Rome]")  # no row has Oslo
        np.testing.assert_array_equal(design.x, [[1, 1, 0, 1], [1, 2, 1, 0]])
        np.testing.assert_array_equal(design.y, [2, 3])
        message = refusal(path, missing="drop")
        assert (
            "only missing values in unused. Leave them out of the formula or with --exclude"
            in message
        )


def test_columns_that_are_all_missing_nan_and_infinity_are_counted(tmp_path):
    columns = {"gone": pa.nulls(3), "a": [np.nan, np.inf, 1.0], "y": ["no", None, "yes"]}
    message = refusal(write(tmp_path, columns, "parquet"), kind="binary")
    assert "gone: 3 missing, a: 1 missing, a: 1 infinite, y: 1 missing" in message
    message = refusal({"a": [None, 1.0], "b": [1.0, None], "y": [1, 2]}, missing="drop")
    assert "have rows without missing values; got a: 1 missing, b: 1 missing" in message


def test_text_that_should_be_numbers_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,y\n1,2,0\n2,?,1\n3,1,1\n")
    message = refusal(path, kind="binary")
    assert "column 'b' must hold numbers or text, not both; got '?' among numbers. Leave" in message
    path.write_text('income;y\n"1,234";0\n"12,500";1\n900;1\n')
    message = refusal(path, kind="binary")
    assert "'income' must hold numbers without separators of thousands; got text such as" in message
    assert "pandas.read_csv(path, thousands=',')" in message
    assert design_of(path, kind="binary", categorical=["income"]).names[1:] == (
        "income[T.12,500]",
        "income[T.900]",
    )


def test_constant_columns_are_named_unless_not_standardised():
    columns = {**GOOD, "one": [0.1] * 4, "never": [False] * 4}
    message = refusal(columns, kind="binary")
    assert "got one (0.1 in every row), never (0 in every row)" in message
    assert "--no-standardise" in message
    names = design_of(columns, kind="binary", standardise=False).names
    assert names == ("Intercept", "age", "smoker", "one", "never")
    message = refusal({**GOOD, "city": ["Rome"] * 4}, kind="binary")
    assert "columns of text must have several levels; got city ('Rome' in every row)" in message


def test_constant_column_is_an_intercept_where_there_is_none():
    design = design_of({**GOOD, "one": [2.0] * 4}, kind="binary", intercept=False)
    np.testing.assert_array_equal(design.x[:, 2], np.full(4, 2.0))
    assert "never (0 in" in refusal({**GOOD, "never": [0] * 4}, kind="binary", intercept=False)


def test_values_beyond_float32_are_refused():
    columns = {**GOOD, "huge": [1e39, 1.0, 2.0, 3.0]}
    message = refusal(columns, kind="binary", standardise=False)
    assert (
        "'huge' of the design must have values that float32 can hold; got 1e+39 in row 1" in message
    )
    assert design_of(columns, kind="binary").x[0, -1] == pytest.approx(np.sqrt(3))


def test_names_of_the_design_must_differ():
    assert "must be different in the design; got more than one Intercept" in refusal(
        {**GOOD, "Intercept": [1.0, 2.0, 3.0, 4.0]}, kind="binary"
    )


def test_nothing_to_explain_with_is_refused():
    assert "have a column besides the response when there is no intercept; got only y" in refusal(
        {"y": [0, 1]}, intercept=False
    )
    assert design_of({"y": [0, 1]}).names == ("Intercept",)


def test_unknown_response_lists_the_columns():
    assert "--response must name a column of dict; got 'ill'. The columns are: age, smoker, y." in (
        refusal(GOOD, "ill")
    )
    assert "c19 and 10 more." in refusal({f"c{j}": [1, 2] for j in range(30)}, "ill")
    assert "--response must name a column; got 'none'. Pass --response" in refusal(GOOD, None)
    assert "--response must have no other role; got 'y'" in refusal(GOOD, weights="y")
    assert "response_kind must be one of number, binary" in refusal(GOOD, kind="bernoulli")


# Responses


@pytest.mark.parametrize(
    ("values", "options", "expected", "note"),
    [
        (["no", "yes", "yes"], {}, [0, 1, 1], "'yes' counts as 1, 'no' as 0"),
        (["Y", "n", "Y"], {}, [1, 0, 1], "'Y' counts as 1, 'n' as 0"),
        (["True ", "FALSE", "FALSE"], {}, [1, 0, 0], "'True ' counts as 1, 'FALSE' as 0"),
        (["0", "1", "1"], {}, [0, 1, 1], "'1' counts as 1, '0' as 0"),
        (["stay", "churn", "churn"], {}, [1, 0, 0], "'stay' counts as 1, 'churn' as 0"),
        (["stay", "churn", "churn"], {"level": "churn"}, [0, 1, 1], "'churn' counts as 1"),
        (["a", "b", "c"], {"level": "b"}, [0, 1, 0], "'b' counts as 1, the 2 others as 0"),
        ([1, 2, 2], {}, [0, 1, 1], "'2' counts as 1, '1' as 0"),
        ([-1.0, 1.0, 1.0], {}, [0, 1, 1], "'1' counts as 1, '-1' as 0"),
        ([0, 1, 1], {}, [0, 1, 1], None),
        ([False, True, True], {}, [0, 1, 1], None),
        ([False, True, True], {"level": "False"}, [1, 0, 0], "'False' counts as 1, 'True' as 0"),
    ],
)
def test_binary_responses_say_what_counts_as_1(values, options, expected, note):
    design = design_of({"x": [1, 2, 4], "y": values}, kind="binary", **options)
    np.testing.assert_array_equal(design.y, expected)
    assert len(design.notes) == (note is not None)
    assert note is None or note in design.notes[0]


def test_responses_of_other_kinds():
    x = {"x": [1.0, 2.0, 4.0]}
    np.testing.assert_array_equal(design_of({**x, "y": [0, 3, 1]}, kind="count").y, [0, 3, 1])
    np.testing.assert_array_equal(
        design_of({**x, "y": [0.5, 3, 1]}, kind="positive").y, [0.5, 3, 1]
    )
    sizes = {**x, "y": ["small", "large", "huge"]}
    design = design_of(sizes, kind="classes")
    np.testing.assert_array_equal(design.y, [2, 1, 0])
    assert design.notes == ("response y: 3 classes, baseline 'huge'",)
    np.testing.assert_array_equal(design_of(sizes, kind="classes", level="large").y, [2, 0, 1])
    design = design_of(sizes, kind="ordered", level=["small", "large", "huge"])
    np.testing.assert_array_equal(design.y, [0, 1, 2])
    assert design.notes == ("response y: small < large < huge",)
    assert "huge < large < small; choose another" in design_of(sizes, kind="ordered").notes[0]
    design = design_of({**x, "y": [10, 9, 11]}, kind="ordered")
    np.testing.assert_array_equal(design.y, [1, 0, 2])


@pytest.mark.parametrize(
    ("kind", "values", "options", "found"),
    [
        ("number", [1, 1, 1], {}, "response 'y' must vary; got 1 in every row"),
        ("binary", ["no"] * 3, {}, "response 'y' must vary; got no in every row"),
        ("binary", [1, 2, 3], {}, "got 3 different values, 1 to 3. Choose the one that counts"),
        ("binary", ["a", "b", "a"], {"level": "c"}, "be a level of the response; got 'c'. The"),
        ("number", ["a", "b", "c"], {}, "must hold numbers; got values such as 'a'"),
        ("count", [0.5, 1, 2], {}, "hold counts (0, 1, 2, …); got 0.5 in row 1. Use family gauss"),
        ("count", [1, 2, -3], {}, "hold counts (0, 1, 2, …); got -3 in row 3"),
        ("share", [0.5, 1, 0.2], {}, "lie between 0 and 1, without the ends; got 1 in row 2. Move"),
        (
            "nonnegative",
            [0, 2, -3],
            {},
            "be zero or positive; got -3 in row 3. Use family gaussian",
        ),
        ("positive", [1, 0, 2], {}, "be positive; got 0 in row 2"),
        ("ordered", ["a", "b", "a"], {"level": ["a"]}, "list each level of the response once"),
        ("number", [1, 2, 3], {"level": "a"}, "be left out unless the response has levels"),
    ],
)
def test_responses_that_do_not_fit_are_refused(kind, values, options, found):
    assert found in refusal({"x": [1.0, 2.0, 4.0], "y": values}, kind=kind, **options)


def test_classes_have_a_limit():
    x = np.arange(60.0) ** 2
    assert "have at most 50 classes; got 60" in refusal(
        {"x": x, "y": [f"c{row:02}" for row in range(60)]}, kind="classes"
    )


# Encodings


def fitted():
    rows = np.arange(N)
    columns = many(
        city=np.array(["Rome", "Oslo", "Kyiv"])[rows % 3],
        year=rows % 4 + 2000,
        smoker=rows % 7 > 2,
        days=rows % 5 + 1.0,
        w=np.ones(N),
        ill=np.where(rows % 4 > 1, "yes", "no"),
    )
    options = {"exposure": "days", "weights": "w", "categorical": ["year"], "exclude": ["y"]}
    return columns, design_of(columns, "ill", "binary", **options)


def stored(encoding, **options):
    return DesignEncoding.from_json(json.loads(json.dumps(encoding.to_json())), **options)


def test_stored_encoding_gives_the_same_bits_also_on_chunks():
    columns, design = fitted()
    encoding = stored(design.encoding)
    assert encoding == design.encoding
    table = read_table(columns)
    for start in range(0, N, 63):
        rows = slice(start, start + 63)
        part = encoding.apply(table.rows(rows), need_response=True)
        np.testing.assert_array_equal(part.x, design.x[rows])
        np.testing.assert_array_equal(part.y, design.y[rows])
        np.testing.assert_array_equal(part.offset, design.offset[rows])
        assert part.names == design.names
        assert part.encoding.scaled.terms.terms == design.encoding.scaled.terms.terms


def test_new_rows_may_have_other_columns_fewer_levels_and_no_response():
    _, design = fitted()
    new = {"days": [2.0], "year": [2003.0], "city": ["Rome"], "extra": [1], "smoker": [0]}
    made = design.encoding.apply(read_table({**new, "age": [500]}))
    assert made.y is None and made.weights is None
    back = made.x[0] * np.array(made.encoding.scaled.sds) + np.array(made.encoding.scaled.means)
    np.testing.assert_allclose(back, [1, 500, 0, 1, 0, 0, 1, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(made.offset, [np.log(2)])


def test_new_rows_that_do_not_fit_are_refused():
    columns, design = fitted()
    rows = {name: np.asarray(values)[:5] for name, values in columns.items()}

    def message(**changes):
        table = read_table({k: v for k, v in {**rows, **changes}.items() if v is not None})
        with pytest.raises(TableError) as caught:
            design.encoding.apply(table, need_response=True)
        return str(caught.value)

    cities = ["Rome", "Oslo", "Bonn", "Rome", "Bonn"]
    found = "column 'city' must have levels that the fit has seen; got 'Bonn' in row 3. The levels"
    assert found in message(city=cities)
    assert "column 'year' must have levels that the fit has seen; got '1999' in row 2" in message(
        year=[2000, 1999, 2000, 2000, 2000]
    )
    assert "got dict without age, city. Its columns are: y, year" in message(age=None, city=None)
    assert "got dict without days" in message(days=None)
    assert "age: 2 missing" in message(age=[None, 1.0, 2.0, None, 3.0])
    assert "column 'age' must hold numbers, as in the fit; got text such as 'x'" in message(
        age=["1", "2", "x", "4", "5"]
    )
    assert "column 'smoker' must hold 0 and 1, as in the fit; got 2 in row 4" in message(
        smoker=[0, 1, 0, 2, 1]
    )
    assert "column 'ill' must have levels that the fit has seen; got 'maybe' in row 1" in message(
        ill=["maybe", "no", "no", "no", "yes"]
    )


def test_other_content_is_no_encoding():
    _, design = fitted()
    with pytest.raises(tallmc.InvalidInput, match="be version 1 of 'tallmc design'"):
        DesignEncoding.from_json({"format": "other"})
    content = design.encoding.to_json()
    del content["roles"]
    with pytest.raises(tallmc.InvalidInput, match=r"be what to_json wrote; got .*roles"):
        DesignEncoding.from_json(content)


@pytest.mark.parametrize("order", ["=", "S"])
def test_text_of_numpy_has_the_levels_and_codes_of_unique(order):
    rng = np.random.default_rng(6)
    words = ["", "a", "aa", "ab" * 9, "Zürich", "zoë", "東京", "😀 far", "b\0b"]
    for some in (words, words[:4], [""], [*map(str, range(3000))]):
        values = rng.choice(some, 4000)
        values = values.astype(values.dtype.newbyteorder(order))[::2]
        levels, codes = np.unique(values, return_inverse=True)
        column = from_numpy(values)
        assert column.levels == tuple(levels.tolist())
        np.testing.assert_array_equal(column.numbers, codes)


def test_text_with_the_same_hash_is_told_apart():
    times = 0x9E3779B97F4A7C15
    first, second = (int.from_bytes(word, "little") for word in (b"aaaaaaaa", b"AAAAAAAA"))
    pairs = [(first, (second + times) % 2**64), (first + 1, second)]
    words = [b"".join(part.to_bytes(8, "little") for part in pair) for pair in pairs]
    values = np.array([word.decode("latin-1") for word in words] * 3)
    assert _letters_as_codes(values) is None, "the hashes are equal"
    column = from_numpy(values)
    assert [column.levels[k] for k in column.numbers] == values.tolist()
