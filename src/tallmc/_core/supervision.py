"""Announce the stages of the preparation of a run, and stop it at a signal or a time limit.

`sample` opens a `supervised` block around the preparation. The functions that do the work call
`stage` where a stage begins, and `checkpoint` between two pieces of work. Outside a `supervised`
block these calls do nothing; `find_anchor` opens one if it is called alone. The block is found
through a context variable: most functions between `sample` and a pass over the rows know nothing of
it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any

import jax

from .errors import PreparationError

# Defer signals to moments at which a run can stop.
#
# A signal that arrives in the compiled loop must wait until the kept draws match the state. A
# signal that arrives while XLA compiles must wait until XLA is done: XLA compiles in a thread of
# its own, and an interpreter that exits before this thread has ended crashes.


class ReceivedSignal:
    """The signal that asked the work to end, or None."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        """The program's own handlers of the deferred signals."""

    def deliver(self) -> None:
        """Pass the signal, if there is one, to the program's handler; raise if it returns."""
        if self.number is not None:
            if (handler := self.handlers.get(self.number)) is not None:
                handler(self.number, None)
            raise KeyboardInterrupt


@contextlib.contextmanager
def held_back(*, raises: bool = False) -> Iterator[ReceivedSignal]:
    """Defer Ctrl-C, and SIGTERM if the program handles it.

    A second signal goes to the program's own handler. With `raises`, the first signal also goes
    there. It is remembered nevertheless, because Python discards an exception that is raised while
    it collects garbage.
    """
    received = ReceivedSignal()

    def receive(number: int, frame: FrameType | None) -> None:
        is_first, received.number = received.number is None, number
        if raises or not is_first:
            received.handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        deferred: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
        for number in deferred:
            if callable(handler := signal.getsignal(number)):
                received.handlers[number] = handler
                signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in received.handlers.items():
            signal.signal(number, handler)


_SHARE_FOR_REFINEMENT = 0.5
_BETWEEN_REPORTS = 0.5  # seconds

Announce = Callable[[str, float], None]
"""Receives the name of a stage, again and again while it lasts, and the seconds so far."""

_active: contextvars.ContextVar[Supervision | None] = contextvars.ContextVar(
    "supervision", default=None
)


class TimeIsUp(PreparationError):
    """The time limit of a run passed in its preparation; `anchor` is what was found until then."""

    anchor: Any = None


# Seconds in which XLA compiled something, in whichever thread.

_COMPILING = {
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
}


class _Compilation:
    """The union of the times of all compilations."""

    def __init__(self) -> None:
        self.seconds, self._until, self._lock = 0.0, 0.0, threading.Lock()

    def add(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in _COMPILING:
            with self._lock:
                now = time.perf_counter()
                self.seconds += max(0.0, now - max(now - duration_secs, self._until))
                self._until = now


_compilation = _Compilation()
jax.monitoring.register_event_duration_secs_listener(_compilation.add)


class Clock:
    """Counts the seconds of a run in this process, from its preparation on.

    `compiled`: the seconds that earlier processes of the run have compiled.
    """

    def __init__(self, compiled: float = 0.0) -> None:
        self._began, self._compiled = time.perf_counter(), _compilation.seconds - compiled

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def compiling(self) -> float:
        """The seconds in which programs were compiled, in earlier processes too."""
        return _compilation.seconds - self._compiled


class Supervision:
    """What work must obey, and to whom it reports."""

    def __init__(
        self,
        received: ReceivedSignal,
        clock: Clock,
        max_seconds: float | None,
        announce: Announce | None,
    ):
        self.received, self.clock = received, clock
        self.max_seconds, self.announce = max_seconds, announce
        self.stage, self.anchor = "preparing", None
        self._next_report = 0.0

    def begin(self, stage: str) -> None:
        self._stop_if_due()
        self.stage, self._next_report = stage, 0.0
        self.check()

    def check(self) -> None:
        """Raise if the work must stop; otherwise report."""
        self._stop_if_due()
        seconds = self.clock.seconds
        if self.announce is not None and seconds >= self._next_report:
            self._next_report = seconds + _BETWEEN_REPORTS
            self.announce(self.stage, seconds)

    def _stop_if_due(self) -> None:
        self.received.deliver()
        if self.max_seconds is not None and self.clock.seconds >= self.max_seconds:
            message = (
                f"the limit of {self.max_seconds:g} seconds passed while {self.stage}, before the "
                "first draw. Raise max_seconds, or remove it."
            )
            if self.anchor is not None:
                message += " The mode and the Gaussian there are known: this exception has them "
                message += "as `anchor`. Pass it as anchor= to go on."
            error = TimeIsUp(message)
            error.anchor = self.anchor
            raise error

    @property
    def is_short_of_time(self) -> bool:
        return (
            self.max_seconds is not None
            and self.clock.seconds >= _SHARE_FOR_REFINEMENT * self.max_seconds
        )


@contextlib.contextmanager
def supervised(
    clock: Clock | None = None,
    max_seconds: float | None = None,
    announce: Announce | None = None,
    *,
    signals_raise: bool = False,
) -> Iterator[Supervision]:
    """Supervise the work in the block; a block inside another obeys the signals of the outer one.

    Signals wait for the next `checkpoint`. With `signals_raise` they raise at once, which is safe
    only if the process then ends without the teardown of the interpreter (`os._exit`). The first
    `checkpoint` after `max_seconds` on the clock raises `TimeIsUp`. `announce` hears of the stages.
    """
    outer = _active.get()
    with contextlib.ExitStack() as stack:
        if outer is None:
            stack.enter_context(_one_blas_thread())
            received = stack.enter_context(held_back(raises=signals_raise))
        else:
            received = outer.received
        supervision = Supervision(received, clock or current_clock(), max_seconds, announce)
        token = _active.set(supervision)
        try:
            yield supervision
            received.deliver()
        finally:
            _active.reset(token)


def _one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """No threads in NumPy's and SciPy's linear algebra, in the main thread, which sets it for all.

    They wait for each other by spinning. On two busy cores the eigenvectors of 250 parameters take
    10 ms with one thread, a second with two.
    """
    if threading.current_thread() is not threading.main_thread():
        return contextlib.nullcontext()
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, "blas")


