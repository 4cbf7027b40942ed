"""Hostile stores are refused with an error; nothing outside a store is read, written or run."""

import ast
import dataclasses
import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tallmc
from problems import labelled, linear
from tallmc._core.files import FileDigest, replaced
from tallmc._store import StoreError, files
from tallmc._store import files as arrays
from tallmc._store.chunks import Kind, Series
from tallmc._store.manifest import read_manifest, write_manifest
from tallmc._store.reader import open_store
from tallmc.report import write_report

SOURCE = Path(tallmc.__file__).parent
DRAWS = "draws.zarr/posterior/beta/c.0.0.0"


class Bomb:
    """Unpickling this object creates a file."""

    def __reduce__(self):
        return (open, ("exploded", "w"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    store = tmp_path_factory.mktemp("honest") / "run"
    tallmc.sample(
        linear(), tallmc.methods.sgld_cv_ps(0.01, batch_size=3), chains=2, n_draws=50, store=store
    )
    return store


@pytest.fixture
def store(honest, tmp_path, monkeypatch):
    """A copy for a test to make hostile, next to a secret file.

    After the test, the fixture checks that the folder holds no new files.
    """
    shutil.copytree(honest, tmp_path / "run")
    (tmp_path / "secret.npz").write_bytes((honest / "setup.npz").read_bytes())
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "run"
    assert not (tmp_path / "exploded").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "secret.npz"}


def sums(content: bytes) -> FileDigest:
    return FileDigest(len(content), hashlib.sha256(content).hexdigest())


def plant(store, name, content):
    """Replace a file by these bytes and update its digest in the manifest."""
    (store / name).write_bytes(content)
    manifest, _ = read_manifest(store)
    blocks = list(manifest.blocks)
    if name == blocks[-1].state_name:
        blocks[-1] = blocks[-1]._replace(state=sums(content))
    setup = {**manifest.setup, **({name: sums(content)} if name in manifest.setup else {})}
    write_manifest(store, dataclasses.replace(manifest, blocks=tuple(blocks), setup=setup))


def check_refused(store):
    for use in (
        tallmc.load,
        lambda path: tallmc.resume(path, linear()),
        lambda path: write_report(path, store / "page.html"),
    ):
        with pytest.raises(StoreError):
            use(store)
    assert not (store / "page.html").exists()


def last_state(store):
    return open_store(store).manifest.blocks[-1].state_name


def npz(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array, pickled=False):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def header(shape, dtype="<f8"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


NAMES = npy(np.frombuffer(b"positions", np.uint8))
PROGRAM = b"\x93NUMPY\x01\x00\x46\x00" + b"__import__('os').system('touch exploded')".ljust(70)
HOSTILE = {
    "object arrays": npz(
        {"names.npy": NAMES, "0.npy": npy(np.array([Bomb()], object), pickled=True)}
    ),
    "records with objects": npz({"names.npy": NAMES, "0.npy": header((1,), [("a", "|O")])}),
    "an absurd shape": npz({"names.npy": NAMES, "0.npy": header((2**40, 2**20, 3))}),
    "a negative shape": npz({"names.npy": NAMES, "0.npy": header((-5, 2, 3))}),
    "a shape that overflows": npz(
        {"names.npy": NAMES, "0.npy": header((2**32, 2**32, 1)) + bytes(64)}
    ),
    "a zip bomb": npz(
        {"names.npy": NAMES, "0.npy": header((1000, 1000, 10)) + bytes(80_000_000)},
        zipfile.ZIP_DEFLATED,
    ),
    "paths in an archive": npz({"names.npy": NAMES, "../../exploded": b"boo"}),
    "names that are no text": npz(
        {"names.npy": npy(np.array([255, 254], np.uint8)), "0.npy": npy(np.zeros((2, 50, 2)))}
    ),
    "a header that is a program": npz({"names.npy": NAMES, "0.npy": PROGRAM}),
    "text for draws": npz({"names.npy": NAMES, "0.npy": npy(np.array(["a", "b"]))}),
    "no archive": b"not a zip at all",
    "nothing": b"",
    "draws of another shape": npz({"names.npy": NAMES, "0.npy": npy(np.zeros((2, 7, 2)))}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_arrays_are_refused(what, store):
    plant(store, last_state(store), HOSTILE[what])
    check_refused(store)


@pytest.mark.parametrize("what", ["object arrays", "a zip bomb", "an absurd shape", "no archive"])
def test_a_hostile_setup_is_refused(what, store):
    plant(store, "setup.npz", HOSTILE[what])
    check_refused(store)


BETA, STEP = "posterior/beta", "sample_stats/step_size"
HOSTILE_SERIES = {
    "objects": [2, 64, {BETA: ["object", [2]]}],
    "records": [2, 64, {BETA: [[["a", "|O"]], [2]]}],
    "text": [2, 64, {BETA: ["<U8", [2]]}],
    "whole numbers for positions": [2, 64, {BETA: ["int64", [2]]}],
    "a negative shape": [2, 64, {BETA: ["float64", [-2]]}],
    "no chains": [0, 64, {BETA: ["float64", [2]]}],
    "chunks without length": [2, 0, {BETA: ["float64", [2]]}],
    "a name that leads out": [2, 64, {"posterior/../../secret": ["float64", [2]]}],
    "a name of nothing": [2, 64, {"secret": ["float64", [2]]}],
    "a list": [1, 2, 3],
    "a number": 7,
}


@pytest.mark.parametrize("what", HOSTILE_SERIES)
def test_arrays_that_are_none_of_a_run_are_refused(what, store):
    manifest, _ = read_manifest(store)
    for _ in range(2):  # replaces the previous manifest too
        write_manifest(store, dataclasses.replace(manifest, series=HOSTILE_SERIES[what]))
    check_refused(store)


@pytest.mark.parametrize(
    ("series", "draws"),
    [
        (Series(2, 64, {BETA: Kind("float64", (2**40, 2**20))}), 50),  # more than is stored
        (Series(2**62, 1, {BETA: Kind("float64", (2**62,))}), 50),
        # Draws without entries.
        (Series(2, 1, {BETA: Kind("float64", (0,)), STEP: Kind("bool", (0,))}), 2**60),
        (Series(2, 1, {BETA: Kind("float64", (2,))}), 2**60),
    ],
)
def test_draws_that_are_not_there_are_not_read(series, draws, store):
    manifest, _ = read_manifest(store)
    empty = hashlib.sha256(b"").hexdigest()
    block = manifest.blocks[0]._replace(
        n_draws=draws, draws=FileDigest(draws * series.bytes, empty)
    )
    write_manifest(store, dataclasses.replace(manifest, series=series, blocks=(block,)))
    with pytest.raises(StoreError, match="have at least one draw"):
        tallmc.load(store)


def test_draws_of_another_shape_are_refused(store):
    manifest, _ = read_manifest(store)
    arrays = manifest.series.arrays | {BETA: Kind("float32", (4,))}
    write_manifest(
        store, dataclasses.replace(manifest, series=manifest.series._replace(arrays=arrays))
    )
    with pytest.raises(StoreError, match="name the parameters of its draws"):
        tallmc.load(store)
    with pytest.raises(StoreError, match="have the arrays of its run"):
        tallmc.resume(store, linear(), n_draws=60)


def test_a_zip_bomb_is_not_unpacked(store, monkeypatch):
    name = last_state(store)
    plant(store, name, HOSTILE["a zip bomb"])
    monkeypatch.setattr(arrays, "_read_array", lambda *_: pytest.fail("an entry was read"))
    with pytest.raises(StoreError, match="not compressed"):
        arrays.read_arrays(store, name)


OUTSIDE = [
    "../secret.npz",
    "/etc/passwd",
    "blocks/../../secret.npz",
    "a\\..\\b",
    "",
    ".",
    "..",
    "x\0y",
    "a//b",
    7,
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out_of_the_store_are_refused(name, store):
    with (
        pytest.raises(StoreError, match="name files inside itself"),
        files.open_inside(store, name),
    ):
        pytest.fail("opened")


def test_a_manifest_that_names_files_elsewhere_is_refused(store):
    manifest, _ = read_manifest(store)
    secret = sums((store.parent / "secret.npz").read_bytes())
    write_manifest(
        store, dataclasses.replace(manifest, setup={**manifest.setup, "../secret.npz": secret})
    )
    check_refused(store)


@pytest.mark.parametrize("link", ["file", "folder", "manifest"])
def test_links_out_of_the_store_are_refused(link, store):
    name = DRAWS
    if link == "file":
        shutil.move(store / name, store.parent / "run" / "elsewhere")
        (store / name).symlink_to(store / "elsewhere")
    elif link == "folder":
        shutil.move(store / "blocks", store / "elsewhere")
        (store / "blocks").symlink_to(store / "elsewhere")
    else:
        for manifest in ("manifest.json", "manifest.previous.json"):
            shutil.move(store / manifest, store / f"elsewhere-{manifest}")
            (store / manifest).symlink_to(store / f"elsewhere-{manifest}")
    check_refused(store)


def test_a_pipe_in_place_of_a_file_does_not_hang(store):
    (store / DRAWS).unlink()
    os.mkfifo(store / DRAWS)
    with pytest.raises(StoreError):
        tallmc.load(store)


@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize("folder", ["draws.zarr", "draws.zarr/posterior", "sampled.zarr", "blocks"])
def test_links_in_place_of_folders_are_not_followed(folder, blocks, store, tmp_path):
    manifest, _ = read_manifest(store)
    write_manifest(store, dataclasses.replace(manifest, blocks=manifest.blocks[:blocks]))
    target = tmp_path / "run" / "precious"
    target.mkdir()
    (target / "file").write_text("precious")
    shutil.rmtree(store / folder, ignore_errors=True)
    (store / folder).symlink_to(target)
    with pytest.raises(StoreError, match="not links"):
        tallmc.resume(store, linear(), n_draws=60)
    assert [(file.name, file.read_text()) for file in target.iterdir()] == [("file", "precious")]


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"[]",
        b"{}",
        b'{"format": "tallmc-run", "version": 1}',
        b'{"format": "tallmc-run", "version": 99}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"format": "tallmc-run", "version": 1, "sha256": "", "blocks": 1e999}',
    ],
)
def test_manifests_that_are_none_are_refused(content, store):
    for name in ("manifest.json", "manifest.previous.json"):
        (store / name).write_bytes(content)
    check_refused(store)


HOSTILE_SETUPS = {
    "another class": {"method": {"part": "os.system", "fields": {"command": "touch exploded"}}},
    "a part of Python": {"method": {"part": "__import__", "fields": {}}},
    "fields that are none": {"method": {"part": "Method", "fields": {"nonsense": 1}}},
    "no method at all": {"method": [1, 2, 3]},
    "parameters of another number": {"parameters": {"beta": [3]}},
    "a list for a dict": {"quantities": [], "parameters": []},
    "no environment": {"environment": None},
    "text for numbers": {"n_row_evals": "many", "seconds": "long"},
}


@pytest.mark.parametrize("what", HOSTILE_SETUPS)
def test_hostile_setups_are_refused(what, store):
    content = json.loads((store / "setup.json").read_text()) | HOSTILE_SETUPS[what]
    for name in ("setup.json", "setup-copy.json"):
        plant(store, name, json.dumps(content).encode())
    with pytest.raises((StoreError, tallmc.InvalidInput)):
        tallmc.resume(store, linear(), n_draws=60)


@pytest.mark.slow
def test_names_and_metadata_are_escaped_in_the_page(tmp_path):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>&lt;'
    labels = {"beta": [evil, "</script><script>alert(3)</script>"]}
    store = tallmc._store.Folder(tmp_path / "<i>run", about={evil: evil})
    posterior = labelled(linear(), labels)
    tallmc.sample(
        posterior, tallmc.methods.sgld_cv_ps(0.01, batch_size=3), chains=2, n_draws=60, store=store
    )
    write_report(tmp_path / "<i>run", tmp_path / "page.html", posterior=linear())
    page = (tmp_path / "page.html").read_text()
    assert "alert(1)" in page  # shown as text
    assert len(re.findall(r"<script\b", page)) == 2  # the data and the page's own script
    assert not re.search(r"<(img|i|a|link|iframe)\b", page)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:|//)", page)
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", page)


MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load"}


def banned_in(source: str) -> list[str]:
    """Names in a program that can execute or unpickle data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.partition(".")[0] in MODULES]
        if isinstance(node, ast.Call):
            found += [name for name in [ast.unparse(node.func)] if name in CALLS]
            for keyword in node.keywords:
                safe = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                found += (
                    [keyword.arg] if keyword.arg in ("allow_pickle", "shell") and not safe else []
                )
    return found


def test_nothing_that_runs_what_it_reads_is_in_the_source():
    """There are two exceptions.

    Messages between a run and its own workers are in no file. Compiled programs are read only if
    nobody else can have written them (`test_cache.py`).
    """
    exceptions = ("pickled.py", "programs.py")
    paths = sorted(path for path in SOURCE.rglob("*.py") if path.name not in exceptions)
    assert len(paths) > 100
    assert not {
        path.name: found for path in paths if (found := banned_in(path.read_text(encoding="utf-8")))
    }


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "exec(code)",
        "yaml.load(f)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_the_ban_finds_what_it_bans(line):
    assert banned_in(line)


def test_a_file_that_could_not_be_written_leaves_nothing(tmp_path):
    def fail():
        with replaced(tmp_path, "kept") as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    (tmp_path / "kept").write_bytes(b"before")
    with pytest.raises(OSError, match="No space"):
        fail()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept": b"before"}
