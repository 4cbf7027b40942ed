"""Store a run plan as JSON and arrays, and restore it for a given posterior.

The structure and the arrays of the kernel are stored, except for its model. The model comes with
the posterior, whose rows are not stored either. Resuming a run does not prepare the method again,
unless a part has a class of the user's own (`encode_kernel`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from .._anchor.anchor import Anchor
from .._core.arrays import Layout, named_leaves, with_leaves
from .._core.compiler import loops_are_whole
from .._core.errors import InvalidInput
from .._core.files import FileDigest, write_file
from .._core.part import library_classes, parts_by_name, topic_of
from .._engine.kernel import AbstractKernel, Kernel
from .._engine.run import Goal
from .._rows.law import UniformLaw
from .._rows.sharded import ShardedRows
from .._rows.values import ShardedValues
from .._version import __version__
from ..methods.abstract import AbstractMethod, Account, RunPlan
from ..methods.automatic.update import FittedSeries
from ..methods.trajectories import SurrogateKernel
from ..models.design import Observations
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..results.saved import account_from, saved_about, shapes_by_name
from .files import Folder, StoreError, is_intact, open_inside, read_arrays, write_arrays

# Methods as JSON: the class and the settings of every part. Arrays are stored separately.
#
# Only the library's own parts are read back. A part that holds a function, such as `Recipe`, or
# that has a class of your own cannot be stored; pass such a method to `resume`.

_SCALARS = (bool, int, float, str, type(None))
_WEIGHTS_BESIDE_ROWS = {"weights": "beside the rows"}
"""Weights of a row store. The kernel of the run knows how to compute them; the method does not."""


class NotSerialisable(Exception):
    """A method cannot be stored; the message names the part."""


def encode_method(method: AbstractMethod) -> tuple[Any, dict[str, np.ndarray]]:
    """Encode a method as JSON, and the arrays that the JSON refers to by name."""
    arrays: dict[str, np.ndarray] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        is_infinite = isinstance(value, float) and not math.isfinite(value)  # JSON has no infinity
        if isinstance(value, _SCALARS) and not is_infinite:
            return value
        if isinstance(value, ShardedValues):
            return _WEIGHTS_BESIDE_ROWS
        if parts_by_name().get(type(value).__name__) is type(value):
            fields = {name: encode(setting) for name, setting in value.settings().items()}
            topic = topic_of(type(value))
            found = {"part": type(value).__name__, "fields": fields}
            return found if topic is None else {**found, "topic": topic}
        if isinstance(value, Mapping):
            return {"by_name": {str(name): encode(part) for name, part in value.items()}}
        if callable(value):
            raise NotSerialisable(f"the function {getattr(value, '__name__', value)!r}")
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "biuf":
            raise NotSerialisable(f"a {type(value).__name__}")
        name = f"{len(arrays)}"
        arrays[name] = numbers
        return {"array": name}

    return encode(method), arrays


def decode_method(content: Any, arrays: Mapping[str, np.ndarray]) -> AbstractMethod:
    """Decode the result of `encode_method`; raises ValueError for other content."""

    def decode(content: Any) -> Any:
        if isinstance(content, _SCALARS):
            return content
        if not isinstance(content, dict):
            raise ValueError("a setting is not a part, array, number or text")
        if content == _WEIGHTS_BESIDE_ROWS:
            return ShardedValues(())
        if set(content) == {"array"}:
            return arrays[content["array"]]
        if set(content) == {"by_name"} and isinstance(content["by_name"], dict):
            return {str(name): decode(value) for name, value in content["by_name"].items()}
        part: Any = parts_by_name(content.get("topic")).get(str(content.get("part")))
        if part is None or inspect.isabstract(part) or not isinstance(content.get("fields"), dict):
            raise ValueError(f"{content.get('part')!r} is not a part of tallmc")
        return part(**{str(name): decode(value) for name, value in content["fields"].items()})

    method = decode(content)
    if not isinstance(method, AbstractMethod):
        raise ValueError("the content is a part, not a method")
    return method


# Kernels as JSON: the class and fields of every part. Arrays are stored separately.
#
# A kernel is a tree of the library's own modules. Its model is not stored, because the model comes
# with the posterior. A function of the user, as in `Recipe`, is stored as its path in the method,
# and the user passes the method to `resume` again. If a part has a class of the user's own, only
# the arrays are stored. `resume` then prepares the method again and puts the arrays into the new
# kernel.

_PREPARED_AGAIN = "prepared_again"
_PACKAGE = __package__.split(".")[0]


def encode_kernel(
    kernel: AbstractKernel, method: AbstractMethod
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Encode a kernel as JSON, and the arrays that the JSON refers to by name."""
    arrays: dict[str, Any] = {}
    functions = {id(function): path for path, function in _functions_with_paths(method, "")}

    def encode(value: Any, path: str) -> Any:
        if isinstance(value, AbstractModel):
            return {"model": True}
        if isinstance(value, Layout):
            return {"layout": True}
        is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
        if isinstance(value, np.dtype) or is_scalar_type:
            return {"dtype": np.dtype(value).name}
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, _SCALARS):
            return value
        if eqx.is_array(value) or isinstance(value, np.ndarray):
            arrays[path] = value
            return {"array": path}
        if isinstance(value, tuple):
            kind = "observations" if isinstance(value, Observations) else "tuple"
            return {kind: [encode(part, f"{path}.{k}") for k, part in enumerate(value)]}
        if _library_modules().get(type(value).__name__) is type(value):
            fields = {
                field.name: encode(getattr(value, field.name), f"{path}.{field.name}")
                for field in dataclasses.fields(value)
            }
            return {"part": type(value).__name__, "fields": fields}
        if id(value) in functions:
            return {"function": functions[id(value)]}
        name = f"{getattr(value, '__module__', '')}:{getattr(value, '__name__', '')}"
        if _library_function(name) is value:
            return {"library_function": name}
        raise NotSerialisable(f"a {type(value).__name__}")

    try:
        return encode(kernel, "kernel"), arrays
    except NotSerialisable:
        without_model = jax.tree.map(
            lambda node: None if isinstance(node, AbstractModel) else node,
            kernel,
            is_leaf=lambda node: isinstance(node, AbstractModel),
        )
        return {_PREPARED_AGAIN: True}, dict(named_leaves(without_model))


