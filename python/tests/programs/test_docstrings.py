# SPDX-License-Identifier: Apache-2.0
"""What is public has a docstring, which gives the shapes of arrays or says whose they are."""

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
def test_functions_say_shapes(name):
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


def test_both_are_found():
    assert len(FUNCTIONS) > 15 and len(CLASSES) > 5
