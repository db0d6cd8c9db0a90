"""Notice the mode of plain modules, and loads into them, without a wrapper around them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["Followed"]


class Followed:
    """A method of one module, in the module's own ``__dict__``, that reports each call after it has returned.

    torch calls ``train`` of a module for its ``eval`` and for ``train`` of whatever contains it, and
    ``_load_from_state_dict`` for a load through any of them. Hooks would be slower, and ``torch.save(net)``
    would save them. A copy or a pickle of the module has the method of its class instead, so loading it needs
    nothing of alrao.

    Args:
        module: the module.
        name: the name of the method.
        report: a bound method to call after it, with the module and the arguments; its object is not kept
            alive.
    """

    def __init__(self, module: nn.Module, name: str, report: Callable[..., None]) -> None:
        self._module = weakref.ref(module)
        self._name = name
        self._report: Callable[[], Any] = weakref.WeakMethod(report)
        self.former = module.__dict__.get(name)
        """Another one on the same module, which is called too."""
        module.__dict__[name] = self

    @property
    def reader(self) -> Any:
        """The object to which calls are reported, if it still exists."""
        report = self._report()
        return None if report is None else report.__self__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the method returns, after the report."""
        module = self._module()
        if self.former is not None:
            result = self.former(*args, **kwargs)
        else:
            result = getattr(type(module), self._name)(module, *args, **kwargs)
        report = self._report()
        if report is not None:
            report(module, *args, **kwargs)
        return result

    def __reduce__(self) -> Any:
        return getattr, (self._module(), self._name)

    def stop(self) -> None:
        """Report no more calls, and put back what was there before."""
        self._report = _no_report
        module = self._module()
        if module is not None and module.__dict__.get(self._name) is self:
            if self.former is None:
                del module.__dict__[self._name]
            else:
                module.__dict__[self._name] = self.former


def _no_report() -> Any:
    return None
