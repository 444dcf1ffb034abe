"""Arguments in one form: a function that Python itself binds."""

import functools
import inspect

import pytest

from graphjit._binding import count_positional, make_binder


def plain(a, b=2):
    pass


def all_kinds(a, b, /, c, d=4, *rest, key, other=6, **more):
    pass


def by_keyword_only(*, key=1):
    pass


def names_that_collide(default_0, default_1=7, bind=8, args=9, kwargs=10):
    pass


class Holder:
    def method(self, x: "int" = 1) -> None:
        pass

    def __call__(self, x, y=None):
        pass


FUNCTIONS = [
    plain,
    all_kinds,
    by_keyword_only,
    names_that_collide,
    lambda x, y=float("nan"): None,
    functools.partial(plain, b=5),
    functools.partial(all_kinds, 1),
    Holder.method,
    Holder().method,
    Holder(),
    lambda *args, **kwargs: None,
]
CALLS = [
    ((), {}),
    ((1,), {}),
    ((1, 2, 3), {}),
    ((1, 2, 3), {"key": 4}),
    ((1, 2, 3, 4, 5, 6), {"key": 7, "new": 8}),
    ((1,), {"b": 3}),
    ((), {"b": 3, "a": 1}),
    ((1,), {"y": 2}),
    ((), {"key": 9}),
    ((1,), {"default_1": 2, "kwargs": 3}),
]


@pytest.mark.parametrize(
    "fn", FUNCTIONS, ids=lambda fn: type(fn).__name__ + str(inspect.signature(fn))
)
def test_the_binder_does_what_inspect_does(fn):
    """Equal arguments, keywords in the same order, and a TypeError for the same calls."""
    signature = inspect.signature(fn)
    bind = make_binder(fn, signature)
    n_bound = 0
    for args, kwargs in CALLS:
        try:
            expected = signature.bind(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                bind(*args, **kwargs)
            continue
        expected.apply_defaults()
        found = bind(*args, **kwargs)
        assert repr(found) == repr((expected.args, expected.kwargs))
        assert list(found[1]) == list(expected.kwargs)
        n_bound += 1
    assert n_bound > 0


def test_an_error_is_that_of_the_function():
    """What is missing is said in Python's words, with the function's name."""
    bind = make_binder(Holder.method, inspect.signature(Holder.method))
    with pytest.raises(TypeError, match=r"^Holder\.method\(\) missing 1 required positional"):
        bind()


def test_defaults_are_the_very_objects():
    """A default is taken as it is, not written and read again."""
    given = object()

    def fn(x=given):
        pass

    assert make_binder(fn, inspect.signature(fn))()[0][0] is given


def test_positional_parameters_are_counted():
    """Functions of nothing else are called without binding; nothing is known of some."""
    counts = [count_positional(inspect.signature(fn)) for fn in FUNCTIONS[:4]]
    assert counts == [2, -1, -1, 5]
    assert count_positional(None) == -1
    assert make_binder(print, None) is None
