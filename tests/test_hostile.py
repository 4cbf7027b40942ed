"""A store from a stranger: refused with an error, whatever it holds, and nothing outside it is read, written or run."""

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
from problems import linear
from tallmc.report import write_report
from tallmc.store import StoreError, arrays, files
from tallmc.store.files import Written, write_file
from tallmc.store.manifest import read_manifest, write_manifest
from tallmc.store.reader import open_store

SOURCE = Path(tallmc.__file__).parent


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self):
        return (open, ("exploded", "w"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    store = tmp_path_factory.mktemp("honest") / "run"
    tallmc.sample(linear(), tallmc.sgld_cv_ps(0.01, size=3), chains=2, draws=50, store=store)
    return store


@pytest.fixture
def store(honest, tmp_path, monkeypatch):
    """A copy to be made hostile, beside a secret, in a folder where any side effect would show."""
    shutil.copytree(honest, tmp_path / "run")
    (tmp_path / "secret.npz").write_bytes((honest / "setup.npz").read_bytes())
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "run"
    assert not (tmp_path / "exploded").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "secret.npz"}


def sums(content: bytes) -> Written:
    return Written(len(content), hashlib.sha256(content).hexdigest())


def plant(store, name, content):
    """Put these bytes in the place of a file, and make the manifest vouch for them."""
    (store / name).write_bytes(content)
    manifest, _ = read_manifest(store)
    blocks = list(manifest.blocks)
    if name == blocks[-1].draws_name:
        blocks[-1] = blocks[-1]._replace(draws=sums(content))
    elif name == blocks[-1].state_name:
        blocks[-1] = blocks[-1]._replace(state=sums(content))
    setup = {**manifest.setup, **({name: sums(content)} if name in manifest.setup else {})}
    write_manifest(store, dataclasses.replace(manifest, blocks=tuple(blocks), setup=setup))


def check_refused(store):
    for use in (tallmc.load, lambda path: tallmc.resume(path, linear()), lambda path: write_report(path, store / "page.html")):
        with pytest.raises(StoreError):
            use(store)
    assert not (store / "page.html").exists()


def last_draws(store):
    return open_store(store).blocks[-1].draws_name


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
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


NAMES = npy(np.frombuffer(b"positions", np.uint8))
PROGRAM = b"\x93NUMPY\x01\x00\x46\x00" + b"__import__('os').system('touch exploded')".ljust(70)
HOSTILE = {
    "object arrays": npz({"names.npy": NAMES, "0.npy": npy(np.array([Bomb()], object), pickled=True)}),
    "records with objects": npz({"names.npy": NAMES, "0.npy": header((1,), [("a", "|O")])}),
    "an absurd shape": npz({"names.npy": NAMES, "0.npy": header((2**40, 2**20, 3))}),
    "a negative shape": npz({"names.npy": NAMES, "0.npy": header((-5, 2, 3))}),
    "a shape that overflows": npz({"names.npy": NAMES, "0.npy": header((2**32, 2**32, 1)) + bytes(64)}),
    "a zip bomb": npz({"names.npy": NAMES, "0.npy": header((1000, 1000, 10)) + bytes(80_000_000)}, zipfile.ZIP_DEFLATED),
    "paths in an archive": npz({"names.npy": NAMES, "../../exploded": b"boo"}),
    "names that are no text": npz({"names.npy": npy(np.array([255, 254], np.uint8)), "0.npy": npy(np.zeros((2, 50, 2)))}),
    "a header that is a program": npz({"names.npy": NAMES, "0.npy": PROGRAM}),
    "text for draws": npz({"names.npy": NAMES, "0.npy": npy(np.array(["a", "b"]))}),
    "no archive": b"not a zip at all",
    "nothing": b"",
    "draws of another shape": npz({"names.npy": NAMES, "0.npy": npy(np.zeros((2, 7, 2)))}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_arrays_are_refused(what, store):
    plant(store, last_draws(store), HOSTILE[what])
    check_refused(store)


@pytest.mark.parametrize("what", ["object arrays", "a zip bomb", "an absurd shape", "no archive"])
def test_a_hostile_setup_and_a_hostile_state_are_refused(what, store):
    for name in (open_store(store).blocks[-1].state_name, "setup.npz"):
        plant(store, name, HOSTILE[what])
        check_refused(store)


def test_a_zip_bomb_is_not_unpacked(store, monkeypatch):
    name = last_draws(store)
    plant(store, name, HOSTILE["a zip bomb"])
    monkeypatch.setattr(arrays, "_read_array", lambda *_: pytest.fail("an entry was read"))
    with pytest.raises(StoreError, match="not compressed"):
        arrays.read_arrays(store, name)


OUTSIDE = ["../secret.npz", "/etc/passwd", "blocks/../../secret.npz", "a\\..\\b", "", ".", "..", "x\0y", "a//b", 7]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out_of_the_store_are_refused(name, store):
    with pytest.raises(StoreError, match="name files inside itself"), files.open_inside(store, name):
        pytest.fail("opened")


def test_a_manifest_that_names_files_elsewhere_is_refused(store):
    manifest, _ = read_manifest(store)
    secret = sums((store.parent / "secret.npz").read_bytes())
    write_manifest(store, dataclasses.replace(manifest, setup={**manifest.setup, "../secret.npz": secret}))
    check_refused(store)


@pytest.mark.parametrize("link", ["file", "folder", "manifest"])
def test_links_out_of_the_store_are_refused(link, store):
    name = last_draws(store)
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
    name = last_draws(store)
    (store / name).unlink()
    os.mkfifo(store / name)
    with pytest.raises(StoreError):
        tallmc.load(store)


def test_links_in_an_export_are_not_followed_when_it_is_replaced(store, tmp_path):
    target = tmp_path / "run" / "precious"
    target.mkdir()
    (target / "file").write_text("precious")
    shutil.rmtree(store / "draws.zarr")
    (store / "draws.zarr").symlink_to(target)
    tallmc.resume(store, linear(), draws=60)
    assert (target / "file").read_text() == "precious"


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
    "a list for a dict": {"labels": [], "parameters": []},
    "no environment": {"environment": None},
    "text for numbers": {"n_row_evals": "many", "seconds": "long"},
}


@pytest.mark.parametrize("what", HOSTILE_SETUPS)
def test_hostile_setups_are_refused(what, store):
    content = json.loads((store / "setup.json").read_text()) | HOSTILE_SETUPS[what]
    for name in ("setup.json", "setup-copy.json"):
        plant(store, name, json.dumps(content).encode())
    with pytest.raises((StoreError, tallmc.InvalidInput)):
        tallmc.resume(store, linear(), draws=60)


def test_names_and_metadata_are_escaped_in_the_page(tmp_path):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>&lt;'
    labels = {"beta": [evil, "</script><script>alert(3)</script>"]}
    store = tallmc.store.Folder(tmp_path / "<i>run", labels=labels, about={evil: evil})
    tallmc.sample(linear(), tallmc.sgld_cv_ps(0.01, size=3), chains=2, draws=60, store=store)
    write_report(tmp_path / "<i>run", tmp_path / "page.html", posterior=linear())
    page = (tmp_path / "page.html").read_text()
    assert "alert(1)" in page  # it is shown, as text
    assert len(re.findall(r"<script\b", page)) == 2  # the data and ours
    assert not re.search(r"<(img|i|a|link|iframe)\b", page)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:|//)", page)
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", page)


MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load"}


def banned_in(source: str) -> list[str]:
    """What of a program can run, or unpickle, what it has read."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.partition(".")[0] in MODULES]
        if isinstance(node, ast.Call):
            found += [name for name in [ast.unparse(node.func)] if name in CALLS]
            for keyword in node.keywords:
                safe = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                found += [keyword.arg] if keyword.arg in ("allow_pickle", "shell") and not safe else []
    return found


def test_nothing_that_runs_what_it_reads_is_in_the_source():
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 100
    assert not {path.name: found for path in paths if (found := banned_in(path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from pickle import loads", "eval('1')", "exec(code)", "yaml.load(f)", "np.load(f, allow_pickle=True)"],
)
def test_the_ban_finds_what_it_bans(line):
    assert banned_in(line)


def test_a_file_that_could_not_be_written_leaves_nothing(tmp_path):
    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "kept").write_bytes(b"before")
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path, "kept", fail)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept": b"before"}