def decode_kernel(
    content: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    posterior: AbstractPosterior,
    method: AbstractMethod,
    anchor: Anchor | None,
    seed: int,
) -> AbstractKernel:
    """Decode the result of `encode_kernel`; raises ValueError for other content."""
    if content.get(_PREPARED_AGAIN):
        return with_leaves(method.prepare(posterior, anchor, seed=seed).kernel.kernel, arrays)
    functions = dict(_functions_with_paths(method, ""))

    def decode(content: Any) -> Any:
        if isinstance(content, _SCALARS):
            return content
        if not isinstance(content, dict):
            raise ValueError("a field is not a part, array, number or text")
        if "part" in content:
            return _decode_module(content, decode)
        if len(content) != 1:
            raise ValueError(f"a field has several kinds: {sorted(content)}")
        ((kind, value),) = content.items()
        if kind not in decoders:
            raise ValueError(f"a field has the unknown kind {kind!r}")
        return decoders[kind](value)

    decoders: dict[str, Callable[[Any], Any]] = {
        "model": lambda _: posterior.model,
        "layout": lambda _: posterior.layout,
        "dtype": np.dtype,
        "array": lambda name: jnp.asarray(arrays[name]),
        "observations": lambda parts: Observations(*map(decode, parts)),
        "tuple": lambda parts: tuple(map(decode, parts)),
        "function": functions.__getitem__,
        "library_function": _library_function,
    }

    kernel = decode(content)
    if not isinstance(kernel, AbstractKernel):
        raise ValueError("the content is a part, not a kernel")
    return kernel


def _decode_module(content: Mapping[str, Any], decode: Callable[[Any], Any]) -> eqx.Module:
    """Make a module without its constructor, as `jax.tree.unflatten` does."""
    kind, fields = _library_modules().get(str(content["part"])), content.get("fields")
    if kind is None or not isinstance(fields, dict):
        raise ValueError(f"{content['part']!r} is not a part of tallmc")
    if set(fields) != {field.name for field in dataclasses.fields(kind)}:
        raise ValueError(f"the fields are not those of {content['part']}")
    module = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(module, name, decode(value))
    return module


