"""Tables become exact designs, or are refused with a message that names column and cure."""

import io

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import tallmc
from tallmc.cli.design import make_design
from tallmc.cli.table import TableError, read_table

GOOD = {"age": [20.0, 30.0, 40.0, 70.0], "smoker": [True, False, False, True], "y": [0, 1, 1, 0]}


def write(folder, columns, kind="csv"):
    path = folder / f"table.{kind}"
    if kind == "npz":
        np.savez(path, **columns)
    elif kind == "csv":
        csv.write_csv(pa.table(columns), path)
    else:
        parquet.write_table(pa.table(columns), path)
    return path


def design_of(path, family="bernoulli", response="y", standardise=True, intercept=True):
    return make_design(
        read_table(path, response), family, standardise=standardise, intercept=intercept
    )


def refusal(path, **options):
    with pytest.raises(TableError) as caught:
        design_of(path, **options)
    assert isinstance(caught.value, tallmc.InvalidInput)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_design_is_standardised_behind_an_intercept(tmp_path, kind):
    design = design_of(write(tmp_path, GOOD, kind))
    age, smoker = np.array(GOOD["age"]), np.array(GOOD["smoker"], float)
    expected = np.stack([np.ones(4), (age - 40) / np.sqrt(350), (smoker - 0.5) / 0.5], axis=1)
    assert design.names == ("intercept", "age", "smoker")
    assert design.x.dtype == np.float32
    np.testing.assert_array_equal(design.x, expected.astype(np.float32))
    np.testing.assert_array_equal(design.y, [0, 1, 1, 0])
    assert design.means == {"age": 40.0, "smoker": 0.5}
    assert design.sds == pytest.approx({"age": np.sqrt(350), "smoker": 0.5}, rel=1e-15)


def test_design_can_be_left_as_it_is(tmp_path):
    design = design_of(write(tmp_path, GOOD), standardise=False, intercept=False)
    np.testing.assert_array_equal(design.x, np.stack([GOOD["age"], GOOD["smoker"]], axis=1))
    assert design.names == ("age", "smoker")
    assert design.means == design.sds == {}


@pytest.mark.parametrize(
    ("named", "expected"),
    [({}, ("x1", "x2")), ({"feature_names": np.array(["a", "b"])}, ("a", "b"))],
)
def test_npz_matrix_gives_its_columns_names(tmp_path, named, expected):
    matrix = np.array([[1.0, 5.0], [2.0, 5.5], [4.0, 7.0]])
    path = write(tmp_path, {"X": matrix, "target": np.array([1.5, 2.5, 0.0]), **named}, "npz")
    design = design_of(path, "gaussian", response="target", standardise=False, intercept=False)
    assert design.names == expected
    np.testing.assert_array_equal(design.x, matrix)
    np.testing.assert_array_equal(design.y, [1.5, 2.5, 0.0])


def test_csv_decimals_far_below_whole_numbers_are_read(tmp_path):
    """Column types are inferred from the whole file, not from its first block.

    The first decimal, and the first value of one column, follow two megabytes of other rows.
    """
    n_rows = 300_000
    path = tmp_path / "table.csv"
    with path.open("w") as file:
        file.write("late,x,y\n")
        file.writelines(f",{row},{row % 2}\n" for row in range(n_rows))
        file.write("7,0.5,1\n")
    assert path.stat().st_size > 2 * 2**20
    table = read_table(path, "y")
    assert table.columns["x"][-1] == 0.5
    assert table.columns["late"][-1] == 7
    assert np.isnan(table.columns["late"]).sum() == n_rows


def test_parquet_categories_and_decimals_count_by_what_they_hold(tmp_path):
    columns = {
        "price": pa.array([1, 2, 3]).cast(pa.decimal128(30, 2)),
        "grade": pa.array([5.0, 5.0, 7.0]).dictionary_encode(),
        "y": [0.1, 0.2, 0.4],
    }
    design = design_of(
        write(tmp_path, columns, "parquet"), "gaussian", standardise=False, intercept=False
    )
    np.testing.assert_array_equal(design.x, [[1, 5], [2, 5], [3, 7]])


def test_booleans_and_counts_are_responses(tmp_path):
    booleans = write(tmp_path, {**GOOD, "y": [False, True, True, False]}, "parquet")
    np.testing.assert_array_equal(design_of(booleans).y, [0, 1, 1, 0])
    counts = write(tmp_path, {**GOOD, "y": [0, 3, 1, 7]})
    np.testing.assert_array_equal(design_of(counts, "poisson").y, [0, 3, 1, 7])


