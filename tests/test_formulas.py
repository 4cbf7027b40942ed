"""Formulas become designs that new rows, chunks and stored encodings reproduce bit for bit."""

import json

import numpy as np
import pandas as pd
import pytest

import tallmc
from tallmc._fit import encoding, formulas
from tallmc._fit.encoding import DesignEncoding
from tallmc._fit.formulas import split_formula, state_from_json, state_to_json
from tallmc._fit.model import RegressionModel
from tallmc._fit.reading import read_table
from tallmc._fit.store_design import store_terms
from tallmc._rows.manifest import Category, Column, RowManifest

formulaic = pytest.importorskip("formulaic")

N = 300
rng = np.random.default_rng(3)
COLUMNS = {
    "y": rng.normal(size=N),
    "age": rng.normal(40, 9, N),
    "my income": rng.exponential(size=N),
    "smoker": rng.random(N) < 0.3,
    "year": rng.integers(2018, 2021, N),
    "region": rng.choice(["south", "north", "east"], N),
    "clinic": rng.integers(1, 9, N),
}
TABLE = read_table(COLUMNS)
FORMULAS = [
    "age",
    "age + C(region)",
    "age * region + smoker",
    "0 + region + age",
    "age - 1",
    "center(age) + scale(`my income`)",
    "np.log1p(`my income`) + C(year) + age:C(year)",
    "poly(age, 3) + bs(`my income`, df=5)",
    "cr(age, df=4) + I(age ** 2)",
    "C(region, contr.sum) + C(smoker)",
    "C(region, contr.treatment(base='north')) * center(age)",
    "(age + smoker + region) ** 2",
    "scale(age) + region * C(clinic)",
    "0 + C(region, contr.sum):C(clinic) + C(year):poly(age, 2) + smoker",
    "1",
]


def make_design(table, response=None, response_kind="number", dtype="float32", **choices):
    model = RegressionModel("gaussian", response=response, **choices)
    return encoding.make_design(table, model, response_kind, dtype)


def design_of(formula, **options):
    return make_design(TABLE, formula=formula, **options)