def _functions_with_paths(value: Any, path: str) -> list[tuple[str, Any]]:
    """The functions in the settings of a method, with their paths."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            pair
            for field in dataclasses.fields(value)
            for pair in _functions_with_paths(getattr(value, field.name), f"{path}.{field.name}")
        ]
    return [(path, value)] if callable(value) else []


def _library_function(name: str) -> Any:
    """A function of this package by its name; None if there is no such function."""
    place, _, function = str(name).partition(":")
    module = sys.modules.get(place) if place.startswith(f"{_PACKAGE}.") else None
    found = vars(module).get(function) if module is not None else None
    return found if isinstance(found, FunctionType) and found.__module__ == place else None


@functools.cache
def _library_modules() -> dict[str, type[eqx.Module]]:
    return library_classes(eqx.Module)


_CURVE_POINTS = 101


def weight_curve(kernel: AbstractKernel) -> dict[str, Any] | None:
    """The share of draws of the most-drawn 0 %, 1 %, …, 100 % of the rows; None without a law."""
    selection = kernel.selection if isinstance(kernel, Kernel) else None
    selection = getattr(selection, "base", selection)
    stream = getattr(selection, "stream", None)
    law = getattr(stream, "law", None) or getattr(selection, "law", None)
    if law is None:
        return None
    certain = len(getattr(selection, "certain", ()))
    if isinstance(law, UniformLaw):
        rows = float(law.n_rows)
        return {"uniform": True, "certain": certain, "effective_rows": rows, "curve": []}
    p = np.sort(law.probabilities())[::-1]
    share = np.concatenate([[0.0], np.cumsum(p)]) / p.sum()
    at = np.linspace(0, len(p), _CURVE_POINTS).round().astype(int)
    return {
        "uniform": False,
        "certain": certain,
        "effective_rows": float(1 / np.sum((p / p.sum()) ** 2)),
        "curve": [round(float(value), 5) for value in share[at]],
    }


# Identify a posterior and the environment of a run.
#
# Data in memory are compared by their bytes, row stores by the digest of their manifest, models
# with functions also by their potential, and software by its version.

_POTENTIAL_TOLERANCE = 1e-4


def fingerprint(posterior: AbstractPosterior) -> dict[str, Any]:
    """The sha256 of rows, start and settings; for a model with functions also its potential."""
    model = posterior.model
    kinds = [f"{name} {type(value).__name__}" for name, value in vars(model).items()]
    header = f"{type(model).__name__} {kinds} {model.layout.names} {model.layout.shapes}"
    digest = hashlib.sha256(header.encode())
    # The quantities and the description are shown; `predictive` repeats the arrays of the model.
    left_out = ("rows", "quantities", "description", "predictive")
    settings = {name: value for name, value in vars(posterior).items() if name not in left_out}
    if isinstance(posterior.rows, ShardedRows):
        digest.update(posterior.rows.identity.encode())
        contents: Any = settings
    else:
        contents = (settings, posterior.data)
    for path, leaf in named_leaves(contents).items():
        values = np.ascontiguousarray(leaf)
        digest.update(f"{path} {values.dtype} {values.shape}".encode())
        digest.update(values.data if values.size else b"")
    static_leaves = [leaf for leaf in jax.tree.leaves(model) if not eqx.is_array(leaf)]
    digest.update(repr([leaf for leaf in static_leaves if not callable(leaf)]).encode())
    potential = np.nan
    if any(map(callable, static_leaves)):
        potential = float(posterior.potential(posterior.init))
    found = potential if np.isfinite(potential) else None
    return {"sha256": digest.hexdigest(), "potential": found}


def same_posterior(found: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether two fingerprints describe the same posterior.

    Functions have no bytes to compare, so models with functions are compared by their potential.
    """
    if found["sha256"] != stored.get("sha256"):
        return False
    here, there = found["potential"], stored.get("potential")
    if here is None or there is None:
        return here is there
    return abs(here - there) <= _POTENTIAL_TOLERANCE * (1 + abs(there))


