"""No garbage collection while the package is imported.

An import creates many objects and hardly any garbage. Collections in between take a tenth of the
time of `import tallmc`. `tallmc/__init__.py` imports this module first, which pauses the collector,
and calls `resume_collection` last.
"""

import gc

_was_enabled = gc.isenabled()
gc.disable()


def resume_collection() -> None:
    if _was_enabled:
        gc.enable()