def supervised_alone() -> contextlib.AbstractContextManager[Any]:
    """A `supervised` block for work that may be called alone; nothing inside another block."""
    return supervised() if _active.get() is None else contextlib.nullcontext()


def stage(name: str) -> None:
    """Begin a stage of the preparation, named by what is done, such as "finding the mode"."""
    if (supervision := _active.get()) is not None:
        supervision.begin(name)


def checkpoint() -> None:
    """Raise if the work must stop. Call it between two pieces of work."""
    if (supervision := _active.get()) is not None:
        supervision.check()


def found_anchor(anchor: Any) -> None:
    """Keep the anchor for the case that the time is up before the first draw."""
    if (supervision := _active.get()) is not None:
        supervision.anchor = anchor


def is_short_of_time() -> bool:
    """Whether half of the time limit is gone, so that settings should be refined no further."""
    return (supervision := _active.get()) is not None and supervision.is_short_of_time


def current_clock() -> Clock:
    return Clock() if (supervision := _active.get()) is None else supervision.clock


# One thread per core, for work that does not hold Python's lock.

_NAME = "tallmc"


def in_threads(
    function: Callable[[Any], Any], items: Iterable[Any], between: Callable[[], None] = lambda: None
) -> list[Any]:
    """`function` of every item, in order; by several threads if there are several items.

    `between` is called after each item; it may raise to stop the work. Work that is itself done by
    one of the threads is not divided further.
    """
    given = list(items)
    if len(given) <= 1 or not has_spare_threads():
        results: Iterator[Any] = map(function, given)
    else:
        # Other threads do not see a setting that is local to this one.
        double = bool(jax.config.read("jax_enable_x64"))

        def in_thread(item: Any) -> Any:
            with jax.enable_x64(double):
                return function(item)

        results = _threads().map(in_thread, given)
    found = []
    for result in results:
        between()
        found.append(result)
    return found


def one_per_core(count: int) -> list[slice]:
    ends = [count * k // core_count() for k in range(core_count() + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def has_spare_threads() -> bool:
    """Whether there are several cores, and this is not one of the threads."""
    return core_count() > 1 and not threading.current_thread().name.startswith(_NAME)


@functools.cache
def core_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(core_count(), thread_name_prefix=_NAME)


def in_background(function: Callable[[], Any]) -> Future[Any] | None:
    """Call a function in a thread beside this one; errors are lost. None if no core is spare."""
    if not has_spare_threads():
        return None
    double = bool(jax.config.read("jax_enable_x64"))

    def call() -> Any:
        with contextlib.suppress(Exception), jax.enable_x64(double):
            return function()

    return _background().submit(call)


@functools.cache
def _background() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix=_NAME)
