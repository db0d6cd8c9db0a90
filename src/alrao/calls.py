"""Notice calls of methods of plain modules, without a wrapper around them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PICKLING = "__reduce_ex__"  # what copy and pickle call; they look for it in the object first
Report = Callable[..., None]


def watch_calls(module: nn.Module, name: str, report: Report, *, keep: bool = False) -> None:
    """Report each call of a method of one module, after it has returned."""
    # Hooks would be slower, and torch.save(net) would save them.
    watch = _Watch.of(module) or _Watch(module)
    of_module = weakref.ref(module)
    ended = weakref.WeakMethod(report, lambda _: unwatch_calls(of_module(), name))
    watch.put(name)
    watch.reports.setdefault(name, []).append((lambda: report) if keep else ended)


def unwatch_calls(module: nn.Module | None, name: str, report: Report | None = None) -> None:
    """End what :func:`watch_calls` began; after the last report the module is as it was before."""
    if (watch := _Watch.of(module)) is not None and name in watch.reports:
        watch.reports[name] = [each for each in watch.reports[name] if each() not in (None, report)]
        watch.tidy()


def watch_inputs(module: nn.Module, report: Report) -> None:
    """Report the inputs of each forward pass of a module before it, except inside compiled code."""
    watch, of_module = _Watch.of(module) or _Watch(module), weakref.ref(module)

    def hook(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling() and called is of_module():  # not a replica of it
            report(called, args, kwargs)

    if report not in watch.hooks:  # before those of the user, which may change the inputs
        watch.hooks[report] = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)


def unwatch_inputs(module: nn.Module, report: Report) -> None:
    """End what :func:`watch_inputs` began."""
    if (watch := _Watch.of(module)) is not None and report in watch.hooks:
        watch.hooks.pop(report).remove()
        watch.tidy()


class _Watch:
    """What is watched of a module: methods in its own ``__dict__``, before those of its class, and hooks."""

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.former: dict[str, Any] = {}  # what stood there before: the user may have methods there too
        self.reports: dict[str, list[Callable[[], Report | None]]] = {}
        self.hooks: dict[Report, Any] = {}
        self.put(PICKLING)

    @staticmethod
    def of(module: nn.Module | None) -> _Watch | None:
        """Return what is watched of a module; None if nothing is."""
        method = None if module is None else module.__dict__.get(PICKLING)
        return method.watch if isinstance(method, _Method) else None

    def put(self, name: str) -> None:
        """Put a method into the module, in place of what stands there."""
        module = self.module()
        if module is not None and not isinstance(module.__dict__.get(name), _Method):
            self.former[name] = module.__dict__.get(name)
            module.__dict__[name] = _Method(self, name)

    def tidy(self) -> None:
        """Put back what is not watched any more."""
        self.reports = {name: reports for name, reports in self.reports.items() if reports}
        kept = {*self.reports, PICKLING} if self.reports or self.hooks else set()
        if (module := self.module()) is not None:
            for name in self.former.keys() - kept:
                if isinstance(module.__dict__.get(name), _Method):
                    del module.__dict__[name]
                    if (former := self.former.pop(name)) is not None:
                        module.__dict__[name] = former

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a method of the module returns, and report the call."""
        module, former = self.module(), self.former.get(name)
        method = former or getattr(type(module), name).__get__(module)
        result = method(*args, **kwargs)
        if name == PICKLING:
            return self.plain(result)
        for each in list(self.reports.get(name, ())):
            if (report := each()) is not None:
                report(module, *args, **kwargs)
        return result

    def plain(self, state: Any) -> Any:
        """Return the module's state without what this file has put into it."""
        if type(state) is tuple:
            return tuple(map(self.plain, state))
        if not isinstance(state, dict) or not isinstance(state.get(PICKLING), _Method):
            return state
        before = {name: former for name, former in self.former.items() if former is not None}
        state = {key: each for key, each in state.items() if not isinstance(each, _Method)} | before
        ours = {handle.id for handle in self.hooks.values()}
        for name in ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"):
            if ours:
                state[name] = OrderedDict((key, each) for key, each in state[name].items() if key not in ours)
        return state


class _Method:
    """A method in a module's own ``__dict__``."""

    def __init__(self, watch: _Watch, name: str) -> None:
        self.watch, self.name = watch, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.watch.call(self.name, *args, **kwargs)

    def __reduce__(self) -> Any:
        return getattr, (self.watch.module(), self.name)  # for a module that copies its ``__dict__`` itself