def environment() -> dict[str, str]:
    """The versions and hardware on which the last bits of a draw depend."""
    device = jax.devices()[0]
    return {
        "tallmc": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processors": str(os.cpu_count()),
        "device": f"{device.platform} {device.device_kind}",
        "precision": str(jnp.zeros(0, float).dtype),
        "loops": "whole" if loops_are_whole() else "by kernel",
    }


_COPY_NAMES = ("setup", "setup-copy")
_ANCHOR_NUMBERS = ("potential", "decrement", "n_row_evals", "converged")
_ACCOUNT_FIELDS = ("reasons", "doubts", "exact", "notes", "unmeasured")
_MOST_BYTES = 2**26
_NONE_TYPE = type(None)
_SURROGATE = "kernel.surrogate."
_CONTENT_TYPES: dict[str, Any] = {
    **dict.fromkeys(("goal", "posterior", "parameters", "quantities", "description"), dict),
    **dict.fromkeys(("about", "environment", "kernel"), dict),
    **dict.fromkeys(("method", "account", "anchor", "weights"), (dict, _NONE_TYPE)),
    **dict.fromkeys(("seed", "burn_in", "thin", "n_row_evals", "n_rows"), int),
    **dict.fromkeys(("method_shown", "dtype", "started"), str),
    "has_accept_step": bool,
    "not_data": (str, _NONE_TYPE),
    "seconds": (int, float),
}
"""The keys of a setup, and their types."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """A run plan as JSON content and named arrays."""

    content: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def group(self, name: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `name/`, without this prefix."""
        return {
            key.removeprefix(f"{name}/"): values
            for key, values in self.arrays.items()
            if key.startswith(f"{name}/")
        }

    @property
    def goal(self) -> Goal:
        return Goal.of(*(self.content["goal"][name] for name in Goal._fields))

    @property
    def account(self) -> Account | None:
        """The account before the run, without its method."""
        stored = self.content["account"]
        return None if stored is None else account_from({**stored, "bias": self.group("bias")})

    @property
    def series(self) -> FittedSeries | None:
        """What the run keeps of its rows, for `Draws.update`."""
        kernel, model = self.content["kernel"], self.group("model")
        if kernel.get("part") != SurrogateKernel.__name__ or not model:
            return None
        found = {
            name.removeprefix(_SURROGATE): values
            for name, values in self.group("kernel").items()
            if name.startswith(_SURROGATE)
        }
        if "linear" not in found:  # several modes have a series each
            return None
        accurate = bool(kernel["fields"]["surrogate"]["fields"]["accurate"])
        shards = str(self.content.get("shards", ""))
        return FittedSeries(int(self.content["n_rows"]), accurate, found, model, shards)


