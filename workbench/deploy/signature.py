"""A class of options as the signature of a method and as a section of a docstring."""

from __future__ import annotations

import functools
import inspect
import json
import textwrap
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from workbench.launch.options import ClusterOption, options

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Given = TypeVar("_Given")
_Self = TypeVar("_Self")
# Characters of a line.
_WIDTH = 112


def takes(
    make: Callable[_P, _Given],
) -> Callable[[Callable[[_Self, _Given], _T]], Callable[Concatenate[_Self, _P], _T]]:
    """Give a method, which takes a value of a class of options, the signature of that class."""

    def decorate(method: Callable[[_Self, _Given], _T]) -> Callable[Concatenate[_Self, _P], _T]:
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        theirs = inspect.signature(make)
        signature = theirs.replace(parameters=[itself, *theirs.parameters.values()], return_annotation=None)

        def wrapper(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                given = make(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{method.__qualname__}{str(error).partition('.__init__')[2]}") from None
            return method(self, given)

        functools.update_wrapper(wrapper, method)
        wrapper.__signature__ = signature  # type: ignore[attr-defined]  # `inspect.signature` reads it
        return wrapper

    return decorate


def documented(of: type) -> Callable[[type[_T]], type[_T]]:
    """Write the options of a class of options in the place of ``{parameters}`` in a docstring."""

    def decorate(cls: type[_T]) -> type[_T]:
        parameters = "\n".join(map(_parameter, options(of)))
        cls.__doc__ = inspect.cleandoc(cls.__doc__ or "").replace("{parameters}", parameters)
        return cls

    return decorate


def _parameter(each: ClusterOption) -> str:
    names = {"Sequence[str]": "sequence of str", "Any": ""}
    kind = " or ".join(names.get(kind, kind) for kind in each.kinds)
    if each.choices:
        kind = json.dumps(each.choices).replace("[", "{").replace("]", "}")
    about = ", ".join(filter(None, (kind, "optional" if each.default is None else "")))
    text = textwrap.fill(each.doc, _WIDTH, break_on_hyphens=False)
    return f"{each.name} : {about}\n{textwrap.indent(text, '    ')}"
