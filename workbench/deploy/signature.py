"""A class of options as the signature of a method and as a section of a docstring."""

from __future__ import annotations

import functools
import inspect
import json
import textwrap
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, get_type_hints

from workbench.errors import closest
from workbench.launch.options import ClusterOption, options

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Options = TypeVar("_Options")
_Self = TypeVar("_Self")
_LINE_LENGTH = 112


def takes(
    make: Callable[_P, _Options],
) -> Callable[[Callable[[_Self, _Options], _T]], Callable[Concatenate[_Self, _P], _T]]:
    """Give a method that takes a value of a class of options the signature and the types of that class."""

    def decorate(method: Callable[[_Self, _Options], _T]) -> Callable[Concatenate[_Self, _P], _T]:
        self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        # Resolved here: the names in the annotations are those of the modules that define the classes.
        types = get_type_hints(make)
        parameters = [
            parameter.replace(annotation=types[name]) for name, parameter in inspect.signature(make).parameters.items()
        ]

        def wrapper(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                options = make(*args, **kwargs)
            except TypeError as error:
                message = f"{method.__qualname__}{str(error).partition('.__init__')[2]}"
                close = closest(message.partition("unexpected keyword argument ")[2].strip("'"), types)
                raise TypeError(f"{message}. Did you mean {close!r}?" if close else message) from None
            return method(self, options)

        functools.update_wrapper(wrapper, method)
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # `inspect.signature` reads it
            [self_parameter, *parameters], return_annotation=None
        )
        return wrapper

    return decorate


def documented(of: type) -> Callable[[type[_T]], type[_T]]:
    """Replace ``{parameters}`` in a docstring by the options of a class of options."""

    def decorate(cls: type[_T]) -> type[_T]:
        parameters = "\n".join(map(_parameter, options(of)))
        cls.__doc__ = inspect.cleandoc(cls.__doc__ or "").replace("{parameters}", parameters)
        return cls

    return decorate


def _parameter(option: ClusterOption) -> str:
    names = {"Sequence[str]": "sequence of str", "Any": ""}
    kind = " or ".join(names.get(kind, kind) for kind in option.kinds)
    if option.choices:
        kind = json.dumps(option.choices).replace("[", "{").replace("]", "}")
    default = "optional" if option.default is None else f"default={option.default!r}".replace("'", '"')
    types = ", ".join(filter(None, (kind, default)))
    text = textwrap.fill(option.doc, _LINE_LENGTH, break_on_hyphens=False)
    return f"{option.name} : {types}\n{textwrap.indent(text, '    ')}"
