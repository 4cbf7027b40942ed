"""Tables become row stores: exact numbers, the same bytes after a crash, errors with a place."""

import gzip
import hashlib
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, feather, ipc, parquet

import tallmc
from problems import slow_after
from tallmc._ingestion import readers, values
from tallmc._ingestion.parquet_shards import parquet_shards
from tallmc._rows import writer
from tallmc._rows.manifest import RowManifest
from tallmc._rows.shards import NpyShards
from tallmc._rows.writer import rows_per_shard
from test_cli import call, refused
from test_faults import small_disk

RNG = np.random.default_rng(5)
N = 1000
COLUMNS = {
    "age": RNG.normal(50, 12, N),
    "visits": RNG.integers(0, 9, N),
    "member": RNG.random(N) < 0.3,
    "city": RNG.choice(["Oslo", "Rome", "Kyiv"], N, p=[0.2, 0.5, 0.3]),
    "y": RNG.integers(0, 2, N),
}
NAMES = ("intercept", "age", "visits", "member", "city", "y")


def exact_rows(dtype="float32", standardise=True):
    """The rows that the table should become, by another way: pandas and one pass."""
    table = pd.DataFrame(COLUMNS)
    features = table[["age", "visits", "member"]].astype(float)
    if standardise:
        features = (features - features.mean()) / features.std(ddof=0)
    codes = pd.Categorical(table["city"]).codes  # in the order of sorted text
    return np.column_stack([np.ones(N), features, codes, table["y"]]).astype(dtype)


def rows_of(folder):
    shards = NpyShards(str(folder))
    assert shards.damaged() == []
    return np.concatenate([shards.array(number) for number in range(len(shards.manifest.shards))])


def content_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def write(path, columns=COLUMNS, slices=1):
    """Write a table in the format that its name says, as one file, or split over several."""
    if slices > 1:
        edges = np.linspace(0, N, slices + 1).astype(int)
        name, _, ending = path.name.partition(".")
        return [
            write(
                path.with_name(f"{name}{part}.{ending}"),
                {key: values[low:high] for key, values in columns.items()},
            )
            for part, (low, high) in enumerate(itertools.pairwise(edges))
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **columns)
        return path
    table = pa.table(columns)
    if path.name.endswith(".csv.gz"):
        with gzip.open(path, "wb") as file:
            csv.write_csv(table, file)
    elif path.suffix == ".csv":
        csv.write_csv(table, path)
    elif path.suffix == ".feather":
        feather.write_feather(table, path, compression="lz4")
    elif path.suffix == ".arrow":
        with ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    else:
        parquet.write_table(table, path, row_group_size=300)
    return path


ENDINGS = ["csv", "csv.gz", "parquet", "feather", "arrow", "npz"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("slices", [1, 3])
def test_rows_are_standardised_in_double_precision_and_rounded(tmp_path, ending, slices):
    source = write(tmp_path / f"table.{ending}", slices=slices)
    manifest = tallmc.ingest(source, tmp_path / "rows", response="y")
    assert manifest == RowManifest.read(tmp_path / "rows")
    assert (manifest.names, manifest.n_rows, manifest.response) == (NAMES, N, "y")
    rows = rows_of(tmp_path / "rows")
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, exact_rows("float64"), rtol=1e-6, atol=1e-7)
    doubles = tallmc.ingest(source, tmp_path / "doubles", response="y", dtype="float64")
    assert doubles.dtype == "float64"
    np.testing.assert_allclose(
        rows_of(tmp_path / "doubles"), exact_rows("float64"), rtol=1e-12, atol=1e-13
    )


def test_manifest_has_the_constants_of_the_table(tmp_path):
    manifest = tallmc.ingest(COLUMNS, tmp_path / "rows", response="y")
    columns = {column.name: column for column in manifest.columns}
    for name in ("age", "visits", "member", "y"):
        values, column = COLUMNS[name].astype(float), columns[name]
        assert (column.source, column.level) == (name, None)
        assert column.mean == pytest.approx(values.mean(), rel=1e-14)
        assert column.sd == pytest.approx(values.std(), rel=1e-14)
        assert (column.low, column.high) == (values.min(), values.max())
        assert column.whole == (name != "age")
        assert column.standardised == (name != "y")
    city, (category,) = columns["city"], manifest.categories
    assert (city.source, city.level, city.high, city.mean, city.sd) == ("city", None, 2, 0, 1)
    assert (category.name, category.levels) == ("city", ("Kyiv", "Oslo", "Rome"))
    assert category.shares == tuple(np.mean(COLUMNS["city"] == of) for of in category.levels)


