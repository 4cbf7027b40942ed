"""Run all tests in double precision, because exact identities are checked to 1e-12.

Single precision has its own tests.

Compilation takes most of the test time. Compiled programs are cached on disk and reused between
runs and between clones. The name of the cache folder is a hash of the pinned packages and of the
processor, so a program is never loaded on a machine for which it was not compiled.
`TALLMC_TEST_CACHE=off` disables the cache. A cache of more than 4 GiB is deleted.

The programs of the library are also kept in the library's own cache, from which they are loaded
without tracing as long as no file of the library changes (`tallmc._core.programs`). It does not see
what a test replaces in the library, so it is off in tests that use `monkeypatch`. Programs with
functions and classes of tests are kept there too (`kept_programs.py`).

The shapes in jaxtyping annotations are checked (`shape_checks.py`). Tests of contrib topics and of
experiments run when their files have changed (`topics.py`).

`--go-on` leaves out the tests that have passed in runs of the same code that were interrupted or
failed. A run that passes is forgotten.

Compiled programs stay in memory. Half of all tests would leave four gigabytes of them, and more
than the 65,530 mappings that Linux allows a process (`vm.max_map_count`). They are dropped after
the file of tests with which they have taken a gigabyte.
"""

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import jax
import pytest

import accounting
import shape_checks
import topics

# Tests import helpers and mutants from each other, also across these folders.
sys.path += [str(folder) for folder in sorted(topics.TESTS.glob("contrib/*")) if folder.is_dir()]
sys.path.append(str(topics.TESTS / "experiments"))

# With Python's defaults, the search for garbage takes a tenth of the time: XLA takes part in it.
gc.set_threshold(100_000, 20, 20)
jax.config.update("jax_enable_x64", True)
shape_checks.install()

import kept_programs  # noqa: E402, it imports the library, whose shapes are checked from here on

kept_programs.know_tests()

_CACHE, _OWN_CACHE = "JAX_COMPILATION_CACHE_DIR", "TALLMC_CACHE"
_MOST_BYTES = 4 * 2**30
_BYTES_OF_PROGRAMS = 2**30
_bytes_without_programs = 2**29


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    known = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    return "\n".join(sorted({line for line in lines if line.startswith(known)}))


def _cache_folder() -> Path:
    constraints = Path(__file__).resolve().parents[1] / "constraints.txt"
    key = hashlib.sha256(constraints.read_bytes() + _processor().encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return home / "tallmc-tests" / key


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*")) if folder.is_dir() else 0


def pytest_configure(config):
    """Configure the cache, also in the environment, for processes that tests start."""
    config.pluginmanager.register(accounting.Accounting())
    if config.getoption("--go-on", False):
        config.pluginmanager.register(GoOn(config))
    os.environ[_OWN_CACHE] = "off"
    if not hasattr(config, "workerinput"):
        _delete_temporary_files_at_the_end(config)
    cached = os.environ.get("TALLMC_TEST_CACHE") != "off"
    folder = _cache_folder() if cached else Path(tempfile.gettempdir())
    os.environ["MPLCONFIGDIR"] = str(folder / "matplotlib")  # for its list of fonts
    if not cached:
        return
    if not hasattr(config, "workerinput") and _bytes_in(folder) > _MOST_BYTES:
        shutil.rmtree(folder, ignore_errors=True)
    os.environ.setdefault(_CACHE, str(folder))
    os.environ[_OWN_CACHE] = str(folder / "library")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", os.environ[_CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _delete_temporary_files_at_the_end(config):
    """Whatever tests and packages write to the system's temporary folder, such as PyTensor's code.

    Workers and processes that tests start inherit the environment.
    """
    folder = tempfile.mkdtemp(prefix="tallmc-tests-")
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_addoption(parser):
    parser.addoption("--go-on", action="store_true", help="leave out tests that have passed")


class GoOn:
    """A plugin of pytest: the tests that have passed, in a file that is named after the code."""

    def __init__(self, config):
        self.worker = hasattr(config, "workerinput")
        if self.worker:
            self.passed = set(config.workerinput["passed"])
            return
        code = b"".join(
            subprocess.run(["git", *command], cwd=topics.ROOT, capture_output=True).stdout
            for command in (["rev-parse", "HEAD"], ["diff", "HEAD"])
        )
        self.file = config.cache.mkdir("passed") / hashlib.sha256(code).hexdigest()
        self.file.touch()
        self.passed = set(self.file.read_text().splitlines())

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        node.workerinput["passed"] = sorted(self.passed)

    def pytest_collection_modifyitems(self, config, items):
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self.passed])
        items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report):
        if not self.worker and report.when == "call" and report.passed:
            with self.file.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, exitstatus):
        if not self.worker and exitstatus == pytest.ExitCode.OK:
            self.file.unlink()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    topics.mark_slow_tests(items)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _programs_of_what_is_tested(request):
    if "monkeypatch" in request.fixturenames:
        request.getfixturevalue("monkeypatch").setenv(_OWN_CACHE, "off")


def _drop_programs() -> None:
    kept_programs.forget()
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def drop_programs():
    """A function after whose call all programs are compiled or loaded again."""
    return _drop_programs


def _bytes_in_memory() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    global _bytes_without_programs
    if nextitem is not None and nextitem.path == item.path:
        return
    if _bytes_in_memory() > _bytes_without_programs + _BYTES_OF_PROGRAMS:
        _drop_programs()
        _bytes_without_programs = _bytes_in_memory()


SHARED = Path(os.environ.get("TALLMC_SHARED", Path(__file__).resolve().parents[2] / "shared"))
_NO_SHARED = f"the reference data are not there: no folder {SHARED.name} beside the checkout"


@pytest.fixture
def shared():
    if not SHARED.is_dir():
        pytest.skip(_NO_SHARED)
    return SHARED


@pytest.fixture
def hears_ctrl_c():
    """Handle SIGINT as at a terminal: a shell makes background processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def terminal(monkeypatch):
    """A context in which stderr is a real terminal. It gives the list of what is shown there."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")

    @contextlib.contextmanager
    def opened():
        import pty  # not on Windows

        main, end = pty.openpty()
        shown: list[str] = []

        def read():
            with contextlib.suppress(OSError):  # raised when the other end is closed
                while piece := os.read(main, 2**16):
                    shown.append(piece.decode(errors="replace"))

        reader = threading.Thread(target=read)
        reader.start()
        with open(end, "w") as stream, contextlib.redirect_stderr(stream):
            yield shown
        reader.join()
        os.close(main)
        shown[:] = ["".join(shown)]

    return opened


def pytest_terminal_summary(terminalreporter):
    """Print one line for all tests that were skipped because the reference data are missing."""
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if _NO_SHARED in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests skipped: {_NO_SHARED}")