def test_missing_file_is_refused(tmp_path):
    message = refusal(tmp_path / "nowhere.csv")
    assert "TABLE must be a file" in message
    assert "nowhere.csv, which does not exist" in message
    assert "a folder" in refusal(tmp_path)


def test_unknown_extension_is_refused(tmp_path):
    path = tmp_path / "table.xlsx"
    path.touch()
    assert "end in one of .csv, .parquet, .npz; got 'table.xlsx'" in refusal(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_file_that_is_not_what_its_name_says_is_refused(tmp_path, kind):
    path = tmp_path / f"table.{kind}"
    path.write_bytes(b"")
    assert (
        f"TABLE must be a readable {'.npz' if kind == 'npz' else kind}".lower()
        in refusal(path).lower()
    )
    path.write_bytes(b"a,y\n1,2,3\n" if kind == "csv" else b"neither zip nor parquet")
    assert f"table.{kind}: " in refusal(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_unknown_response_lists_the_columns(tmp_path, kind):
    message = refusal(write(tmp_path, GOOD, kind), response="ill")
    assert "--response must name a column of table" in message
    assert "got 'ill'. The columns are: age, smoker, y." in message


def test_unknown_response_lists_only_some_of_many_columns(tmp_path):
    message = refusal(write(tmp_path, {f"c{j}": [1, 2] for j in range(30)}), response="ill")
    assert "c19 and 10 more." in message


def test_missing_values_are_counted_by_column(tmp_path):
    columns = {
        **GOOD,
        "age": [None, 30.0, None, 70.0],
        "smoker": [True, None, False, True],
        "y": [0, 1, 1, None],
    }
    for kind in ("csv", "parquet"):
        message = refusal(write(tmp_path, columns, kind))
        assert (
            "no missing or infinite values; got age: 2 missing, smoker: 1 missing, "
            "y: 1 missing. Drop" in message
        )


def test_columns_that_are_all_missing_nan_and_infinity_are_counted(tmp_path):
    columns = {"gone": pa.nulls(3), "a": [np.nan, np.inf, 1.0], "y": ["no", None, "yes"]}
    message = refusal(write(tmp_path, columns, "parquet"))
    assert "gone: 3 missing, a: 1 missing, a: 1 infinite, y: 1 missing" in message


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_text_columns_are_named_with_the_cure(tmp_path, kind):
    columns = {
        **GOOD,
        "city": ["Oslo", "Rome", "Oslo", "Kyiv"],
        "day": np.array(["2020-01-01"] * 4, "datetime64[D]"),
    }
    message = refusal(write(tmp_path, columns, kind))
    assert (
        "columns must be numbers or booleans; got city (such as 'Oslo'), day (such as '2020-01-01')"
        in message
    )
    assert "one-hot" in message


def test_constant_column_is_named_unless_not_standardised(tmp_path):
    path = write(tmp_path, {**GOOD, "one": [0.1] * 4, "never": [False] * 4})
    message = refusal(path)
    assert (
        "columns must vary to be standardised; got one (0.1 in every row), never (0 in every row)"
        in message
    )
    assert "--no-standardise" in message
    assert design_of(path, standardise=False).names == (
        "intercept",
        "age",
        "smoker",
        "one",
        "never",
    )


@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "poisson"])
def test_constant_response_is_refused(tmp_path, family):
    assert "response 'y' must vary; got 1 in every row" in refusal(
        write(tmp_path, {**GOOD, "y": [1] * 4}, "parquet"), family=family
    )


@pytest.mark.parametrize(
    ("values", "found", "mapping"),
    [
        (["no", "yes", "yes", "no"], "'no' and 'yes'", "table['y'] = table['y'] == 'yes'"),
        ([1.0, 2.0, 2.0, 1.0], "1.0 and 2.0", "table['y'] = table['y'] == 2.0"),
        ([-1, 1, 1, -1], "-1 and 1", "table['y'] = table['y'] == 1"),
        (["0", "1", "1", "0"], "'0' and '1'", "table['y'] = table['y'] == '1'"),
    ],
)
def test_two_values_other_than_0_and_1_come_with_a_mapping(tmp_path, values, found, mapping):
    message = refusal(write(tmp_path, {**GOOD, "y": values}, "parquet"))
    assert (
        f"response 'y' must hold 0 and 1, or booleans, for --family bernoulli; got {found}."
        in message
    )
    assert mapping in message


