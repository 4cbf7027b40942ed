"""Programs with functions of tests are kept like those of the library alone.

`tallmc._core.programs` loads a program without tracing if it knows the code of all that the program
is made from. Here it learns to know the modules of tests: the name of a program with a function or
a class of theirs says the contents of all files of tests. Modules do not change while tests run:
the library keeps nothing in tests that use `monkeypatch`.
"""

import hashlib
import sys
import weakref

import topics
from tallmc._core import programs

_WITH_FEW_PASSES: programs.Options = {"xla_backend_optimization_level": 0}
_of_tests: weakref.WeakSet = weakref.WeakSet()


def run_once(function, options=_WITH_FEW_PASSES):
    """A compiled program of few operations. Arguments that are not arrays are static."""
    program = programs._Compiled(function, options)
    _of_tests.add(program)
    return program


def run_often(function):
    """`run_once` for loops and large arrays: without LLVM's passes they take four times as long."""
    return run_once(function, programs.QUICKLY)


def know_tests() -> None:
    files = sorted(topics.TESTS.rglob("*.py"))
    contents = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    programs._KNOWN |= {file.stem: contents for file in files}


def forget() -> None:
    """Forget the programs that are in memory."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tallmc.")]
    values = [value for module in modules for value in vars(module).values()]
    for program in [*_of_tests, *values]:
        if isinstance(program, programs._Compiled):
            program.programs.clear()
