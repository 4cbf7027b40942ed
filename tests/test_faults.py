"""If the process or the disk fails, no complete block is lost, and resuming a run is exact."""

import contextlib
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import tallmc
from problems import linear
from tallmc._engine.run import CallLength
from tallmc._store import StoreError, chunks, writer
from tallmc._store.reader import open_store

DRAWS = 6000
METHOD = tallmc.methods.sgld_cv_ps(0.01, batch_size=3)
SETTINGS = {"chains": 3, "n_draws": DRAWS, "burn_in": 40, "seed": 5}

CHILD = textwrap.dedent("""
    import os, signal, sys, warnings
    import jax
    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, sys.argv[2])
    import tallmc
    from problems import linear
    from tallmc._engine.run import CallLength
    from tallmc._store import chunks, writer
    from test_faults import METHOD, SETTINGS, has_run

    writer._SECONDS_PER_BLOCK = writer._SHARE_PER_BLOCK = 0.0  # every call of the loop is a block
    CallLength.next = lambda length, first: 60
    chunks._CHUNK_BYTES = 2**15
    warnings.simplefilter("ignore")

    def callback(progress):
        print(progress.draws, flush=True)

    posterior, store = linear(), sys.argv[1]
    if has_run(store):
        tallmc.resume(store, posterior, callback=callback)
    else:
        tallmc.sample(posterior, METHOD, store=store, callback=callback, **SETTINGS)
""")


def short_blocks(patch):
    """Write a block after every call of the loop, so that a short run has many blocks."""
    patch.setattr(writer, "_SECONDS_PER_BLOCK", 0.0)
    patch.setattr(writer, "_SHARE_PER_BLOCK", 0.0)
    patch.setattr(CallLength, "next", lambda length, first: 60)
    patch.setattr(chunks, "_CHUNK_BYTES", 2**15)


