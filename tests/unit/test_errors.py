"""The tree of exceptions, and what each of them carries."""

import pickle

import pytest

import graphjit
from graphjit import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, Exception)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_one_base_class_catches_everything(kind):
    """Errors are GraphjitErrors, warnings are GraphjitWarnings; both are drawn in the module."""
    base = errors.GraphjitWarning if issubclass(kind, Warning) else errors.GraphjitError
    assert issubclass(kind, base)
    assert kind.__name__ in errors.__doc__
    assert f"graphjit.{kind.__qualname__}" in repr(kind)


def test_the_drawing_is_the_tree():
    """The indentation of a name in the docstring is its depth below the base class."""
    for line in errors.__doc__.splitlines():
        name = next((w for w in line.replace("─", " ").split() if w.endswith("Error")), "")
        if line.startswith("    ") and hasattr(errors, name):
            depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
            assert len(getattr(errors, name).__mro__) - 4 >= depth
            mro = [c for c in getattr(errors, name).__mro__ if c in CLASSES]
            assert len(mro) - 1 == depth


def test_driver_errors_carry_call_name_and_code():
    """The message has all of them, and the detail if there is one."""
    error = graphjit.DriverError("cuGraphLaunch", "CUDA_ERROR_INVALID_VALUE", 1, "not uploaded")
    assert str(error) == "cuGraphLaunch failed: CUDA_ERROR_INVALID_VALUE (1): not uploaded"
    assert (error.call, error.name, error.code) == (
        "cuGraphLaunch",
        "CUDA_ERROR_INVALID_VALUE",
        1,
    )
    assert str(graphjit.DriverError("f", "E", 2)) == "f failed: E (2)"


def test_a_signature_error_is_a_type_error():
    """Code that expects Python's own error for a bad argument catches it."""
    assert issubclass(graphjit.SignatureError, TypeError)


def test_errors_without_a_result_have_none():
    """``eager_result`` is there on every error."""
    assert graphjit.CaptureError("text").eager_result is None


def test_errors_can_be_sent_to_another_process():
    """A text and a class survive pickling."""
    error = pickle.loads(pickle.dumps(graphjit.CaptureError("text")))
    assert (type(error), str(error)) == (graphjit.CaptureError, "text")