def test_many_values_are_no_bernoulli_response(tmp_path):
    message = refusal(write(tmp_path, {**GOOD, "y": [1, 2, 3, 4]}, "parquet"))
    assert "got 4 different values, 1 to 4. Choose which values count as 1" in message


@pytest.mark.parametrize(("values", "found"), [([0.5, 1, 2, 3], "0.5"), ([1, 2, -3, 4], "-3")])
def test_poisson_wants_counts(tmp_path, values, found):
    message = refusal(write(tmp_path, {**GOOD, "y": values}), family="poisson")
    assert (
        f"hold counts (0, 1, 2, …) for --family poisson; got '{found}'. Use --family gaussian"
        in message
    )


def test_text_is_no_gaussian_response(tmp_path):
    message = refusal(write(tmp_path, {**GOOD, "y": ["a", "b", "c", "d"]}), family="gaussian")
    assert "response 'y' must hold numbers for --family gaussian" in message


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_table_without_rows_is_refused(tmp_path, kind):
    empty = {"age": np.zeros(0), "y": np.zeros(0)}
    assert "TABLE must have at least one row" in refusal(write(tmp_path, empty, kind))


def test_duplicate_and_empty_names_are_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("age,age,y\n1,2,0\n2,3,1\n")
    assert "column names must be different in table.csv; got more than one age" in refusal(path)
    path.write_text(",age,y\n0,2,0\n1,3,1\n")
    assert "column 1 without a name. pandas writes row numbers this way" in refusal(path)
    twice = pa.table(
        [pa.array([1, 2]), pa.array([3, 4]), pa.array([0, 1])], names=["age", "age", "y"]
    )
    parquet.write_table(twice, tmp_path / "table.parquet")
    assert "more than one age" in refusal(tmp_path / "table.parquet")
    names = np.array(["a", "a"])
    assert "more than one a" in refusal(
        write(tmp_path, {"X": np.eye(2), "y": np.arange(2), "feature_names": names}, "npz")
    )


def test_name_of_the_intercept_is_taken(tmp_path):
    path = write(tmp_path, {**GOOD, "intercept": [1.0, 2.0, 3.0, 4.0]})
    assert "Drop it or pass --no-intercept" in refusal(path)
    assert design_of(path, intercept=False).names == ("age", "smoker", "intercept")


def test_nothing_to_explain_with_is_refused(tmp_path):
    path = write(tmp_path, {"y": [0, 1]})
    assert "have a column besides the response when there is no intercept; got only y" in refusal(
        path, intercept=False
    )
    assert design_of(path).names == ("intercept",)


def test_npz_shapes_are_checked(tmp_path):
    x, y = np.eye(3), np.arange(3)
    assert "columns of equal length; got lengths a: 2, y: 3" in refusal(
        write(tmp_path, {"a": np.ones(2), "y": y}, "npz")
    )
    assert "one 1-D array per column, or a 2-D X with y; got Z of shape (3, 3)" in refusal(
        write(tmp_path, {"Z": x, "y": y}, "npz")
    )
    assert "also weights" in refusal(write(tmp_path, {"X": x, "y": y, "weights": y}, "npz"))
    few = {"X": x, "y": y, "feature_names": np.array(["a"])}
    assert "feature_names must name each of the 3 columns of X; got 1 names" in refusal(
        write(tmp_path, few, "npz")
    )
    assert "got 'ill'. The 1-D arrays are: y." in refusal(
        write(tmp_path, {"X": x, "y": y}, "npz"), response="ill"
    )


def test_pickles_are_never_loaded(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([{}, {}], dtype=object), y=np.arange(2))
    path = tmp_path / "table.npz"
    path.write_bytes(buffer.getvalue())
    assert "Pickles can run code" in refusal(path)


def test_the_entry_that_makes_a_column_text_is_shown(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,y\n1,2,0\n2,?,1\n3,1,1\n")
    with pytest.raises(
        TableError, match=r"columns must be numbers or booleans; got b \(such as '\?'\)"
    ):
        make_design(read_table(path, "y"), "bernoulli", standardise=True, intercept=True)