def test_rows_can_be_left_as_they_are(tmp_path):
    manifest = tallmc.ingest(
        COLUMNS, tmp_path / "rows", response="y", standardise=False, intercept=False
    )
    assert manifest.names == NAMES[1:]
    assert not any(column.standardised for column in manifest.columns)
    expected = exact_rows(standardise=False)[:, 1:]
    np.testing.assert_array_equal(rows_of(tmp_path / "rows"), expected)


def test_moments_are_sound_far_from_zero_and_for_sorted_rows(tmp_path):
    """Σx² − (Σx)²/N would have no correct digit here: the mean is 10⁹ times the sd."""
    values = np.sort(RNG.normal(size=100_000)) + 1e9
    manifest = tallmc.ingest(
        lambda: ({"x": part} for part in np.array_split(values, 7)), tmp_path / "rows"
    )
    column = manifest.columns[1]
    shifted = values - 1e9
    assert column.mean - 1e9 == pytest.approx(shifted.mean(), abs=1e-6)
    assert column.sd == pytest.approx(shifted.std(), rel=1e-7)


@pytest.mark.parametrize("kind", ["dict", "pandas", "table", "record batch", "function"])
def test_batches_from_python_are_rows(tmp_path, kind):
    frame = pd.DataFrame(COLUMNS)
    parts = [frame[:400], frame[400:400], frame[400:]]
    made = {
        "dict": [{name: part[name].to_numpy() for name in part} for part in parts],
        "pandas": parts,
        "table": [pa.Table.from_pandas(part, preserve_index=False) for part in parts],
        "record batch": [pa.RecordBatch.from_pandas(p, preserve_index=False) for p in parts],
        "function": lambda: iter(parts),
    }
    tallmc.ingest(made[kind], tmp_path / "rows", response="y")
    np.testing.assert_allclose(rows_of(tmp_path / "rows"), exact_rows(), rtol=1e-6, atol=1e-7)


