# SPDX-License-Identifier: Apache-2.0
"""Every public name has a docstring with the shapes of arrays, or a reference to them."""

import inspect
import re

import gumbel
import pytest

FUNCTIONS = [name for name in gumbel.__all__ if inspect.isfunction(getattr(gumbel, name))]
CLASSES = [name for name in gumbel.__all__ if inspect.isclass(getattr(gumbel, name))]
SHAPE = re.compile(r"\[[\w()/., |]+\]")
OF_ANOTHER = re.compile(r"\b(?:as|for) (\w+)\(")


def shapes_of(name, seen=()):
    """The shapes in a function's docstring, or of the function that it refers to."""
    text = getattr(gumbel, name).__doc__ or ""
    others = [other for other in OF_ANOTHER.findall(text) if other in FUNCTIONS]
    found = SHAPE.findall(text)
    for other in others:
        if not found and other not in seen:
            found = shapes_of(other, (*seen, name))
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_state_shapes(name):
    function = getattr(gumbel, name)
    assert inspect.getdoc(function), name
    kinds = str(inspect.signature(function))
    if "Array" in kinds or "NDArray" in kinds:
        assert shapes_of(name), f"{name}() gives no shape"


@pytest.mark.parametrize("name", CLASSES)
def test_methods_are_explained(name):
    kind = getattr(gumbel, name)
    assert inspect.getdoc(kind), name
    for method, function in vars(kind).items():
        if inspect.isfunction(function) and not method.startswith("_"):
            assert inspect.getdoc(function), f"{name}.{method}()"


def with_common():
    """Functions and methods whose documentation includes the shared arguments."""
    owners = [gumbel, *(getattr(gumbel, name) for name in CLASSES)]
    found = [f for owner in owners for f in vars(owner).values() if inspect.isfunction(f)]
    return [f for f in found if "Parameters of every call" in (f.__doc__ or "")]


@pytest.mark.parametrize("function", with_common(), ids=lambda f: f.__qualname__)
def test_help_has_the_arguments_that_are_accepted(function):
    explained = function.__doc__.partition("Parameters of every call")[2].partition("\n\n")[2]
    entries = re.findall(r"^(\w+(?:, \w+)*)(?: |$)", explained, re.M)
    names = {name for entry in entries for name in entry.split(", ")}
    accepted = set(inspect.signature(function).parameters)
    assert names <= accepted, names - accepted
    assert {"temperature", "domain"} <= names


def test_shapes_and_shared_arguments_are_found():
    assert len(with_common()) > 15
    assert len(FUNCTIONS) > 15 and len(CLASSES) > 5