def make_setup(plan: RunPlan, folder: Folder) -> Setup:
    posterior, rows = plan.posterior, plan.posterior.rows
    structure, kernel = encode_kernel(plan.kernel, plan.method)
    anchor = {} if plan.anchor is None else vars(plan.anchor)
    groups: dict[str, Mapping[str, Any]] = {
        "kernel": kernel,
        "anchor": {name: values for name, values in anchor.items() if eqx.is_array(values)},
    }
    if isinstance(plan.kernel, SurrogateKernel):  # the kernel's arrays are without the model's
        groups["model"] = named_leaves(posterior.model)
    try:
        method, groups["method"] = encode_method(plan.method)
        not_data = None
    except NotSerialisable as error:
        method, not_data = None, str(error)
    if plan.account.bias is not None:
        groups["bias"] = plan.account.bias._asdict()
    arrays = {
        f"{group}/{name}": np.asarray(values)
        for group, found in groups.items()
        for name, values in found.items()
    }
    content = {
        "method": method,
        "method_shown": " · ".join(plan.method.axes.values()),
        "has_accept_step": plan.method.has_accept_step,
        "not_data": not_data,
        "seed": plan.seed,
        "burn_in": plan.burn_in,
        "thin": plan.thin,
        "goal": plan.goal._asdict(),
        "check": plan.measures_bias,
        "n_row_evals": plan.n_row_evals,
        "seconds": plan.seconds,
        "account": {
            "budget": dataclasses.asdict(plan.account.budget),
            **{name: getattr(plan.account, name) for name in _ACCOUNT_FIELDS},
        },
        "anchor": plan.anchor and {name: getattr(plan.anchor, name) for name in _ANCHOR_NUMBERS},
        "posterior": fingerprint(posterior),
        "shards": rows.shards.manifest.digest_of_shards if isinstance(rows, ShardedRows) else "",
        "n_rows": posterior.n_rows,
        "dtype": jnp.dtype(posterior.dtype).name,
        "parameters": shapes_by_name(posterior.layout),
        "quantities": {
            kind: {name: list(found) for name, found in getattr(posterior.quantities, kind).items()}
            for kind in ("shapes", "dims", "coords")
        },
        "description": dict(posterior.description),
        "about": {**saved_about(posterior.predictive), **folder.about},
        "kernel": structure,
        "weights": weight_curve(plan.kernel),
        "environment": environment(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    return Setup(content, arrays | {"start": np.asarray(plan.start)})


def write_setup(folder: Path, setup: Setup) -> dict[str, FileDigest]:
    """Write two copies, because the blocks are useless without the setup."""
    text = json.dumps(setup.content, indent=1, ensure_ascii=False, allow_nan=False).encode()
    written = {}
    for name in _COPY_NAMES:
        written[f"{name}.json"] = write_file(folder, f"{name}.json", text)
        written[f"{name}.npz"] = write_arrays(folder, f"{name}.npz", setup.arrays)
    return written


def read_setup(folder: Path, files: dict[str, FileDigest]) -> Setup:
    content = arrays = None
    for name in _COPY_NAMES:
        text = f"{name}.json"
        if content is None and text in files and is_intact(folder, text, files[text]):
            with open_inside(folder, text) as file:
                if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                    raise StoreError(folder, "have a setup of reasonable size", name)
                content = json.loads(file.read().decode())
        packed = f"{name}.npz"
        if arrays is None and packed in files and is_intact(folder, packed, files[packed]):
            arrays = read_arrays(folder, packed)
    if not isinstance(content, dict) or arrays is None:
        cure = "Restore the folder from a copy."
        raise StoreError(folder, "have one intact copy of its setup", "none", cure)
    for key, types in _CONTENT_TYPES.items():
        is_flag = isinstance(content.get(key), bool) and types is int
        if not isinstance(content.get(key), types) or is_flag:
            raise StoreError(folder, f"give its {key} as {types}", content.get(key))
    return Setup(content, arrays)


def restored(setup: Setup, posterior: AbstractPosterior, method: AbstractMethod | None) -> RunPlan:
    """Restore the stored plan; `method` is required if the store could not hold the method."""
    content = setup.content
    if content["method"] is not None and method is not None:
        raise InvalidInput("method", "be left out, because the store holds it", method)
    if content["method"] is None and method is None:
        rule = f"be given again: the store cannot hold {content['not_data']}"
        raise InvalidInput("method", rule, None, "Pass the method that the run was started with.")
    chosen = decode_method(content["method"], setup.group("method")) if method is None else method
    account = setup.account
    anchor = _decode_anchor(posterior, content["anchor"], setup.group("anchor"))
    kernel = decode_kernel(
        content["kernel"], setup.group("kernel"), posterior, chosen, anchor, content["seed"]
    )
    return RunPlan(
        posterior=posterior,
        method=chosen,
        kernel=kernel,
        anchor=anchor,
        account=Account(chosen, exact=chosen.exact)
        if account is None
        else dataclasses.replace(account, method=chosen),
        start=jnp.asarray(setup.arrays["start"]),
        burn_in=content["burn_in"],
        thin=content["thin"],
        seed=content["seed"],
        goal=setup.goal,
        measures_bias=bool(content.get("check", False)),
        n_row_evals=content["n_row_evals"],
        seconds=content["seconds"],
    )


def _decode_anchor(
    posterior: AbstractPosterior, numbers: dict[str, Any] | None, arrays: dict[str, np.ndarray]
) -> Anchor | None:
    if numbers is None:
        return None
    names = {field.name for field in dataclasses.fields(Anchor)} - set(_ANCHOR_NUMBERS)
    found: dict[str, Any] = dict.fromkeys(names)
    found |= {name: jnp.asarray(arrays[name], posterior.dtype) for name in names & set(arrays)}
    return Anchor(**found, **numbers)