def test_an_iterator_that_ends_after_one_pass_is_refused(tmp_path):
    with pytest.raises(tallmc.InvalidInput, match="Pass the function that makes it"):
        tallmc.ingest(iter([COLUMNS]), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_batches_that_differ_between_the_passes_are_refused(tmp_path):
    passes = iter([[COLUMNS], [COLUMNS, COLUMNS]])
    with pytest.raises(tallmc.InvalidInput, match="must stay the same while it is read"):
        tallmc.ingest(lambda: next(passes), tmp_path / "rows")
    later = {**COLUMNS, "city": np.where(COLUMNS["city"] == "Oslo", "Bonn", COLUMNS["city"])}
    passes = iter([[COLUMNS], [later]])
    with pytest.raises(tallmc.InvalidInput, match="other rows in batch 1"):
        tallmc.ingest(lambda: next(passes), tmp_path / "more")


def test_partitioned_folders_give_columns(tmp_path):
    for year in (2023, 2024):
        for place in ("a b", "c"):
            inside = {"x": RNG.normal(size=5) + year, "y": [0, 1, 0, 1, 1]}
            name = place.replace(" ", "%20")
            write(tmp_path / "table" / f"year={year}" / f"place={name}" / "0.parquet", inside)
    (tmp_path / "table" / "_SUCCESS").touch()
    manifest = tallmc.ingest(tmp_path / "table", tmp_path / "rows", response="y", standardise=False)
    assert manifest.names == ("intercept", "x", "year", "place", "y")
    expected = [[year, place] for year in (2023, 2024) for place in (0, 1) for _ in range(5)]
    np.testing.assert_array_equal(rows_of(tmp_path / "rows")[:, 2:4], expected)


def test_patterns_and_folders_name_their_files_in_order(tmp_path):
    write(tmp_path / "table" / "part.parquet", slices=3)
    for number, source in enumerate(
        [tmp_path / "table", str(tmp_path / "table" / "part*.parquet")]
    ):
        tallmc.ingest(source, tmp_path / f"rows{number}", response="y")
        np.testing.assert_allclose(rows_of(tmp_path / f"rows{number}"), exact_rows(), rtol=1e-6)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_matrices_are_read_in_pieces(tmp_path, order, save, monkeypatch):
    monkeypatch.setattr(values, "_BATCH_BYTES", 2**18)
    n_rows = 30_000
    matrix = RNG.normal(size=(n_rows, 3))
    save(tmp_path / "table.npz", X=np.asarray(matrix, order=order), y=np.arange(n_rows))
    tallmc.ingest(
        tmp_path / "table.npz", tmp_path / "rows", response="y", standardise=False, dtype="float64"
    )
    expected = np.column_stack([np.ones(n_rows), matrix, np.arange(n_rows)])
    np.testing.assert_array_equal(rows_of(tmp_path / "rows"), expected)


def test_csv_columns_that_become_text_late_are_text_from_the_first_row(tmp_path, monkeypatch):
    """The kind of a column is guessed per block; here blocks disagree."""
    monkeypatch.setattr(readers, "_CSV_BLOCK", 2**16)
    n_rows = 8000
    path = tmp_path / "table.csv"
    with path.open("w") as file:
        file.write("code,x,day,y\n")
        file.writelines(
            f"{row % 3},{row},2020-01-0{row % 2 + 1},{row % 2}\n" for row in range(n_rows)
        )
        file.write("unknown,0.5,never,1\n")
    assert path.stat().st_size > 2 * 2**16
    manifest = tallmc.ingest(path, tmp_path / "rows", response="y", standardise=False)
    assert manifest.n_rows == n_rows + 1
    assert [c.levels for c in manifest.categories] == [
        ("0", "1", "2", "unknown"),
        ("2020-01-01", "2020-01-02", "never"),
    ]
    rows = rows_of(tmp_path / "rows")
    np.testing.assert_array_equal(rows[-1], [1, 3, 0.5, 2, 1])
    np.testing.assert_array_equal(rows[1:3, 1:4], [[1, 1, 1], [2, 2, 0]])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([False, True, True], [0, 1, 1]),
        (["no", "yes", "yes"], [0, 1, 1]),
        (["Yes", "No", "Yes"], [1, 0, 1]),
        (["f", "t", "t"], [0, 1, 1]),
        ([3, 5, 8], [3, 5, 8]),
        ([0.25, 0.5, 1.5], [0.25, 0.5, 1.5]),
    ],
)
def test_response_is_stored_as_it_is(tmp_path, values, expected):
    table = {"x": [1.0, 2.0, 4.0], "y": values}
    manifest = tallmc.ingest(table, tmp_path / "rows", response="y")
    np.testing.assert_array_equal(rows_of(tmp_path / "rows")[:, -1], expected)
    assert manifest.columns[-1].mean == pytest.approx(np.mean(expected))
    assert manifest.columns[-1].sd == pytest.approx(np.std(expected))


