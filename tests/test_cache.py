"""Compiled programs are read by other processes, and no state of the folder breaks a run.

Other tests use a cache of their own (`conftest.py`).
"""

import atexit
import json
import os
import pickle
import shutil
import subprocess
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import tallmc
from tallmc._core import programs as cache_module
from tallmc._core.errors import InvalidInput
from test_cli import call

_COUNT = """
import collections, json, warnings, jax, numpy as np, tallmc
warnings.simplefilter("ignore", tallmc.SamplingWarning)
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rsplit("/")[-1]]))
"""
_SMALL_PROGRAMS = """
x = np.random.default_rng(0).normal(size=5).astype(np.float32)
draws = [jax.jit(lambda x, k=k: jax.numpy.sin(k * x))(x).tolist() for k in range(6)]
"""
_SAMPLE = """
x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
posterior = tallmc.models.logistic_regression(x, x[:, 0] > 0, prior_variance=1.0)
method = tallmc.methods.sgld(1e-3, batch_size=8)
draws = tallmc.sample(posterior, method, n_draws=50, seed=1, progress=False).positions.tolist()
"""
_OWN_LIKELIHOOD = """
def log_likelihood(mean, x):
    return -((x - mean) ** 2) / {}
x = np.random.default_rng(0).normal(size=500).astype(np.float32)
posterior = tallmc.Posterior(
    log_likelihood, lambda mean: -(mean**2) / 2, data=x, init=np.zeros((), np.float32)
)
method = tallmc.methods.sgld(1e-3, batch_size=8)
draws = tallmc.sample(posterior, method, n_draws=50, seed=1, progress=False).positions.tolist()
"""
_REPORT = """
programs, read = seen["compile_requests_use_cache"], seen["cache_hits"]
print(json.dumps({"programs": programs, "read": read, "draws": draws}))
"""
_NO_ROOM = """
import resource, sys
sys.dont_write_bytecode = True  # Python would keep cut files of modules
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
"""


def run(program, **environment):
    """The output of a process that has no cache options but these."""
    names = (
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "TALLMC_CACHE",
    )
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def report_of(program, folder, before="", variable="TALLMC_CACHE"):
    """What a process that uses the folder reports. It prints no warning."""
    ran = run(before + _COUNT + program + _REPORT, **{variable: str(folder)})
    assert ran.stderr == ""
    return json.loads(ran.stdout)


def entries(folder):
    return sorted(folder.glob("programs-*/*-cache"))


def own_entries(folder):
    """Those that `programs.py` has written."""
    return sorted(folder.glob("**/tallmc-*-cache"))


def codes(folder):
    """Those with machine code."""
    return sorted(folder.glob("**/tallmc-code-*-cache"))


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A folder that a process with a run has used, and what the process reported."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, report_of(_SAMPLE, folder)


@pytest.fixture
def jax_options(monkeypatch):
    """Options of JAX and warning filters as before the test, and no environment variable."""
    monkeypatch.delenv("TALLMC_CACHE", raising=False)
    monkeypatch.setattr(cache_module, "_in_use", None)
    names = ("jax_compilation_cache_dir", *cache_module._OPTIONS)
    before = {name: getattr(jax.config, name) for name in names}
    yield before
    atexit.unregister(cache_module._tidy)  # the folders of the test are gone then
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_by_default_a_second_process_loads_the_programs_of_the_library(tmp_path):
    """Damaged entries, and those that others could have written, are compiled again."""
    first = report_of(_SAMPLE, tmp_path, variable="XDG_CACHE_HOME")
    kept = own_entries(tmp_path)
    assert len(codes(tmp_path)) >= 3
    assert entries(tmp_path / "tallmc") == kept  # JAX's own cache is not in use
    damaged, foreign = codes(tmp_path)[:2]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    foreign.write_bytes(zlib.compress(b"not a program"))
    foreign.chmod(0o666)
    times = {path: path.stat().st_mtime_ns for path in kept}
    second = report_of(_SAMPLE, tmp_path, variable="XDG_CACHE_HOME")
    assert second["draws"] == first["draws"]
    assert second["programs"] == first["programs"] - len(codes(tmp_path)) + 2
    assert own_entries(tmp_path) == kept
    written_again = {path for path in kept if path.stat().st_mtime_ns != times[path]}
    assert len(written_again) == 4  # the codes, and the entries that name them
    assert {damaged, foreign} <= written_again
    assert damaged.stat().st_mode & 0o77 == foreign.stat().st_mode & 0o77 == 0


_LAPACK = """
import jax, numpy as np
from tallmc._core.programs import _KNOWN, quickly_compiled
_KNOWN["__main__"] = ""
factor = quickly_compiled(lambda scale, matrix: jax.numpy.linalg.cholesky(scale * matrix))
print(np.asarray(factor(2.0, np.diag([2.0, 4.5]))).tolist())
"""


