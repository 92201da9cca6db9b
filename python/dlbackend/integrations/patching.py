"""The kinds of changes to other packages' functions.

Most functions that list devices have a branch for Huawei's NPU, which is in PyTorch's slot for out-of-tree devices,
as ocl is, and so is never there beside it: `elif is_npu_available(): return torch.device("npu")`. Ocl needs
that branch with its own name. So a function gets its own code with names and texts exchanged, in place: modules that
imported the function before have the changed one too.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dlbackend.integrations.devices import is_ocl_available


class DoesNotFit(Exception):
    """The function is another one than the patch was written for."""


def function_of(module: types.ModuleType, target: str) -> types.FunctionType:
    """The function that `Class.name` or `name` is in a module, below its decorators. DoesNotFit if there is none."""
    holder: object = module
    *classes, name = target.split(".")
    for each in classes:
        holder = getattr(holder, each, None)
    found = vars(holder).get(name) if holder is not None else None
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, functools.cached_property):
        found = found.func
    elif isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if callable(found):
        found = inspect.unwrap(found)
    if not isinstance(found, types.FunctionType):
        raise DoesNotFit("it is not there")
    return found


def words_of(code: types.CodeType) -> set[object]:
    """The names and constants in a function's code and that of functions in it."""
    words: set[object] = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            words |= words_of(constant)
        elif isinstance(constant, (tuple, frozenset)):
            words |= set(constant)
        else:
            words.add(constant)
    return words


def exchanged(code: types.CodeType, names: Mapping[str, str], texts: Mapping[str, str]) -> types.CodeType:
    """The code with global names, attributes and texts exchanged."""

    def constant(value: object) -> object:
        if isinstance(value, types.CodeType):
            return exchanged(value, names, texts)
        if isinstance(value, (tuple, frozenset)):
            return type(value)(map(constant, value))
        return texts.get(value, value) if isinstance(value, str) else value

    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(map(constant, code.co_consts)),
    )


@dataclass(frozen=True)
class Exchange:
    """Exchanges names and texts in a function. All `names` must be in it, or where there are none one of the texts."""

    target: str  # "Class.function" or "function"
    upstream: str  # what of the package's code this is for
    names: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)  # names that may be in it
    only_if: Callable[[], bool] = lambda: True

    def apply(self, module: types.ModuleType) -> None:
        """Changes the function of the module."""
        if not self.only_if():
            return
        function = function_of(module, self.target)
        words = words_of(function.__code__)
        if missing := [name for name in self.names if name not in words]:
            raise DoesNotFit(f"there is no {' and no '.join(missing)} in it")
        if not self.names and not words.intersection(self.texts):
            raise DoesNotFit(f"none of {', '.join(self.texts)} is in it")
        function.__globals__.setdefault("is_ocl_available", is_ocl_available)
        function.__code__ = exchanged(function.__code__, {**self.attributes, **self.names}, self.texts)


def branch_of(vendor: str, target: str, upstream: str, question: str = "is_{}_available") -> Exchange:
    """Makes a vendor's branch ocl's: `if is_npu_available(): return torch.npu.x(device=f"npu:{i}")`."""
    texts = {vendor: "ocl", f"{vendor}:": "ocl:", f"{vendor}:0": "ocl:0", vendor.upper(): "OCL"}
    texts[f"torch_{vendor}_manual_seed"] = "torch_ocl_manual_seed"
    return Exchange(target, upstream, {question.format(vendor): "is_ocl_available"}, texts, {vendor: "ocl"})


@dataclass(frozen=True)
class Allow:
    """Adds "ocl" to a tuple of device types that a function has as a constant."""

    target: str
    upstream: str
    beside: str = "npu"  # a word by which the tuple is found

    def apply(self, module: types.ModuleType) -> None:
        """Changes the function of the module."""
        function = function_of(module, self.target)
        code = function.__code__

        def has_it(constant: object) -> bool:
            return isinstance(constant, tuple) and self.beside in constant

        if not any(map(has_it, code.co_consts)):
            raise DoesNotFit(f"it has no list with {self.beside!r}")
        function.__code__ = code.replace(
            co_consts=tuple((*constant, "ocl") if has_it(constant) else constant for constant in code.co_consts)
        )


@dataclass(frozen=True)
class Wrap:
    """Puts a function around one of the module's, or around a method. Modules that have imported a function before
    keep the inner one.
    """

    target: str
    upstream: str
    around: Callable[[Any], Any]

    def apply(self, module: types.ModuleType) -> None:
        """Changes the attribute of the module or class."""
        owner, _, name = self.target.rpartition(".")
        holder: object = getattr(module, owner, None) if owner else module
        found = vars(holder).get(name) if holder is not None else None
        if found is None:
            raise DoesNotFit("it is not there")
        if isinstance(found, staticmethod):
            setattr(holder, name, staticmethod(self.around(found.__func__)))
        else:
            setattr(holder, name, self.around(found))


class Patch(Protocol):
    """A change to one function or class of a module."""

    @property
    def target(self) -> str:
        """The function."""

    @property
    def upstream(self) -> str:
        """The part of the package's code that the change is for."""

    def apply(self, module: types.ModuleType) -> None:
        """Makes the change. DoesNotFit where the module is another one than it was written for."""
