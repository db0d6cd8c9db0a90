"""A module that stands for a network: the same parameters, children and names, the same signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any, Self

from torch import Tensor, nn

from .runtime.sharding import plain_class

SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""What torch keeps of a module and the wrapper has in common with its network: the very same containers."""


class Wrapper(nn.Module):
    """A module whose parameters, buffers, children and plain attributes are those of ``net``.

    Names are the network's own, in ``named_parameters()`` and in ``state_dict()``, so that tools that go by
    names, and checkpoints of the network, work with either. An attribute that is set reaches the network,
    unless the wrapper has one of that name; a new one that starts with an underscore stays with the wrapper.
    """

    net: nn.Module
    """The network."""

    def stand_for(self, net: nn.Module) -> None:
        """Take the parameters, children and names of a network."""
        self.__dict__["net"] = net
        for name in SHARED:
            self.__dict__[name] = net.__dict__[name]
        self.__dict__["_version"] = net._version  # by which the network tells its older checkpoints
        # Tools read forward's signature to learn what the network takes: show them the network's.
        plain = type(self).forward
        forward = FunctionType(plain.__code__, plain.__globals__, "forward", None, plain.__closure__)
        try:
            inner = inspect.signature(net.forward)
        except (TypeError, ValueError):  # compiled code has none
            return
        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if "self" not in inner.parameters:
            forward.__signature__ = inner.replace(parameters=[this, *inner.parameters.values()])  # type: ignore[attr-defined]
        forward.__doc__ = net.forward.__doc__
        self.__dict__["forward"] = MethodType(forward, self)

    # The class: isinstance() asks for the type of an object, and for its ``__class__`` if that does not fit.

    @property
    def __class__(self) -> Any:
        """The class of the network, so that ``isinstance(model, Net)`` holds."""
        net = self.__dict__.get("net")
        if net is None or net is self.__dict__.get("head") or hasattr(net, "__getitem__"):
            return type(self)
        return plain_class(net)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        # A tool puts a class before the one that it sees, as fully_shard does: put it before the type.
        bases = tuple(type(self) if base is self.__class__ else base for base in kind.__bases__)
        own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        vars(object)["__class__"].__set__(self, type(kind.__name__, bases, own))

    def _get_name(self) -> str:
        return type(self).__name__

    def __reduce__(self) -> Any:
        # By default pickle refuses an object whose ``__class__`` is not its type.
        return object.__new__, (type(self),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        left = {"forward", *SHARED}
        return {key: value for key, value in super().__getstate__().items() if key not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({key: value for key, value in state.items() if key != "net"})
        self.stand_for(state["net"])

    # Attributes.

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "net" not in self.__dict__:  # not there yet
                raise
            return getattr(self.net, name)

    def __setattr__(self, name: str, value: Any) -> None:
        net = self.__dict__.get("net")
        if net is None:
            super().__setattr__(name, value)
        elif name in self.__dict__ or hasattr(type(self), name):
            if isinstance(value, nn.Module | nn.Parameter):
                raise AttributeError(
                    f"{name!r} is an attribute of {type(self).__name__} itself: set that of the network, "
                    f"model.net.{name}, before it is converted"
                )
            if name == "training":
                net.training = value
            object.__setattr__(self, name, value)
        elif isinstance(value, nn.Module | nn.Parameter) or hasattr(net, name) or not name.startswith("_"):
            setattr(net, name, value)
        else:
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self.net, name)

    # What torch does module by module, and a network may do in its own way.

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return all modules as in torch: this one, and those of the network under their own names."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.net.named_modules(memo, prefix, remove_duplicate)

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Apply a function to every module of the network, as in torch."""
        self.net.apply(fn)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.net._apply(fn) if recurse else self.net._apply(fn, recurse)
        return self

    def _save_to_state_dict(self, *args: Any) -> None:
        self.net._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.net._load_from_state_dict(*args)