def test_a_second_process_runs_loaded_programs_that_call_lapack(tmp_path):
    """JAX sets the functions of LAPACK when it lowers a call, which a loaded program never is."""
    options = {"TALLMC_CACHE": str(tmp_path), "JAX_ENABLE_X64": "1", "PYTHONWARNINGS": "ignore"}
    first, second = (run(_LAPACK, **options).stdout for _ in range(2))
    named = set(own_entries(tmp_path)) - set(codes(tmp_path))
    kept = [pickle.loads(zlib.decompress(path.read_bytes())) for path in named]
    assert any(calls_lapack for *_, calls_lapack in kept)
    assert first == second == "[[2.0, 0.0], [0.0, 3.0]]\n"


def test_a_program_with_a_function_of_the_user_is_not_kept():
    assert cache_module._name((tallmc.sample, 2.0)) is not None
    assert cache_module._name((json.dumps, 2.0)) is None
    assert cache_module._name((enclosing(json.dumps), 2.0)) is None


def enclosing(*values):
    return lambda x: [value * x for value in values]


def test_functions_have_the_same_name_if_their_code_and_what_it_encloses_are_the_same():
    array = np.arange(3.0)
    functions = [
        *(enclosing(2.0), enclosing(3.0), enclosing(2), enclosing(array), enclosing(array + 1)),
        *(lambda x, k=1: k * x, lambda x, k=2: k * x, lambda x, k=2: 2 * k * x),
        *(lambda x: np.sin(x), lambda x: np.cos(x), jax.jit(enclosing(2.0))),
        *(enclosing(jnp.exp), enclosing(jnp.log), enclosing(np), enclosing(jnp)),
    ]
    names = [cache_module._name(function) for function in functions]
    assert None not in names and len(set(names)) == len(names)
    assert names[0] == cache_module._name(enclosing(2.0))
    assert names[3] == cache_module._name(enclosing(array.copy()))


@pytest.mark.usefixtures("jax_options")
def test_code_of_functions_of_different_arguments_is_not_mixed_up(tmp_path):
    """Both lowered programs are those of one argument if the other one is left out."""
    assert tallmc.cache(tmp_path) is not None
    of_first, of_second = (
        cache_module.quickly_compiled(function) for function in (lambda x, y: -x, lambda x, y: -y)
    )
    for _ in range(2):
        assert of_first(np.ones(2), np.zeros(2)).tolist() == [-1.0, -1.0]
        assert of_second(np.ones(2), np.zeros(2)).tolist() == [0.0, 0.0]
        assert of_first(np.ones(2), np.zeros(())).tolist() == [-1.0, -1.0]
        of_first.programs.clear()
        of_second.programs.clear()


@pytest.mark.usefixtures("jax_options")
def test_code_of_other_options_is_not_mixed_up(tmp_path):
    assert tallmc.cache(tmp_path) is not None
    for options in (cache_module.QUICKLY, {"xla_backend_optimization_level": 0}):
        compiled = cache_module._Compiled(jnp.negative, options)
        assert compiled(np.ones(2)).tolist() == [-1.0, -1.0]
    assert len(codes(tmp_path)) == 2


@pytest.mark.usefixtures("jax_options")
def test_code_is_compiled_again_only_if_a_change_of_the_library_changes_it(monkeypatch, tmp_path):
    folder, x, scale = tallmc.cache(tmp_path), np.arange(3.0), 2.0
    assert folder is not None
    for sources, scale, n_names, n_codes in (
        (b"", 2.0, 1, 1),
        (b"+", 2.0, 2, 1),
        (b"+", 3.0, 3, 2),
    ):
        monkeypatch.setattr(cache_module, "_sources", lambda sources=sources: sources)
        compiled = cache_module.quickly_compiled(lambda x, scale=scale: scale * jnp.sin(x))
        np.testing.assert_allclose(compiled(x), scale * np.sin(x))
        n_entries = len(own_entries(tmp_path))
        assert (n_entries - len(codes(tmp_path)), len(codes(tmp_path))) == (n_names, n_codes)


@pytest.mark.slow
def test_a_program_with_a_function_of_the_user_follows_its_code(tmp_path):
    draws = [
        report_of(_OWN_LIKELIHOOD.format(scale), tmp_path, variable="XDG_CACHE_HOME")["draws"]
        for scale in (2.0, 8.0)
    ]
    assert draws[0] != draws[1]


