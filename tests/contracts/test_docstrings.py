"""Docstrings of public names: what is passed, with types and defaults, what is returned, what a fit leaves."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from workbench import ml

PUBLIC = [getattr(ml, name) for name in sorted(ml.__all__)]
CLASSES = [public for public in PUBLIC if inspect.isclass(public)]
ESTIMATORS = [public for public in CLASSES if issubclass(public, BaseEstimator) and public is not ml.Recipe]
FUNCTIONS = [
    *(public for public in PUBLIC if not inspect.isclass(public)),
    *(
        method
        for each in CLASSES
        for name, method in inspect.getmembers(each, inspect.isfunction)
        if not name.startswith("_") and method.__module__.startswith("workbench")
    ),
]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "api.rst"
HEADER = re.compile(r"^(\w[\w ]*)\n-+\n", re.MULTILINE)


def section(thing, title):
    """Return the entries of a section of a docstring: what is before the colon, behind it, and the text below."""
    parts = HEADER.split(inspect.getdoc(thing) or "")
    text = dict(zip(parts[1::2], parts[2::2], strict=True)).get(title, "")
    entries = re.findall(r"^(\S.*)\n((?:    .*\n?|\n)*)", text.rstrip() + "\n", re.MULTILINE)
    return [(*line.partition(" : ")[::2], " ".join(below.split())) for line, below in entries]


def by_name(thing, title):
    """Return type and text of each name in a section; those of another class for names with "See" and that class."""
    found = {}
    for names, kind, text in section(thing, title):
        # Of another class, or of another method of the same one.
        elsewhere = re.match(r"See `{1,2}(\w+)`", text)
        there = by_name(getattr(ml, elsewhere[1]), title) if elsewhere and elsewhere[1] in ml.__all__ else {}
        for name in names.split(", "):
            found[name] = there.get(name, (kind or (elsewhere and elsewhere[1]), text))
    return found


def parameters(function):
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: public.__name__)
def test_parameters_of_classes_have_types_and_defaults(public):
    documented = by_name(public, "Parameters")
    expected = parameters(public)

    assert list(documented) == [parameter.name for parameter in expected]
    for parameter in expected:
        kind, text = documented[parameter.name]
        default = re.search(r"default=(.+)$", kind)
        found = ast.literal_eval(default[1]) if default else parameter.empty
        assert "" not in {kind, text}, parameter
        assert found == parameter.default, parameter


@pytest.mark.parametrize("function", dict.fromkeys(FUNCTIONS), ids=lambda function: function.__qualname__)
def test_functions_have_types_of_what_is_passed_and_returned(function):
    documented = by_name(function, "Parameters")

    assert [name.lstrip("*") for name in documented] == [parameter.name for parameter in parameters(function)]
    assert all(kind and text for kind, text in documented.values()), documented
    assert section(function, "Returns"), "nothing is said of what is returned"


@pytest.mark.parametrize("public", ESTIMATORS, ids=lambda public: public.__name__)
def test_the_attributes_of_a_fitted_estimator_are_documented(public):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    fitted = public().fit(rows, np.arange(40) % 2)
    found = {name for name in vars(fitted) if name.endswith("_") and not name.startswith("_")}
    documented = by_name(public, "Attributes")

    assert set(documented) == found
    assert all(kind and text for kind, text in documented.values()), documented


def public_names():
    """Return what the reference lists, by its name: functions, classes and their public methods."""
    found, module = {}, ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.removeprefix(".. currentmodule:: ")
        elif re.fullmatch(r"   [\w.]+", line):
            home, _, name = f"{module}.{line.strip()}".rpartition(".")
            thing = getattr(importlib.import_module(home), name)
            found[f"{home}.{name}"] = thing
            if inspect.isclass(thing):
                found |= {
                    f"{home}.{name}.{method}": getattr(value, "__func__", value)
                    for method, value in vars(thing).items()
                    if not method.startswith("_") and inspect.isfunction(getattr(value, "__func__", value))
                }
    return found


# A dataclass documents its fields, and the tests above are for the estimators.
REFERRED = {
    name: thing
    for name, thing in public_names().items()
    if not name.startswith("workbench.ml.") and not hasattr(thing, "__dataclass_fields__")
}


@pytest.mark.parametrize("name", REFERRED)
def test_the_reference_has_types_of_what_is_passed_and_returned(name):
    thing = REFERRED[name]
    documented = {name.lstrip("*"): kind for name, (kind, _) in by_name(thing, "Parameters").items()}
    expected = [each for each in parameters(thing) if each.name != "cls"]

    assert {each.name for each in expected} <= set(documented)
    assert [name for name, kind in documented.items() if not kind] == []
    found = by_name(thing, "Parameters")
    unstated = [
        each.name
        for each in expected
        if each.default not in {each.empty, None}
        and each.name in found
        and "default=" not in found[each.name][0]
        # Those of another function are there.
        and "See " not in found[each.name][1]
    ]
    assert unstated == []
    returned = inspect.signature(thing).return_annotation
    if inspect.isfunction(thing) and returned not in {"None", "NoReturn", None}:
        assert section(thing, "Returns") or section(thing, "Yields"), "nothing is said of what is returned"