@pytest.fixture(scope="module")
def whole():
    return tallmc.sample(linear(), METHOD, **SETTINGS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Compilation cache of the child processes, so that they start quickly."""
    return str(tmp_path_factory.mktemp("compiled"))


def start_child(store, cache):
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(tallmc.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
    }
    arguments = [sys.executable, "-c", CHILD, str(store), str(Path(__file__).parent)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment, text=True)


def has_run(store):
    return any(Path(store).glob("manifest*.json"))


def check_intact(store, whole, reported):
    """Check that the store is readable and return the number of its draws.

    The draws equal those of the uninterrupted run, and at most one reported block is missing.
    """
    opened = open_store(store)
    assert opened.lost == 0
    n = opened.manifest.n_draws
    if n:
        np.testing.assert_array_equal(tallmc.load(store).positions, whole.positions[:, :n])
    if len(reported) > 1:
        assert n >= reported[-2]
    return n


@pytest.mark.parametrize("kills", [1, pytest.param(60, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_is_bitwise_the_run_that_was_not(
    kills, tmp_path, whole, cache
):
    chance, run, left = random.Random(0), 0, kills
    while left:
        store, run = tmp_path / f"run{run}", run + 1
        finished = False
        while left and not finished:
            child = start_child(store, cache)
            reported = []
            if kills > 1 and chance.random() < 0.2:
                # The child is in its imports, its preparation, or its first blocks.
                time.sleep(chance.uniform(0.0, 3.0))
            elif kills > 1:
                reported.append(int(child.stdout.readline() or 0))
                time.sleep(chance.uniform(0.0, 0.5))
            else:  # there are blocks, and others are to come
                reported += itertools.takewhile(lambda n: n < 600, map(int, child.stdout))
            child.send_signal(signal.SIGKILL)
            rest, _ = child.communicate()
            reported += [int(line) for line in rest.split("\n")[:-1]]
            finished, left = child.returncode == 0, left - 1
            if has_run(store):
                check_intact(store, whole, reported)
        assert kills > 1 or (has_run(store) and not finished)
        if has_run(store):
            again = tallmc.resume(store, linear())
            np.testing.assert_array_equal(again.positions, whole.positions)
            for name, values in whole.sample_stats.items():
                np.testing.assert_array_equal(again.sample_stats[name], values)
            assert not list(store.rglob("*.tmp"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """An interrupted run of about 20 blocks."""
    store = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short_blocks(patch)

        def stop(progress):
            if progress.draws > 1000:
                raise KeyboardInterrupt

        tallmc.sample(linear(), METHOD, store=store, callback=stop, **SETTINGS)
    return store


def damage(file, how, chance):
    """Damage a file; return the offset of the first byte that may have changed."""
    content = bytearray(file.read_bytes())
    at = chance.randrange(len(content))
    match how:
        case "flipped":
            content[at] ^= 1 << chance.randrange(8)
            file.write_bytes(content)
        case "truncated":
            file.write_bytes(content[:at])
        case "missing":
            file.unlink()
            at = 0
    return at


def blocks_before(manifest, name, at):
    """The number of blocks that end before byte `at` of a chunk."""
    array, chunk = name.removeprefix("draws.zarr/").rsplit("/", 1)
    draw = int(chunk.split(".")[2]) * manifest.series.chunk + at // (
        3 * manifest.series.arrays[array].bytes
    )
    ends = np.cumsum([block.n_draws for block in manifest.blocks])
    return int(np.searchsorted(ends, draw, side="right"))


CASES = [("flipped", 17), ("truncated", 9), ("missing", 8)]
MANY = [pytest.param(how, 100, marks=pytest.mark.slow) for how, _ in CASES]


@pytest.mark.parametrize(("how", "cases"), [*CASES, *MANY])
def test_damage_is_always_found_and_the_run_falls_back_to_the_block_before(
    how, cases, stopped, whole, tmp_path
):
    chance = random.Random(f"{how}{cases}")
    names = sorted(
        str(file.relative_to(stopped))
        for file in stopped.rglob("*")
        if file.is_file() and file.stat().st_size
    )
    complete = open_store(stopped).manifest
    assert len(complete.blocks) > 10 and complete.n_draws > 2 * complete.series.chunk
    chance.shuffle(names)
    for case in range(cases):
        copy = tmp_path / f"{case}"
        shutil.copytree(stopped, copy)
        name = names[case % len(names)] if case < len(names) else chance.choice(names)
        at = damage(copy / name, how, chance)
        opened = open_store(copy)
        last = len(complete.blocks) - 1
        is_draws = name.startswith("draws.zarr/")
        optional = name == "manifest.previous.json" and how == "missing"
        if not is_draws and not optional:
            assert name in opened.damaged
        if is_draws:
            good = blocks_before(complete, name, at)
            assert opened.damaged[0] == complete.blocks[good].draws_name
            assert opened.manifest.blocks == complete.blocks[:good]
        elif name.startswith("blocks/state"):  # the last block's is needed to resume
            assert len(opened.manifest.blocks) == (
                last if name == complete.blocks[-1].state_name else last + 1
            )
        else:  # the setup has a copy; the previous manifest is one block behind
            assert len(opened.manifest.blocks) >= last
        assert opened.lost == 0 or is_draws or name.startswith("blocks/")
        if opened.manifest.n_draws:
            found = tallmc.load(copy).positions
            np.testing.assert_array_equal(found, whole.positions[:, : found.shape[1]])
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    "name",
    ["draws.zarr/posterior/beta/c.0.1.0", "blocks/state-*.npz", "manifest.json", "setup.npz"],
)
def test_a_damaged_run_is_resumed_bitwise(name, stopped, whole, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(stopped, copy)
    # On a busy machine blocks are short, and then only the last states are kept.
    name = str(min(copy.glob(name)).relative_to(copy))
    damage(copy / name, "flipped", random.Random(1))
    said = "draws of block" if name.startswith("draws.zarr") else name
    with pytest.warns(tallmc.SamplingWarning, match=f"{said}.* damaged"):
        again = tallmc.resume(copy, linear())
    np.testing.assert_array_equal(again.positions, whole.positions)
    assert open_store(copy).manifest.finished


def test_a_store_without_any_intact_manifest_or_setup_is_refused(stopped, tmp_path):
    for names in (
        ["manifest.json", "manifest.previous.json"],
        ["setup.npz", "setup-copy.npz"],
        ["setup.json", "setup-copy.json"],
    ):
        copy = tmp_path / names[0]
        shutil.copytree(stopped, copy)
        for name in names:
            damage(copy / name, "truncated", random.Random(2))
        with pytest.raises(StoreError, match="intact"):
            tallmc.resume(copy, linear())


@contextlib.contextmanager
def small_disk(folder, size="3m"):
    """Mount a file system of the given size; skip the test if that is not possible."""
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        ).returncode
    ):
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def check_full_disk(store, posterior, whole, make_room):
    with pytest.warns(
        tallmc.SamplingWarning, match=r"the run stopped. The draws so far are returned"
    ):
        part = tallmc.sample(posterior, METHOD, store=store, **SETTINGS)
    n = part.positions.shape[1]
    np.testing.assert_array_equal(part.positions, whole.positions[:, :n])
    assert "store" in part.stopped_by
    stored = open_store(store)
    assert stored.lost == 0
    assert 0 < stored.manifest.n_draws <= n < DRAWS
    np.testing.assert_array_equal(
        tallmc.load(store).positions, whole.positions[:, : stored.manifest.n_draws]
    )
    make_room()
    np.testing.assert_array_equal(tallmc.resume(store, posterior).positions, whole.positions)


def test_a_full_disk_leaves_the_blocks_before_and_returns_the_draws(tmp_path, whole, monkeypatch):
    short_blocks(monkeypatch)
    with small_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(2_500_000))
        check_full_disk(disk / "run", linear(), whole, ballast.unlink)


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_met_like_a_full_disk(tmp_path, whole, monkeypatch):
    """This test needs no mount. The manifest grows and is the first file to exceed the limit."""
    short_blocks(monkeypatch)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would keep cut files of modules
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, before[1]))
    try:
        check_full_disk(
            tmp_path / "run",
            linear(),
            whole,
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_read_only_folder_is_refused_before_anything_is_computed(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(
            StoreError, match="be a folder that can be written; got Read-only file system"
        ):
            tallmc.sample(linear(), METHOD, store=disk / "run", **SETTINGS)


def test_a_run_that_ended_in_a_read_only_folder_can_be_read(tmp_path, stopped, whole):
    with small_disk(tmp_path / "disk", "20m") as disk:
        shutil.copytree(stopped, disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        found = tallmc.load(disk / "run").positions
        np.testing.assert_array_equal(found, whole.positions[:, : found.shape[1]])
        with pytest.raises(StoreError, match="be a folder that can be written"):
            tallmc.resume(disk / "run", linear())


def test_a_disk_that_is_full_from_the_start_is_refused(tmp_path):
    with small_disk(tmp_path / "disk", "100k") as disk:
        (disk / "ballast").write_bytes(bytes(90_000))
        with pytest.raises(
            StoreError, match="be a folder that can be written; got No space left on device"
        ):
            tallmc.sample(linear(), METHOD, store=disk / "run", **SETTINGS)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_is_heard_between_blocks_and_a_second_one_at_once(tmp_path, whole, monkeypatch):
    short_blocks(monkeypatch)

    def interrupt(progress):
        if progress.draws > 500:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(tallmc.SamplingWarning, match="interrupted after"):
        part = tallmc.sample(
            linear(), METHOD, store=tmp_path / "run", callback=interrupt, **SETTINGS
        )
    n = part.positions.shape[1]
    assert 500 < n < DRAWS
    assert open_store(tmp_path / "run").manifest.n_draws == n  # no draw is lost
    np.testing.assert_array_equal(part.positions, whole.positions[:, :n])

    def insist(progress):
        if progress.is_preparing:
            return
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(tallmc.SamplingWarning, match="interrupted after"):
        tallmc.resume(tmp_path / "run", linear(), callback=insist)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