@pytest.mark.slow
def test_a_program_that_jax_has_read_from_its_cache_is_not_written_again(used, tmp_path):
    """XLA writes such a program without some of its functions, and the next process fails."""
    folder, first = used
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for path in own_entries(tmp_path):
        path.unlink()
    for _ in range(2):
        assert report_of(_SAMPLE, tmp_path)["draws"] == first["draws"]


def test_a_second_process_compiles_only_what_is_damaged_and_replaces_it(tmp_path):
    program = _SMALL_PROGRAMS
    first = report_of(program, tmp_path)
    assert first["read"] == 0 and first["programs"] == len(entries(tmp_path)) > 4
    largest = sorted(entries(tmp_path), key=lambda path: path.stat().st_size)[-4:]
    whole = [path.read_bytes() for path in largest]
    bit_flipped = bytearray(whole[0])
    bit_flipped[len(bit_flipped) // 2] ^= 4
    damaged = [bytes(bit_flipped), whole[1][:-100], b"", b"no compressed data"]
    for path, content in zip(largest, damaged, strict=True):
        path.write_bytes(content)
    assert report_of(program, tmp_path) == {**first, "read": first["programs"] - 4}
    assert all(zlib.decompress(path.read_bytes()) for path in largest)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(used):
    folder, first = used
    second = report_of(_SAMPLE, folder)
    assert second["read"] == second["programs"] < first["programs"]
    assert second["draws"] == first["draws"]


@pytest.mark.slow
def test_an_entry_damaged_unnoticed_is_compiled_again(used):
    folder, first = used
    entry = entries(folder)[0]
    entry.write_bytes(b"")
    os.utime(entry, (0, 0))
    assert report_of(_SAMPLE, folder)["draws"] == first["draws"]


@pytest.mark.slow
def test_a_full_disk_neither_breaks_a_run_nor_leaves_partial_entries(used, tmp_path):
    folder, first = used
    assert report_of(_SAMPLE, tmp_path, before=_NO_ROOM)["draws"] == first["draws"]
    written = entries(tmp_path)
    assert 0 < len(written) < len(entries(folder))  # small entries fit
    assert all(zlib.decompress(path.read_bytes()) for path in written)


def test_a_folder_that_cannot_be_written_is_not_used(jax_options, tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert tallmc.cache(tmp_path / "file") is None
    assert jax.config.jax_compilation_cache_dir == jax_options["jax_compilation_cache_dir"]


def test_options_of_jax_stay_unless_a_folder_is_given(jax_options, monkeypatch, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 2.0)
    assert tallmc.cache() == tmp_path / "theirs"
    assert not (tmp_path / "theirs").exists()

    ours = tallmc.cache(tmp_path / "ours")
    assert ours is not None and ours.parent == tmp_path / "ours"
    assert jax.config.jax_compilation_cache_dir == str(ours)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 2.0

    monkeypatch.setenv("TALLMC_CACHE", "off")
    assert tallmc.cache(tmp_path / "third") is None
    assert not (tmp_path / "third").exists()


def test_the_least_recently_used_programs_are_deleted_and_nothing_else(jax_options, tmp_path):
    folder = tallmc.cache(tmp_path)
    assert folder is not None
    older_version = tmp_path / "programs-0"
    older_version.mkdir()
    content = zlib.compress(os.urandom(1000))
    for number, parent in enumerate([folder, older_version, folder, folder]):
        entry = parent / f"jit_f-{number:064x}-cache"
        entry.write_bytes(content)
        os.utime(entry, (1e9 + number, 1e9))  # read in this order
    (folder / "foreign-cache").write_bytes(content)
    tallmc.cache(tmp_path, max_bytes=2 * len(content) + 1)
    assert sorted(int(entry.name[6:70], 16) for entry in folder.glob("jit_f*")) == [2, 3]
    assert not list(older_version.iterdir())
    assert (folder / "foreign-cache").exists()


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, True])
def test_the_limit_must_be_a_positive_int(max_bytes):
    with pytest.raises(InvalidInput, match="max_bytes must be an int of at least 1"):
        tallmc.cache(max_bytes=max_bytes)


@pytest.mark.skipif(sys.platform != "linux", reason="the folder differs")
@pytest.mark.usefixtures("jax_options")
def test_the_command_uses_the_cache_of_the_user_unless_it_is_off(tmp_path, monkeypatch, capsys):
    """`test_cli.py` checks that the import of the package writes nothing."""
    jax.config.update("jax_compilation_cache_dir", None)
    for state, variable in (("off", "off"), ("on", "")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / state))
        monkeypatch.setenv("TALLMC_CACHE", variable)
        assert call("methods", "--json") == 0
    assert list((tmp_path / "on" / "tallmc").glob("programs-*"))
    assert not (tmp_path / "off").exists()