SMALL = {"x": [1.0, 2.0, 4.0], "y": [0, 1, 1]}
REFUSED = {
    "ambiguous response": ({**SMALL, "y": ["a", "b", "b"]}, {}, r"'a', 'b'.*== 'b'"),
    "three levels": ({**SMALL, "y": ["no", "yes", "?"]}, {}, "numbers, booleans, or text such as"),
    "constant response": ({**SMALL, "y": [1, 1, 1]}, {}, "response 'y' must vary; got 1 in every"),
    "constant column": ({**SMALL, "x": [0.1] * 3}, {}, r"x \(0.1 in every row\).*--no-standardise"),
    "single level": ({**SMALL, "x": ["a"] * 3}, {}, r"have several levels; got x \('a' in every"),
    "unknown response": (SMALL, {"response": "z"}, "--response.*'z'. The columns are: x, y"),
    "levels": ({**SMALL, "x": ["1", "2", "?"]}, {"max_levels": 2}, r"at most 2 .* such as '\?'"),
    "intercept": ({**SMALL, "intercept": [1, 2, 3]}, {}, "Drop it or pass --no-intercept"),
    "only response": ({"y": [0, 1]}, {"intercept": False}, "only y"),
    "no rows": ({"x": [], "y": []}, {}, "have at least one row"),
    "dates": ({**SMALL, "x": np.arange(3).astype("M8[D]")}, {}, r"x \(datetime64\[D\] in batch 1"),
    "too large": (
        {**SMALL, "y": [0, 1, 1e39]},
        {},
        r"values that float32 can hold; got y \(1e\+39",
    ),
    "infinite sd": ({**SMALL, "x": [0, 1, 1e200]}, {}, r"can hold; got x \(1e\+200"),
    "lengths": ({**SMALL, "x": [1, 2]}, {}, "columns of equal length; got lengths x: 2, y: 3"),
    "matrix": ({**SMALL, "x": np.eye(3)}, {}, r"one 1-D array per column; got x of shape \(3, 3\)"),
    "stray word": (
        {"x": [*map(str, range(200)), "?"], "y": [0, 1, 1] * 67},
        {},
        r"'x' must hold numbers or text, not both; got '\?' among numbers",
    ),
    "dtype": (SMALL, {"dtype": "int8"}, "dtype must be 'float32' or 'float64'; got 'int8'"),
    "kind": (3, {}, "source must be paths, a table, an iterable"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_tables_are_refused_and_nothing_is_written(tmp_path, case):
    table, options, message = REFUSED[case]
    with pytest.raises(tallmc.InvalidInput, match=message):
        tallmc.ingest(table, tmp_path / "rows", **{"response": "y", **options})
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_missing_and_infinite_values_are_named_with_file_and_row(tmp_path, ending):
    values = COLUMNS["age"].copy()
    values[[500, 900]], values[700] = np.nan, np.inf
    city = [None if row in (3, 999) else city for row, city in enumerate(COLUMNS["city"])]
    files = write(tmp_path / f"t.{ending}", {**COLUMNS, "age": values, "city": city}, slices=4)
    if ending == "csv":
        text = files[0].read_text().replace("nan", "")
        files[0].write_text(text)
    with pytest.raises(tallmc.InvalidInput) as caught:
        tallmc.ingest(files, tmp_path / "rows", response="y")
    message = str(caught.value)
    assert f"age: 2 missing (first in t2.{ending}, row 1)" in message
    assert f"age: 1 infinite (first in t2.{ending}, row 201)" in message
    assert f"city: 2 missing (first in t0.{ending}, row 4)" in message


@pytest.mark.parametrize("ending", ["csv", "parquet", "batches"])
def test_rows_with_missing_values_are_dropped_on_request(tmp_path, ending, monkeypatch):
    """An interrupted call goes on to the same bytes, and an append drops them too."""
    monkeypatch.setattr("tallmc._rows.writer._SHARD_BYTES", 2**12)
    frame = pd.DataFrame(COLUMNS)
    frame.loc[[0, 5, 900], "age"], frame.loc[[5, 999], "city"] = np.nan, None
    complete = frame.dropna()
    if ending == "batches":
        source = [frame[:400], frame[400:]]
    else:
        source = write(tmp_path / f"t.{ending}", {k: pa.array(v) for k, v in frame.items()})
    options = {"response": "y", "missing": "drop"}
    manifest = tallmc.ingest(source, tmp_path / "rows", **options)
    expected = tallmc.ingest(complete, tmp_path / "complete", response="y")
    assert manifest.n_rows == len(complete) == N - 4
    assert (manifest.names, manifest.categories) == (expected.names, expected.categories)
    rows = rows_of(tmp_path / "rows")
    np.testing.assert_allclose(rows, rows_of(tmp_path / "complete"), rtol=1e-6, atol=1e-7)

    def stop(self, *_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tallmc._rows.writer.RowStoreWriter.finish", stop)
        with pytest.raises(KeyboardInterrupt):
            tallmc.ingest(source, tmp_path / "stopped", **options)
    with pytest.raises(tallmc.InvalidInput, match="stopped"):
        tallmc.ingest(source, tmp_path / "stopped", response="y")
    tallmc.ingest(source, tmp_path / "stopped", **options)
    np.testing.assert_array_equal(rows_of(tmp_path / "stopped"), rows)
    grown = tallmc.ingest(source, tmp_path / "rows", append=True, missing="drop")
    assert grown.n_rows == 2 * (N - 4)
    with pytest.raises(tallmc.InvalidInput, match=r"missing\) must be 'raise', 'drop' or 'ind"):
        tallmc.ingest(source, tmp_path / "other", missing="impute")


@pytest.mark.parametrize("without", [0, 1, 2])
def test_a_file_of_which_no_row_is_complete_adds_none(tmp_path, without):
    """The batches between the two passes may be empty, at either end as well."""
    frame = pd.DataFrame(COLUMNS)
    parts = [frame[:400], frame[400:600], frame[600:]]
    complete = pd.concat(parts[:without] + parts[without + 1 :])
    parts[without] = parts[without].assign(age=np.nan)
    paths = [
        write(tmp_path / f"t{k}.parquet", {name: pa.array(v) for name, v in part.items()})
        for k, part in enumerate(parts)
    ]
    tallmc.ingest(paths, tmp_path / "rows", response="y", missing="drop")
    tallmc.ingest(complete, tmp_path / "complete", response="y")
    found, expected = (rows_of(tmp_path / name) for name in ("rows", "complete"))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_columns_that_differ_between_files_are_named(tmp_path):
    first = write(tmp_path / "a.parquet", SMALL)
    other = write(tmp_path / "b.parquet", {"z": [1.0], "y": [1]})
    with pytest.raises(tallmc.InvalidInput, match=r"b\.parquet, which lacks x and also has z"):
        tallmc.ingest([first, other], tmp_path / "rows")
    text = write(tmp_path / "c.parquet", {"x": ["1"], "y": [1]})
    message = r"x \(numbers in a.parquet, text in c.parquet\)"
    with pytest.raises(tallmc.InvalidInput, match=message):
        tallmc.ingest([first, text], tmp_path / "rows")


def test_broken_lines_of_csv_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_CSV_BLOCK", 2**16)
    path = tmp_path / "table.csv"
    lines = [f"{row},{row % 2}\n" for row in range(30_000)]
    lines[29_000] = "1,2,3\n"
    path.write_text("x,y\n" + "".join(lines))
    with pytest.raises(tallmc.InvalidInput, match=r"table.csv: .*row 29001: Expected 2 columns"):
        tallmc.ingest(path, tmp_path / "rows")


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_that_are_not_what_their_names_say_are_refused(tmp_path, ending):
    path = tmp_path / f"table.{ending}"
    path.write_bytes(b"neither nor")
    with pytest.raises(tallmc.InvalidInput, match="TABLE must"):
        tallmc.ingest(path, tmp_path / "rows")


def test_finished_stores_and_other_folders_are_not_touched(tmp_path):
    tallmc.ingest(SMALL, tmp_path / "rows")
    before = content_of(tmp_path / "rows")
    with pytest.raises(tallmc.rows.RowStoreError, match="a finished row store"):
        tallmc.ingest(SMALL, tmp_path / "rows")
    assert content_of(tmp_path / "rows") == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(tallmc.rows.RowStoreError, match="new or empty folder; got other files"):
        tallmc.ingest(SMALL, tmp_path / "other")
    assert content_of(tmp_path / "other") == {"notes.txt": b"mine"}


SMALL_PIECES = """
from tallmc._ingestion import readers, values
from tallmc._rows import writer

readers._CSV_BLOCK = values._BATCH_BYTES = writer._SHARD_BYTES = 2**17
"""
"""For programs that read and write many pieces in little time."""
WIDE = 15
PER_SHARD = 2**11


@pytest.fixture
def _small_pieces(monkeypatch):
    for module, name in (
        (readers, "_CSV_BLOCK"),
        (values, "_BATCH_BYTES"),
        (writer, "_SHARD_BYTES"),
    ):
        monkeypatch.setattr(module, name, 2**17)
    assert rows_per_shard(WIDE + 1, "float32") == PER_SHARD


def wide_batches(n_batches, broken_at=None):
    """Batches of 5/8 of a shard. The iterator can break in the second pass."""
    passes = iter([None, broken_at])

    def make():
        breaks = next(passes)
        for number in range(n_batches):
            if number == breaks:
                raise OSError("the source is gone")
            values = np.arange(PER_SHARD * 5 // 8) % 7 + number
            yield {f"x{j}": values + j for j in range(WIDE)}

    return make


@pytest.mark.usefixtures("_small_pieces")
def test_batches_go_on_after_the_last_shard(tmp_path):
    tallmc.ingest(wide_batches(9), tmp_path / "whole")
    with pytest.raises(OSError, match="gone"):
        tallmc.ingest(wide_batches(9, broken_at=4), tmp_path / "rows")
    assert sorted(content_of(tmp_path / "rows")) == ["000000.npy", "000001.npy", "progress.json"]
    written = (tmp_path / "rows" / "000001.npy").stat().st_mtime_ns
    with pytest.raises(tallmc.rows.RowStoreError, match="the beginning of others"):
        tallmc.ingest(wide_batches(8), tmp_path / "rows")
    tallmc.ingest(wide_batches(9), tmp_path / "rows")
    assert (tmp_path / "rows" / "000001.npy").stat().st_mtime_ns == written
    assert content_of(tmp_path / "rows") == content_of(tmp_path / "whole")


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize(
    ("number", "ending"),
    slow_after(1, itertools.product((signal.SIGTERM, signal.SIGKILL), ("parquet", "csv.gz"))),
)
def test_a_killed_command_goes_on_to_the_same_bytes(tmp_path, number, ending):
    files = [
        write(tmp_path / f"part{part:02d}.{ending}", columns)
        for part, columns in enumerate(wide_batches(20)())
    ]
    assert call("ingest", *files, "-o", tmp_path / "whole", "--no-progress") == 0
    program = SMALL_PIECES + "from tallmc.cli import main; main()"
    command = [sys.executable, "-c", program, "ingest", *map(str, files), "-o", tmp_path / "rows"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (tmp_path / "rows" / "000002.npy").exists():
        time.sleep(0.002)
    os.kill(process.pid, number)
    _, messages = process.communicate()
    assert process.returncode == (-9 if number == signal.SIGKILL else 143), messages
    assert ("the same command goes on" in messages) == (number == signal.SIGTERM)
    assert not (tmp_path / "rows" / "manifest.json").exists()
    finished = [tmp_path / "rows" / f"00000{shard}.npy" for shard in range(2)]
    times = [path.stat().st_mtime_ns for path in finished]
    assert call("ingest", *files, "-o", tmp_path / "rows", "--no-progress") == 0
    assert [path.stat().st_mtime_ns for path in finished] == times
    assert content_of(tmp_path / "rows") == content_of(tmp_path / "whole")


MEASURE = (
    SMALL_PIECES.replace("2**17", "2**20")
    + """
import sys, threading, time
from pathlib import Path
import pyarrow
from tallmc._ingestion.ingest import ingest

pyarrow.set_cpu_count(2)  # each of its threads keeps some MB, once it has had a block of the table
most = 0
def watch():
    global most
    while True:
        status = Path("/proc/self/status").read_text()
        most = max(most, int(status.partition("RssAnon:")[2].split()[0]))
        time.sleep(0.002)

threading.Thread(target=watch, daemon=True).start()
for path, repetitions in zip(sys.argv[1:], (8, 1)):
    for number in range(repetitions):
        ingest(path, f"{path}-rows{number}", response="y")
    print(most / 1024)
"""
)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize("ending", slow_after(1, ["parquet", "csv", "npz"]))
def test_memory_does_not_grow_with_the_table(tmp_path, ending):
    """A file of N rows, eight times, then one of 8 N rows; pages of mapped files do not count.

    The allocators keep what they had, so that more rows of small files also take more at first.
    """
    n_rows, paths = 80_000, []
    for times in (1, 8):
        values = np.arange(times * n_rows) % 5
        columns = {f"x{j}": values + j for j in range(WIDE)} | {"y": values % 2}
        path = tmp_path / f"table{times}.{ending}"
        if ending == "parquet":
            parquet.write_table(pa.table(columns), path, row_group_size=10**9)
        else:
            write(path, columns)
        paths.append(path)
    arguments = [sys.executable, "-c", MEASURE, *paths]
    finished = subprocess.run(arguments, check=True, capture_output=True, text=True)
    peaks = [float(peak) for peak in finished.stdout.split()]
    added = sum(column.nbytes for column in columns.values()) * 7 / 8 / 2**20
    assert peaks[1] - peaks[0] < added / 4, (peaks, added)


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    files = write(tmp_path / "clicks.parquet", slices=2)
    assert call("ingest", *files, "-o", tmp_path / "rows", "--response", "y", "--float64") == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path / 'rows'}: 1,000 rows of 6 numbers, 0.0 MB in" in printed
    assert "city: compared with 'Kyiv'" in printed
    assert f"tallmc fit {tmp_path / 'rows'} --response y" in printed
    assert RowManifest.read(tmp_path / "rows").dtype == "float64"
    np.testing.assert_allclose(rows_of(tmp_path / "rows"), exact_rows("float64"), atol=1e-12)


def test_options_of_the_command_reach_the_store(tmp_path, capsys):
    path = write(tmp_path / "clicks.csv")
    options = ["--no-standardise", "--no-intercept", "--no-progress"]
    assert call("ingest", path, "-o", tmp_path / "rows", *options) == 0
    np.testing.assert_array_equal(
        rows_of(tmp_path / "rows")[:, :3], exact_rows(standardise=False)[:, 1:4]
    )
    out = tmp_path / "few"
    message = refused(capsys, "ingest", path, "-o", out, "--max-levels", 2)
    assert "column 'city' must have at most 2 levels" in message


def test_the_command_refuses_with_a_message(tmp_path, capsys):
    path = write(tmp_path / "clicks.csv", SMALL)
    nowhere = tmp_path / "no.csv"
    assert "no.csv, which does not exist" in refused(
        capsys, "ingest", nowhere, "-o", tmp_path / "r"
    )
    assert call("ingest", path, "-o", tmp_path / "rows") == 0
    capsys.readouterr()
    assert "a finished row store" in refused(capsys, "ingest", path, "-o", tmp_path / "rows")
    path.with_suffix(".xlsx").touch()
    message = refused(capsys, "ingest", path.with_suffix(".xlsx"), "-o", tmp_path / "r")
    assert "TABLE must end in one of .csv, .csv.gz, .parquet" in message


def test_progress_is_shown_in_rows(tmp_path, terminal):
    path = write(tmp_path / "clicks.parquet")
    with terminal() as shown:
        assert call("ingest", path, "-o", tmp_path / "rows") == 0
    assert "surveying: 300 of 1,000 rows" in shown[0]
    assert "writing: 300 of 1,000 rows" in shown[0]


@pytest.mark.slow
def test_npz_and_dictionaries_need_no_pyarrow(tmp_path):
    path = write(tmp_path / "table.npz")
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import numpy as np, tallmc\n"
        f"tallmc.ingest({str(path)!r}, {str(tmp_path / 'rows')!r}, response='y')\n"
        f"with np.load({str(path)!r}) as table:\n"
        f"    tallmc.ingest(dict(table), {str(tmp_path / 'more')!r}, response='y')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in ("rows", "more"):
        np.testing.assert_allclose(rows_of(tmp_path / name), exact_rows(), rtol=1e-6, atol=1e-7)


def test_parquet_in_place_has_the_bits_of_the_store(tmp_path):
    for part in range(2):
        inside = {name: values[part::2] for name, values in COLUMNS.items()}
        write(tmp_path / "table" / f"year={2023 + part}" / "0.parquet", inside)
    tallmc.ingest(tmp_path / "table", tmp_path / "rows", response="y")
    shards = pickle.loads(pickle.dumps(parquet_shards([tmp_path / "table"], "y")))
    stored = NpyShards(str(tmp_path / "rows")).manifest
    assert shards.manifest.columns == stored.columns
    assert shards.manifest.categories == stored.categories
    assert [shard.n_rows for shard in shards.manifest.shards] == [300, 200, 300, 200]
    rows = np.concatenate([shards.array(number) for number in range(4)])
    np.testing.assert_array_equal(rows, rows_of(tmp_path / "rows"))
    np.testing.assert_array_equal(shards.lines(1, np.array([3, 5, 5])), rows[[303, 305, 305]])
    np.testing.assert_array_equal(shards.array(1, slice(3, 9)), rows[303:309])
    assert shards.folder.is_dir() and list(shards.folder.iterdir()) == []
    with pytest.raises(tallmc.InvalidInput, match="Parquet to be read in place"):
        parquet_shards([write(tmp_path / "table.csv")])


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_the_table_is_decoded_once_and_again_if_the_disk_is_short(tmp_path, ending, monkeypatch):
    columns = {f"x{j}": np.arange(3000) % (7 + j) for j in range(WIDE)}
    columns["city"] = np.where(np.arange(3000) % 3 == 0, "Oslo", "Rome")
    path, decoded = write(tmp_path / f"table.{ending}", columns), []
    read_file = readers.read_file
    monkeypatch.setattr(readers, "read_file", lambda *args: decoded.append(1) or read_file(*args))
    tallmc.ingest(path, tmp_path / "rows")
    assert len(decoded) == 1
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**10))
    tallmc.ingest(path, tmp_path / "short")
    assert len(decoded) == 3
    assert content_of(tmp_path / "rows") == content_of(tmp_path / "short")
    assert sorted(os.listdir(tmp_path)) == ["rows", "short", path.name]


QUOTED = [
    'a,"one\ntwo",1',
    '"x, ""y""\n\n",plain,2',
    'inch 5",text,3',
    '"","5"" and\nmore",4',
]


@pytest.mark.parametrize("block", [2**6, 2**7 + 1, 2**23])
def test_newlines_in_quotes_are_text(tmp_path, block, monkeypatch):
    """Blocks end inside quotes, between two quotes, and after a quote that opens no field."""
    monkeypatch.setattr(readers, "_CSV_BLOCK", block)
    path = tmp_path / "table.csv"
    lines = [QUOTED[k % len(QUOTED)] for k in range(60)]
    path.write_text("first,second,n\n" + "\n".join(lines) + "\n")
    manifest = tallmc.ingest(path, tmp_path / "rows", response="n", standardise=False)
    known = {category.name: set(category.levels) for category in manifest.categories}
    assert known["first"] == {"a", 'x, "y"\n\n', 'inch 5"', ""}
    assert known["second"] == {"one\ntwo", "plain", "text", '5" and\nmore'}
    rows = rows_of(tmp_path / "rows")
    np.testing.assert_array_equal(rows[:, -1], np.arange(60) % 4 + 1)
    place = manifest.names.index("second")
    code = manifest.covariates["second"].levels.index("text")
    np.testing.assert_array_equal(rows[:, place] == code, np.arange(60) % 4 == 2)


def test_a_quote_that_is_not_closed_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_CSV_BLOCK", 2**10)
    monkeypatch.setattr(readers, "_LONGEST_RECORD", 2**12)
    path = tmp_path / "table.csv"
    path.write_text("a,y\n" + "1,0\n" * 10 + '"2,1\n' + "3,1\n" * 5000)
    with pytest.raises(tallmc.InvalidInput, match="a quote in row 11 or below is not closed"):
        tallmc.ingest(path, tmp_path / "rows", response="y")


def test_a_manifest_of_the_former_version_is_read(tmp_path):
    tallmc.ingest(SMALL, tmp_path / "rows")
    path = tmp_path / "rows" / "manifest.json"
    content = json.loads(path.read_text())
    for shard in content["shards"]:
        del shard["checksum"]
        shard["sha256"] = hashlib.sha256(
            (tmp_path / "rows" / shard["name"]).read_bytes()
        ).hexdigest()
    path.write_text(json.dumps({**content, "version": 1}))
    rows_of(tmp_path / "rows")  # checks the checksums
    with (tmp_path / "rows" / "000000.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert NpyShards(str(tmp_path / "rows")).damaged() == ["000000.npy"]


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("append", [False, True])
def test_a_full_disk_loses_nothing(tmp_path, append):
    """The same call goes on, to the same bytes, when there is room."""
    columns = [{f"x{j}": np.arange(n) % (7 + j) for j in range(WIDE)} for n in (3000, 30_000)]
    paths = [write(tmp_path / f"{k}.csv", table) for k, table in enumerate(columns)]
    tallmc.ingest(paths[0] if append else paths[1], tmp_path / "whole")
    if append:
        tallmc.ingest(paths[1], tmp_path / "whole", append=True)
    with small_disk(tmp_path / "disk", "4m") as disk:
        if append:
            tallmc.ingest(paths[0], disk / "rows")
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2_700_000))
        with pytest.raises(OSError, match="No space left"):
            tallmc.ingest(paths[1], disk / "rows", append=append)
        if append:
            assert RowManifest.read(disk / "rows").n_rows == 3000
            assert len(rows_of(disk / "rows")) == 3000
        ballast.unlink()
        tallmc.ingest(paths[1], disk / "rows", append=append)
        assert content_of(disk / "rows") == content_of(tmp_path / "whole")