def refusal(formula, table=TABLE, **options):
    with pytest.raises(tallmc.InvalidInput) as caught:
        make_design(table, formula=formula, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def through_json(encoding, formula):
    return DesignEncoding.from_json(json.loads(json.dumps(encoding.to_json())), formula)


@pytest.mark.parametrize("terms", FORMULAS)
def test_columns_and_names_are_those_of_formulaic(terms):
    design = design_of(f"y ~ {terms}", standardise=False, dtype="float64")
    expected = formulaic.model_matrix(terms, pd.DataFrame(COLUMNS))
    assert design.names == tuple(expected.columns)
    np.testing.assert_array_equal(design.x, expected.to_numpy(dtype=float))
    of_terms = {str(t): tuple(j) for t, j in expected.model_spec.term_indices.items()}
    assert {
        "1" if t == "Intercept" else t: j for t, j in design.encoding.scaled.terms.terms.items()
    } == of_terms


def test_a_factor_has_no_column_of_all_rows_per_level(monkeypatch):
    n, evaluated, numbers = 20_000, formulas._evaluated, []

    def counted(spec, frame):
        matrix = evaluated(spec, frame)
        numbers.append(matrix.size)
        return matrix

    monkeypatch.setattr(formulas, "_evaluated", counted)
    table = read_table({"y": np.arange(n), "x": np.arange(n), "g": [f"{k % 90}" for k in range(n)]})
    assert len(make_design(table, formula="y ~ scale(x) + g").names) == 91
    assert sum(numbers) < 10 * n


@pytest.mark.parametrize("terms", FORMULAS)
def test_stored_encoding_on_chunks_equals_the_whole_bit_for_bit(terms):
    formula = f"y ~ {terms}"
    design = design_of(formula)
    encoding = through_json(design.encoding, formula)
    assert encoding == design.encoding
    for start in range(0, N, 71):
        rows = slice(start, start + 71)
        part = encoding.apply(TABLE.rows(rows), need_response=True)
        np.testing.assert_array_equal(part.x, design.x[rows])
        np.testing.assert_array_equal(part.y, design.y[rows])
        assert (
            part.names == design.names
            and part.encoding.scaled.terms.terms == design.encoding.scaled.terms.terms
        )


@pytest.mark.parametrize("terms", FORMULAS)
def test_scaled_columns_turn_back(terms):
    """X = z·sd + mean; columns are centred only beside an intercept."""
    design = design_of(f"y ~ {terms}", dtype="float64")
    plain = design_of(f"y ~ {terms}", dtype="float64", standardise=False)
    back = design.x * np.array(design.encoding.scaled.sds) + np.array(design.encoding.scaled.means)
    scale = np.abs(plain.x).max(initial=1)
    np.testing.assert_allclose(back, plain.x, rtol=0, atol=1e-14 * scale)
    others = [name != "Intercept" for name in design.names]
    np.testing.assert_allclose(design.x[:, others].std(axis=0), 1, rtol=1e-9)
    if "Intercept" in design.names:
        assert (
            np.array(design.encoding.scaled.means)[0],
            np.array(design.encoding.scaled.sds)[0],
        ) == (0, 1)
        np.testing.assert_allclose(design.x[:, others].mean(axis=0), 0, atol=1e-12 * scale)
    else:
        np.testing.assert_array_equal(np.array(design.encoding.scaled.means), 0)


def test_table_without_formula_equals_the_formula_of_all_columns():
    columns = TABLE.without(["my income"])
    plain = make_design(columns, "y")
    formula = make_design(columns, formula="y ~ .")
    assert formula.names == plain.names
    assert formula.encoding.scaled.terms.terms == plain.encoding.scaled.terms.terms
    np.testing.assert_array_equal(formula.x, plain.x)


def test_formula_may_come_without_response():
    design = make_design(TABLE, "y", formula="age")
    np.testing.assert_array_equal(design.x, design_of("y ~ age").x)
    assert "--response must be that of the formula, 'y'; got 'age'" in refusal(
        "y ~ age", response="age"
    )
    assert "--response must name a column; got 'none'" in refusal("age")


def test_categorical_and_missing_values_work_with_formulas():
    assert design_of("y ~ year", categorical=["year"]).names == (
        "Intercept",
        "year[T.2019]",
        "year[T.2020]",
    )
    columns = {**COLUMNS, "age": np.where(np.arange(N) < 5, np.nan, COLUMNS["age"])}
    table = read_table({**columns, "gone": [None] * N})
    assert "age: 5 missing" in refusal("y ~ age", table)
    design = make_design(table, formula="y ~ age", missing="drop")
    assert design.notes == ("dropped 5 of 300 rows with missing values",)
    np.testing.assert_array_equal(design.x[:, 0], np.ones(N - 5))
    assert make_design(table, formula="y ~ region").x.shape[0] == N  # age is not used


def test_baselines_are_noted():
    assert design_of("y ~ C(region)").notes == ("region: 3 levels, baseline 'east'",)


@pytest.mark.parametrize(
    ("formula", "changes", "found"),
    [
        ("y ~ C(region)", {"region": "west"}, "column 'region' must have levels that the fit"),
        ("y ~ age:region", {"region": "west"}, "got 'west' in row 3. The levels are: east, north"),
        ("y ~ C(year)", {"year": 1999}, "column 'year' must have levels that the fit has seen; go"),
        ("y ~ C(year)", {"year": 1999}, "got 1999 in row 3. The levels are: 2018, 2019, 2020."),
        ("y ~ C(np.floor(age))", {"age": 900.0}, "has seen; got level 900.0 in 1 + C(np"),
        (
            "y ~ bs(age, df=4)",
            {"age": 900.0},
            "within the range of the fit; got others for a spline of 1 + bs(age, df=4)",
        ),
        ("y ~ log(`my income`)", {"my income": 0.0}, "be finite; got -inf in row 3"),
        ("y ~ (1 | clinic)", {"clinic": 77}, "'clinic' must have levels that the fit has seen"),
    ],
)
def test_new_rows_that_do_not_fit_are_an_error(formula, changes, found):
    design = design_of(formula)
    rows = pd.DataFrame(COLUMNS).iloc[:5].copy()
    for name, value in changes.items():
        rows[name] = [value if row == 2 else old for row, old in enumerate(rows[name])]
    with pytest.raises(tallmc.InvalidInput) as caught:
        design.encoding.apply(read_table(rows))
    assert found in str(caught.value)


def test_new_rows_need_the_columns_of_the_formula():
    design = design_of("y ~ age + (1 + smoker | clinic)")
    found = r"must have the columns of the fit; got dict without age, smoker, clinic\. Its columns"
    with pytest.raises(tallmc.InvalidInput, match=found):
        design.encoding.apply(read_table({"region": ["north"]}))


@pytest.mark.parametrize(
    ("formula", "found"),
    [
        (
            "y ~ agee",
            "--formula (formula) must name a column of dict; got 'agee'. The columns are:",
        ),
        ("y ~ age +", "got age + : Operator `+` has insuffient"),
        ("y ~ (age", "formulaic evaluates; got (age: Could not find matching"),
        ("y ~ frobnicate(age)", "name 'frobnicate' is not defined]. Functions are those of np and"),
        ("y ~ age ~ year", "must have one ~"),
        ("y ~ y + age", "not explain the response by itself; got 'y'"),
        ("log(y) ~ age", "have the name of a column before ~; got 'log(y)'. Put the transformed"),
        ("", "be text such as 'y ~ age + C(region)'; got ''"),
        ("y ~ age | clinic", "have bars only in (terms | group)"),
        ("y ~ (1 || clinic)", "have bars only in (terms | group)"),
        ("y ~ (1 | region * year)", "have columns after a bar: one, a/b, a:b, or a difference"),
        ("y ~ (1 | region:region)", "join different columns after a bar; got 'region:region'"),
        ("y ~ (1 | clinc)", "--formula (formula) must name a column of dict; got 'clinc'"),
        (
            "y ~ log(age - 40)",
            "column 'log(age - 40)' of the design must be finite; got nan in row",
        ),
        ("y ~ I(age - np.mean(age))", "compute each row from this row alone; got other values of"),
        ("y ~ C(age)", None),
        ("y ~ offset(age + 1)", "have one offset(x) or offset(log(x))"),
        ("y ~ 0", "have a column besides the response when there is no intercept"),
    ],
)
def test_formulas_that_cannot_be_are_refused_in_one_line(formula, found):
    if found is None:  # as many levels as rows, but not too many
        assert len(design_of(formula).names) == N
    else:
        assert found in refusal(formula)


def test_thousands_of_levels_are_refused():
    rows = 3000
    table = read_table({"y": np.arange(rows) % 7, "code": np.arange(rows)})
    assert "at most 1000 levels in C(code); got 3000 levels. Use code as a number" in refusal(
        "y ~ C(code)", table
    )
    table = read_table({"y": np.arange(rows) % 7, "code": [f"c{row}" for row in range(rows)]})
    assert "column 'code' must have at most 1000 levels; got 3000" in refusal("y ~ code", table)
    assert len(make_design(table, formula="y ~ (1 | code)").groups[0].encoding.group.levels) == rows


def test_no_intercept_is_part_of_the_formula():
    assert "Begin the terms with 0 +." in refusal("y ~ age", intercept=False)
    assert design_of("y ~ 0 + age").names == ("age",)


# Stored formulas are code


def test_stored_formulas_are_plain_or_passed_again():
    formula = "y ~ center(age) + (1 | clinic)"
    content = design_of(formula).encoding.to_json()
    assert DesignEncoding.from_json(content).formula == formula
    with pytest.raises(tallmc.InvalidInput, match=r"passed again, as it calls functions"):
        DesignEncoding.from_json(content | {"formula": "y ~ open(age)"})
    with pytest.raises(tallmc.InvalidInput, match="be that of the fit, 'y ~ center"):
        DesignEncoding.from_json(content, "y ~ age + (1 | clinic)")
    assert DesignEncoding.from_json(content, "y ~ center(age)+(1|clinic)").formula is not None
    plain = make_design(TABLE, "y").encoding.to_json()
    with pytest.raises(tallmc.InvalidInput, match="be that of the fit, None"):
        DesignEncoding.from_json(plain, formula)


def test_no_text_of_a_stored_encoding_is_evaluated(tmp_path):
    """Every text of the content but the formula is replaced by code that would write a file."""
    formula = "y ~ center(age) + C(region) + (1 + age | clinic)"
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    texts = {"center(age)", "C(region)", "1 + age", "1 + age | clinic", "center(age) + C(region)"}

    def spoilt(value):
        if isinstance(value, dict):
            return {spoilt(key): spoilt(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [spoilt(part) for part in value]
        return code if value in texts else value

    content = spoilt(design_of(formula).encoding.to_json())
    assert code in json.dumps(content) and content["formula"] == formula
    encoding = DesignEncoding.from_json(content, formula)
    with pytest.raises(tallmc.InvalidInput):
        encoding.apply(TABLE)
    assert not trap.exists()


def test_states_keep_their_types_and_bits():
    state = {
        "f(x)": {0: np.float64(0.1), "k": (1, [2.5, None]), "a": np.array([[1, 2]]), "i": np.inf}
    }
    back = state_from_json(json.loads(json.dumps(state_to_json(state))))["f(x)"]
    assert back[0] == 0.1 and back["k"] == (1, [2.5, None]) and back["i"] == np.inf
    np.testing.assert_array_equal(back["a"], [[1, 2]])
    assert back["a"].dtype == np.int64
    with pytest.raises(tallmc.InvalidInput, match=r"stored as JSON; got f\(x\), which keeps a set"):
        state_to_json({"f(x)": {"s": {1}}})


# Groups


def test_bars_are_parsed_out_of_the_formula():
    parts = split_formula("y ~ age + C(a, levels=['|', '~']) + (1|a - `b c`) + (0 + x*z | `my g`)")
    groups = (("1", ("a", "b c"), True), ("0 + x*z", ("my g",), False))
    assert parts[:3] == ("y", "age + C(a, levels=['|', '~'])", groups)


def test_groups_have_codes_levels_and_columns():
    design = design_of("y ~ age + (1 + age | clinic) + (0 + smoker | region)", dtype="float64")
    assert design.names == ("Intercept", "age")
    clinic, region = design.groups
    assert (clinic.encoding.name, clinic.encoding.group.name) == ("1 + age | clinic", "clinic")
    assert clinic.encoding.group.levels == tuple("12345678")
    np.testing.assert_array_equal(clinic.codes, COLUMNS["clinic"] - 1)
    assert clinic.encoding.scaled.names == ("Intercept", "age")
    np.testing.assert_array_equal(clinic.x, design.x)
    assert region.encoding.scaled.names == ("smoker",)
    assert region.encoding.group.levels == ("east", "north", "south")
    np.testing.assert_array_equal(region.encoding.scaled.means, [0])
    np.testing.assert_allclose(
        region.x[:, 0] * region.encoding.scaled.sds[0], COLUMNS["smoker"], rtol=1e-14
    )
    assert [np.array(region.encoding.group.levels)[code] for code in region.codes] == list(
        COLUMNS["region"]
    )


def test_nested_factors_are_the_outer_one_and_their_combinations():
    """So (1 | a/b/c) has the codes of columns that a user joins before."""
    formula = "y ~ (1 + age | region/clinic/smoker)"
    design = design_of(formula)
    columns = ["region", "clinic", "smoker"]
    for k, group in enumerate(design.groups, start=1):
        names = [np.asarray(COLUMNS[name]).astype(str) for name in columns[:k]]
        by_hand = [":".join(parts) for parts in zip(*names, strict=True)]
        levels = group.encoding.group.levels
        assert set(levels) == set(by_hand) and len(levels) == len(set(by_hand))
        assert [levels[code] for code in group.codes] == by_hand
        assert group.encoding.name == f"1 + age | {':'.join(columns[:k])}"
    new = {name: COLUMNS[name][:3] for name in ["age", *columns]}
    found = through_json(design.encoding, formula).apply(read_table(new))
    for one, other in zip(found.groups, design.groups, strict=True):
        np.testing.assert_array_equal(one.codes, other.codes[:3])
    assert split_formula("y ~ (1 | a:b)").groups == (("1", ("a", "b"), False),)


def test_joined_levels_that_look_alike_are_refused():
    table = {"y": [0, 1, 0, 1], "a": ["u:v", "u", "w", "w"], "b": ["z", "v:z", "z", "v:z"]}
    assert "join a and b to levels that differ" in refusal("y ~ (1 | a:b)", read_table(table))


def test_group_column_may_also_be_a_number_of_the_formula():
    formula = "y ~ clinic + (1 | clinic)"
    design = design_of(formula, standardise=False)
    np.testing.assert_array_equal(design.x[:, 1], COLUMNS["clinic"])
    new = through_json(design.encoding, formula).apply(read_table({"clinic": [3, 8]}))
    np.testing.assert_array_equal(new.x[:, 1], [3, 8])
    np.testing.assert_array_equal(new.groups[0].codes, [2, 7])


def test_only_groups_are_a_model():
    design = design_of("y ~ 0 + (1 | clinic)")
    assert design.x.shape == (N, 0)
    assert design.groups[0].encoding.scaled.names == ("Intercept",)


# Row stores

STORE = RowManifest(
    "float32",
    (
        Column("intercept", ""),
        Column("age", "age"),
        Column("my income", "my income"),
        Column("region", "region", high=2),
        Column("sex", "sex", high=1),
        Column("y", "y"),
    ),
    (),
    "y",
    (
        Category("region", ("south", "north", "east"), (0.5, 0.25, 0.25)),
        Category("sex", ("f", "m"), (0.5, 0.5)),
    ),
)


def test_store_terms_are_products_of_columns():
    found = store_terms("y ~ age * C(region) + sex:C(region) + sex + `my income`", STORE)
    north, east, male = ("region", 1), ("region", 2), ("sex", 1)
    assert found == {
        "Intercept": (),
        "age": (AGE,),
        "C(region)[T.north]": (north,),
        "C(region)[T.east]": (east,),
        "sex[T.m]": (male,),
        "my income": (("my income", None),),
        "age:C(region)[T.north]": (AGE, north),
        "age:C(region)[T.east]": (AGE, east),
        "sex[T.m]:C(region)[T.north]": (male, north),
        "sex[T.m]:C(region)[T.east]": (male, east),
    }
    assert list(store_terms("age - 1", STORE)) == ["age"]
    every = [(), (AGE,), (("my income", None),), (north,), (east,), (male,)]
    assert list(store_terms(".", STORE).values()) == every


AGE = ("age", None)


@pytest.mark.parametrize("terms", ["age * C(region) * sex", "0 + region + age:sex", "age:region"])
def test_store_terms_are_those_of_formulaic_on_the_table(terms):
    """Products of the store's columns are the columns that formulaic makes of the table."""
    n = 60
    codes = rng.integers(0, 3, n)
    sex = rng.integers(0, 2, n)
    frame = pd.DataFrame(
        {
            "age": rng.normal(size=n),
            "region": pd.Categorical.from_codes(codes, ["south", "north", "east"]),
            "sex": pd.Categorical.from_codes(sex, ["f", "m"]),
        }
    )
    numbers = {"age": frame["age"], "region": codes, "sex": sex}
    found = store_terms(terms, STORE)
    expected = formulaic.model_matrix(terms, frame)
    assert list(found) == list(expected.columns)
    made = [
        np.prod([numbers[k] if code is None else numbers[k] == code for k, code in of], axis=0)
        * np.ones(n)
        for of in found.values()
    ]
    made = np.stack(made, axis=1)
    np.testing.assert_array_equal(made, expected.to_numpy(dtype=float))


@pytest.mark.parametrize(
    ("formula", "found"),
    [
        (
            "np.log(age)",
            "without functions; got 'np.log(age)'. Transform the column before `tallmc",
        ),
        ("{__import__('os').getpid()}", "without functions"),
        ("C(__import__('os').getpid())", "without functions"),
        ("C(region, contr.sum)", "without functions"),
        ("C(age)", "use C() for columns of text only; got 'C(age)'. Ingest age as text"),
        ("agee", "got 'agee'. The columns are: age, my income, region, sex."),
        ("ill ~ age", "have a column of the row store before ~; got 'ill'"),
    ],
)
def test_stores_refuse_what_needs_the_table(formula, found):
    with pytest.raises(tallmc.InvalidInput) as caught:
        store_terms(formula, STORE)
    assert found in str(caught.value)
