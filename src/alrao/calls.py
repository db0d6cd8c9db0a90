"""Notice calls of methods of plain modules, without a wrapper around them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PICKLING = "__reduce_ex__"  # what copy and pickle call; they look for it in the object first


def watch_calls(module: nn.Module, name: str, report: Callable[..., None], *, keep: bool = False) -> None:
    """Report each call of a method of one module, after it has returned."""
    # Hooks would be slower, and torch.save(net) would save them.
    watched = module.__dict__.get(name)
    if not isinstance(watched, _Watched):
        _pickle_without(module)
        watched = _Watched(module, name)
    of_module = weakref.ref(module)
    ended = weakref.WeakMethod(report, lambda _: unwatch_calls(of_module(), name))
    watched.reports.append((lambda: report) if keep else ended)


def unwatch_calls(module: nn.Module | None, name: str, report: Callable[..., None] | None = None) -> None:
    """End what :func:`watch_calls` began; after the last report the module is as it was before."""
    own = {} if module is None else module.__dict__
    if not isinstance(watched := own.get(name), _Watched):
        return
    watched.reports = [each for each in watched.reports if each() not in (None, report)]
    if not watched.reports:
        watched.remove()
    _pickle_as_before(module)


def watch_inputs(module: nn.Module, report: Callable[..., None]) -> None:
    """Report the inputs of each forward pass of a module before it, except inside compiled code."""
    if any(hook.report == report for hook in _hooks(module.__dict__)):
        return
    _pickle_without(module)
    hook = _Hook(module, report)
    # Before those of the user, which may change the inputs.
    hook.handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)


def unwatch_inputs(module: nn.Module, report: Callable[..., None]) -> None:
    """End what :func:`watch_inputs` began."""
    for hook in _hooks(module.__dict__):
        if hook.report == report:
            hook.handle.remove()
    _pickle_as_before(module)


def _pickle_without(module: nn.Module) -> None:
    """Let copies and pickles of a module be without what this file puts into it."""
    if not isinstance(module.__dict__.get(PICKLING), _Pickled):
        _Pickled(module, PICKLING)


def _pickle_as_before(module: nn.Module | None) -> None:
    own = {} if module is None else module.__dict__
    watched = bool(_hooks(own)) or any(isinstance(each, _Watched) for each in own.values())
    if not watched and isinstance(pickled := own.get(PICKLING), _Pickled):
        pickled.remove()


class _Hook:
    """A forward pre-hook of one module, not of its replicas."""

    handle: Any = None

    def __init__(self, module: nn.Module, report: Callable[..., None]) -> None:
        self._module = weakref.ref(module)
        self.report = report

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling() and module is self._module():
            self.report(module, args, kwargs)


def _hooks(own: dict[str, Any]) -> list[_Hook]:
    return [each for each in own.get("_forward_pre_hooks", {}).values() if isinstance(each, _Hook)]


class _Method:
    """A method in a module's own ``__dict__``, which precedes that of its class."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = weakref.ref(module)
        self._name = name
        self.former = module.__dict__.get(name)  # the user may have one there too
        module.__dict__[name] = self

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the method returns without this one."""
        if self.former is not None:
            return self.former(*args, **kwargs)
        module = self._module()
        return getattr(type(module), self._name)(module, *args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self._module(), self._name)  # for a module that copies its ``__dict__`` itself

    def remove(self) -> None:
        """Put back what was there before."""
        module = self._module()
        if module is not None and module.__dict__.get(self._name) is self:
            del module.__dict__[self._name]
            module.__dict__.update(_plain({self._name: self}))


class _Watched(_Method):
    """A method that reports its calls."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.reports: list[Callable[[], Callable[..., None] | None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.call(*args, **kwargs)
        for each in list(self.reports):
            if (report := each()) is not None:
                report(self._module(), *args, **kwargs)
        return result


class _Pickled(_Method):
    """A method that returns what is to be pickled, without the methods of this file."""

    def __call__(self, *args: Any) -> Any:
        return _plain(self.call(*args))


def _plain(state: Any) -> Any:
    """Return a module's state without the methods of this file, and with the user's in their place."""
    if type(state) is tuple:
        return tuple(map(_plain, state))
    if not isinstance(state, dict):
        return state
    if _hooks(state):
        hooks = [
            (key, each) for key, each in state["_forward_pre_hooks"].items() if not isinstance(each, _Hook)
        ]
        with_kwargs = [(key, True) for key, _ in hooks if key in state["_forward_pre_hooks_with_kwargs"]]
        state = {**state, "_forward_pre_hooks": OrderedDict(hooks)}
        state["_forward_pre_hooks_with_kwargs"] = OrderedDict(with_kwargs)
    if not any(isinstance(each, _Method) for each in state.values()):
        return state
    former = {key: each.former if isinstance(each, _Method) else each for key, each in state.items()}
    return {key: each for key, each in former.items() if each is not None or state[key] is None}
