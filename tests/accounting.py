"""What the suite costs: CPU seconds and compilations of every test file, printed after a run.

Seconds of CPU are those of the process that ran the test and of the processes that it waited for,
so they hardly depend on what else the machine does. A program that comes from the cache on disk is
no compilation.
"""

import collections
import contextlib
import json
import resource

import jax
import pytest

_COMPILED, _LOADED = (
    "/jax/core/compile/backend_compile_duration",
    "/jax/compilation_cache/cache_hits",
)


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Accounting:
    """A plugin of pytest; with xdist, each worker sends its account to the controller."""

    def __init__(self):
        self.files = collections.defaultdict(lambda: [0.0, 0])
        self.compilations = 0
        self.cpu_seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    def _on_duration(self, event, duration, **_):
        self.compilations += event == _COMPILED

    def _on_event(self, event, **_):
        self.compilations -= event == _LOADED

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        seconds, compilations = _cpu_seconds(), self.compilations
        try:
            return (yield)
        finally:
            file = self.files[item.nodeid.partition("::")[0]]
            file[0] += _cpu_seconds() - seconds
            file[1] += self.compilations - compilations

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        self.cpu_seconds += _cpu_seconds()
        if hasattr(session.config, "workeroutput"):
            account = [self.cpu_seconds, self.compilations, dict(self.files)]
            session.config.workeroutput["account"] = json.dumps(account)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        # A worker that died has no output.
        with contextlib.suppress(AttributeError, KeyError):
            cpu_seconds, compilations, files = json.loads(node.workeroutput["account"])
            self.cpu_seconds += cpu_seconds
            self.compilations += compilations
            for name, (seconds, compiled) in files.items():
                self.files[name][0] += seconds
                self.files[name][1] += compiled

    def pytest_terminal_summary(self, terminalreporter, config):
        if hasattr(config, "workerinput") or not self.files:
            return
        most = None if config.option.verbose > 0 else 10
        slowest = sorted(self.files.items(), key=lambda entry: -entry[1][0])[:most]
        terminalreporter.section(
            f"{self.cpu_seconds:.0f} s of CPU, {self.compilations} compilations"
        )
        for name, (seconds, compilations) in slowest:
            terminalreporter.write_line(f"{seconds:7.1f} s {compilations:6} compilations  {name}")
