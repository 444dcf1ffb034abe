"""What a function reaches without being given it is seen when it changes, or refused."""

import argparse
import collections
import ctypes
import dataclasses
import functools
import sys
import types
from typing import ClassVar

import numpy as np
import pytest
from helpers.flow_checks import agrees, normal, same_bits

import graphjit
from graphjit import graphed
from graphjit.testing import simulated as xp

weight = None
scale = 2.0


def scaled_by_seven(x):
    return x * 7


class Base:
    factor = 2.0

    def shift(self, x):
        return x + 1


class Model(Base):
    def __init__(self):
        self.w = normal(8, 8)
        self.layers = [normal(8, 8), normal(8, 8)]
        self.biases = {"a": normal(8), "b": normal(8)}
        self.part = types.SimpleNamespace(w=normal(8))
        self.host = np.arange(8.0)
        self.flag = False

    def plain(self, x):
        for layer in self.layers:
            x = x @ layer
        for key in self.biases:
            x = x + self.biases[key]
        if self.flag:
            x = -x
        x = self.shift(x) + xp.asarray(self.host)
        return (x @ self.w) * self.factor + self.part.w


def replace_weight(model):
    model.w = normal(8, 8)


def replace_layer(model):
    model.layers[1] = normal(8, 8)


def replace_list(model):
    model.layers = [normal(8, 8), normal(8, 8)]


def append_layer(model):
    model.layers.append(normal(8, 8))


def replace_dictionary_item(model):
    model.biases["b"] = normal(8)


def remove_dictionary_item(model):
    del model.biases["a"]


def reorder_dictionary(model):
    model.biases = dict(reversed(model.biases.items()))


def replace_part(model):
    model.part = types.SimpleNamespace(w=normal(8))


def replace_array_of_part(model):
    model.part.w = normal(8)


def write_into_weight(model):
    model.w[...] = 3


def shadow_class_attribute(model):
    model.factor = 5.0


def shadow_method(model):
    model.shift = lambda x: x * 3


def change_dtype(model):
    model.w = normal(8, 8).astype(np.float32)


def change_host_array(model):
    model.host[3] = 77.0


def set_flag(model):
    model.flag = True


CHANGES = [
    replace_weight,
    replace_layer,
    replace_list,
    append_layer,
    replace_dictionary_item,
    remove_dictionary_item,
    reorder_dictionary,
    replace_part,
    replace_array_of_part,
    write_into_weight,
    shadow_class_attribute,
    shadow_method,
    change_dtype,
    change_host_array,
    set_flag,
]


@pytest.mark.parametrize("how", ["method", "argument", "closure"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_attribute_is_seen(change, how):
    """Whatever changes in an object that a function uses is used by the next call."""
    model, x = Model(), normal(8, 8)
    if how == "closure":
        fn = graphed(lambda x: model.plain(x))
    else:
        of_object = graphed(Model.plain)
        fn = (lambda x: of_object(model, x)) if how == "argument" else of_object.__get__(model)
    for _ in range(2):
        assert same_bits(fn(x), model.plain(x))
    kept = model.w, list(model.layers)  # so that a stale address shows as a wrong number
    change(model)
    for _ in range(2):
        assert same_bits(fn(x), model.plain(x))
    assert len(kept) == 2


def test_a_replaced_weight_needs_no_new_capture():
    """An array of the same kind in the same attribute is re-pointed like an argument."""
    model = Model()
    fn = graphed(Model.plain)
    for _ in range(5):
        model.w = normal(8, 8)
        model.layers[0] = normal(8, 8)
        assert agrees(fn, Model.plain, model, normal(8, 8))
    assert fn.cache_info()[:2] == (4, 1)
    paths = fn.cache_entries()[0].implicit
    assert {"self.w", "self.layers[0]", "self.biases['a']", "self.part.w"} <= set(paths)


@pytest.mark.parametrize("owner", [Model, Base])
def test_a_changed_class_attribute_is_seen(monkeypatch, owner):
    """A number and a method that a class gives its instances are read anew."""
    model, x = Model(), normal(8, 8)
    fn = graphed(Model.plain)
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setattr(owner, "factor", factor, raising=False)
        assert same_bits(fn(model, x), model.plain(x))
    monkeypatch.setattr(owner, "shift", lambda self, x: x * 9, raising=False)
    assert same_bits(fn(model, x), model.plain(x))


def test_two_instances_do_not_share():
    """A graphed method uses the arrays of the instance that it is called on."""
    models = [Model(), Model()]
    fn = graphed(Model.plain)
    for _ in range(3):
        for model in models:
            x = normal(8, 8)
            assert same_bits(fn(model, x), model.plain(x))


def test_a_replaced_global_is_seen(monkeypatch):
    """A global array and a global number are read anew at each call."""

    def fn(x):
        return x * weight * scale

    graphed_fn = graphed(fn)
    kept = []
    for k in range(6):
        kept.append(normal(8))
        monkeypatch.setitem(globals(), "weight", kept[-1])
        monkeypatch.setitem(globals(), "scale", 1.0 + k // 3)
        assert agrees(graphed_fn, fn, normal(8))
    assert graphed_fn.cache_info()[:2] == (4, 2)


def test_a_global_that_hides_a_builtin_is_seen(monkeypatch):
    """A name that was a builtin at the first call may become a global of the module."""

    def fn(x):
        return x * abs(-2)

    graphed_fn = graphed(fn)
    assert same_bits(graphed_fn(xp.ones(2)), xp.full(2, 2.0))
    monkeypatch.setitem(globals(), "abs", lambda value: 5)
    assert same_bits(graphed_fn(xp.ones(2)), xp.full(2, 5.0))


def test_a_global_that_was_missing_is_seen(monkeypatch):
    """A name that the function did without may become a global of the module."""

    def fn(x):
        try:
            return x * appears_later
        except NameError:
            return x

    graphed_fn = graphed(fn)
    for _ in range(2):
        assert agrees(graphed_fn, fn, normal(2))
    monkeypatch.setitem(globals(), "appears_later", 5)
    assert agrees(graphed_fn, fn, normal(2))


def test_values_that_a_class_inherits():
    """A number of a base class or of the metaclass, reached through the class, is read anew."""

    class Meta(type):
        a = 2

    class Parent(metaclass=Meta):
        b = 2

    class Child(Parent):
        c = 2

    def fn(x):
        return x * Child.a + x * Child.b * 10 + x * Child.c * 100

    graphed_fn = graphed(fn)
    for owner, name in ((Meta, "a"), (Parent, "b"), (Child, "c"), (Child, "b"), (Child, "a")):
        for _ in range(2):
            assert agrees(graphed_fn, fn, normal(2))
        setattr(owner, name, getattr(owner, name) + 1)
    assert agrees(graphed_fn, fn, normal(2))
    assert graphed_fn.cache_info()[:2] == (5, 6)


def test_a_replaced_closure_variable_is_seen():
    """An array, a number and a NumPy array of an enclosing function are read anew."""
    w, factor, table = normal(6), 2, np.arange(6.0)

    def fn(x):
        return (x + w) * factor + xp.asarray(table)

    graphed_fn = graphed(fn)
    kept = [w]
    for k in range(8):
        w = normal(6)
        kept.append(w)
        factor = 2 + k // 4
        if k == 6:
            table[2] = 50  # in place: the same object
        assert agrees(graphed_fn, fn, normal(6))
    assert graphed_fn.cache_info().misses == 3


def test_a_closure_variable_that_is_freed():
    """A function whose closure variable was deleted fails as the plain one does."""
    w = normal(6)

    def fn(x):
        return x + w

    graphed_fn = graphed(fn)

    def forget():
        nonlocal w
        del w

    graphed_fn(normal(6))
    graphed_fn(normal(6))
    forget()
    with pytest.raises(NameError, match="w"):
        graphed_fn(normal(6))


def test_defaults_that_are_replaced():
    """A default that is an array, of the function or of a helper, is read anew."""

    def helper(x, w=normal(4)):  # noqa: B008 - the default is the subject
        return x + w

    def fn(x):
        return helper(x)

    graphed_fn = graphed(fn)
    for _ in range(4):
        assert agrees(graphed_fn, fn, normal(4))
        helper.__defaults__ = (normal(4),)


def test_a_helper_that_is_replaced():
    """A function that the function calls may be replaced by another."""
    helper = xp.sin

    def fn(x):
        return helper(x) * 2

    graphed_fn = graphed(fn)
    for replacement in (xp.sin, scaled_by_seven, xp.cos, scaled_by_seven):
        helper = replacement
        for _ in range(2):
            assert agrees(graphed_fn, fn, normal(6))


HOLDERS = {
    "SimpleNamespace": lambda: types.SimpleNamespace(value=2.0),
    "argparse": lambda: argparse.Namespace(value=2.0),
    "object": lambda: type("Plain", (), {"value": 2.0})(),
    "class": lambda: type("Plain", (), {"value": 2.0}),
    "slots": lambda: type("Slots", (), {"__slots__": ("value",)})(),
    "module": lambda: types.ModuleType("settings_of_a_program"),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_number_in_an_object_of_any_type(kind):
    """A number in a namespace, a module, a class or an object is read anew at each call."""
    holder = HOLDERS[kind]()

    def fn(x):
        return x * holder.value

    graphed_fn = graphed(fn)
    for value in (2.0, 2.0, 3.0, 3.0):
        holder.value = value
        assert agrees(graphed_fn, fn, normal(5))
    assert graphed_fn.cache_info().hits == 2


CONTAINERS = {
    "list": lambda: [1.0] * 3,
    "dict": lambda: dict.fromkeys(range(3), 1.0),
    "large list": lambda: [1.0] * 5000,
    "large dict": lambda: dict.fromkeys(range(5000), 1.0),
    "deque": lambda: collections.deque([1.0] * 3),
    "OrderedDict": lambda: collections.OrderedDict.fromkeys(range(3), 1.0),
    "defaultdict": lambda: collections.defaultdict(float, dict.fromkeys(range(3), 1.0)),
    "UserList": lambda: collections.UserList([1.0] * 3),
    "numpy": lambda: np.ones(3),
    "bytearray": lambda: bytearray(b"\1\1\1"),
    "nested": lambda: collections.ChainMap({0: 1.0}),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_number_in_a_container_of_any_type(kind):
    """A number in a container is read anew at each call."""
    holder = CONTAINERS[kind]()

    def fn(x):
        return x * holder[0]

    graphed_fn = graphed(fn)
    for value in (1, 1, 3, 3):
        holder[0] = value
        assert agrees(graphed_fn, fn, normal(5))


def test_a_set_in_a_closure():
    """A set that gains a member is seen."""
    switches = {"a"}

    def fn(x):
        return x * 2 if "b" in switches else x * 3

    graphed_fn = graphed(fn)
    for k in range(4):
        if k == 2:
            switches.add("b")
        assert agrees(graphed_fn, fn, normal(5))


def test_getattr_with_a_constant_name():
    """An attribute reached by getattr with a constant name, or absent at first, is read anew."""

    class Holder:
        pass

    holder = Holder()

    def fn(x):
        bias = getattr(holder, "bias", None)
        return x if bias is None else x + bias

    graphed_fn = graphed(fn)
    for bias in (None, None, normal(5), normal(5), normal(5), None):
        if bias is not None:
            holder.bias = bias
        elif hasattr(holder, "bias"):
            del holder.bias
        assert agrees(graphed_fn, fn, normal(5))


def test_getattr_with_a_computed_name():
    """An array reached by a name that the code does not spell is read anew at each call."""
    holder = types.SimpleNamespace(part=Model())
    vars(holder.part).clear()
    holder.part.w0 = normal(5)

    def fn(x, k):
        return x + getattr(next(iter(vars(holder).values())), f"w{k}")

    graphed_fn = graphed(fn)
    kept = []
    for _ in range(4):
        kept.append(holder.part.w0)
        assert agrees(graphed_fn, fn, normal(5), 0)
        holder.part.w0 = normal(5)


def test_an_array_that_cannot_be_seen_is_refused():
    """An array that no name leads to is found by its address, and the error says so."""
    hidden = iter([normal(5)] * 2)
    with pytest.raises(graphjit.AnalysisError, match="no argument"):
        graphed(lambda x: x + next(hidden))(normal(5))


def test_an_unseen_array_behind_a_watched_one_is_refused():
    """An unseen array that begins where a watched one ends is not taken for a part of it."""
    base = normal(256)
    seen = base[:128]
    hidden = iter([base[128:]] * 2)
    with pytest.raises(graphjit.AnalysisError):
        graphed(lambda x: x + seen + next(hidden))(normal(128))


def test_an_implicit_array_without_elements():
    """An empty array in a closure may be used, and a view of it returned."""
    empty = xp.empty(0)

    def fn(x):
        return xp.concatenate([x, empty]), empty[:0]

    graphed_fn = graphed(fn)
    for _ in range(3):
        assert agrees(graphed_fn, fn, normal(5))
    assert graphed_fn.cache_info().hits == 2


def test_implicit_arrays_are_no_captures_of_their_own():
    """A watched array of another shape is captured anew; the old one is a hit again."""
    held = normal(4)
    fn = graphed(lambda x: x + held)
    first, second = normal(4), normal(1)
    for w in (first, second, first, second):
        held = w
        x = normal(4)
        assert same_bits(fn(x), x + held)
    assert fn.cache_info()[:2] == (2, 2)


FACTOR = 2


@graphed
def inner_of_two(x):
    return x * FACTOR + 1


def test_what_an_inner_graphed_function_reaches_counts_for_the_outer(monkeypatch):
    """A global that a cached inner graphed function reads is watched by the outer one."""
    outer = graphed(lambda x: inner_of_two(x))
    x = xp.ones(3)
    for fn in (inner_of_two, inner_of_two, outer, outer):
        assert fn(x).tolist() == [3.0] * 3
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert outer(x).tolist() == [6.0] * 3
    inner_of_two.cache_clear()


def test_a_number_of_a_module_that_is_imported_inside_is_seen(monkeypatch):
    """A value of a module that the function imports by itself is read on every call."""
    module = types.ModuleType("module_imported_inside")
    module.value = 2.0
    monkeypatch.setitem(sys.modules, "module_imported_inside", module)

    def fn(x):
        import module_imported_inside

        return x * module_imported_inside.value

    scaled = graphed(fn)
    x = xp.ones(2)
    assert [scaled(x).tolist() for _ in range(2)] == [[2.0, 2.0]] * 2
    module.value = 3.0
    assert scaled(x).tolist() == [3.0, 3.0]


def scaled_late(x):
    return x * scale


def take_stored(self, x):
    return x * self.factor + self.stored


def test_code_that_only_the_capture_runs_is_watched():
    """What a function names after its first call has set something up is read on every call."""

    class Lazy:
        stored = None
        factor = 2.0

        def plain(self, x):
            if self.stored is None:
                self.stored = xp.ones(4)
                return x
            return take_stored(self, scaled_late(x))

    lazy = Lazy()
    fn = graphed(lazy.plain)
    fn(normal(4))
    assert agrees(fn, lazy.plain, normal(4))
    for name, holder in (("factor", lazy), ("scale", sys.modules[__name__])):
        before = getattr(holder, name)
        setattr(holder, name, 5.0)
        assert agrees(fn, lazy.plain, normal(4))
        setattr(holder, name, before)
    assert agrees(fn, lazy.plain, normal(4))


class Settings:
    pass


def by_names(x, model):
    for name in ("factor", "offset"):
        x = x * getattr(model, name)
    return x


def by_pattern(x, model):
    match model:
        case Settings(factor=factor, offset=offset):
            return x * factor + offset


@pytest.mark.parametrize("use", [by_names, by_pattern])
def test_names_in_a_tuple_of_the_code_are_read_anew(use):
    """A number whose name stands in a tuple, or in a class pattern, is read on every call."""
    model = Settings()
    model.factor = 2.0
    fn = graphed(lambda x: use(x, model))
    for offset in (3.0, 3.0, 7.0):
        model.offset = offset
        assert agrees(fn, lambda x: use(x, model), normal(4))
    assert fn.cache_info().hits == 1


def test_an_object_that_becomes_one_of_another_class_is_seen():
    """An object that is given another class does what that class says."""

    class First:
        def apply(self, x):
            return x * 2

    class Second:
        def apply(self, x):
            return x * 3

    model = First()
    fn = graphed(lambda x: model.apply(x))
    for kind in (First, First, Second, Second):
        model.__class__ = kind
        assert agrees(fn, lambda x: model.apply(x), normal(4))


class Slotted:
    __slots__ = ("__factor", "late")

    def __init__(self):
        self.__factor = 2.0

    def change(self, value):
        self.__factor = value

    def apply(self, x):
        return x * self.__factor * getattr(self, "late", 1.0)


class NamedList(list):
    factor = 2.0


class NamedTuple(collections.namedtuple("NamedTuple", "a")):
    factor = 2.0


class UserMapping(collections.UserDict):
    pass


class Struct(ctypes.Structure):
    _fields_ = (("factor", ctypes.c_double),)


class Operator:
    def __getitem__(self, i):
        return 2.0


class Part:
    factor = 2.0


def helper(x):
    return x * helper.factor


def doubled(x):
    return x * 2


def with_attribute(obj, value):
    obj.factor = value
    return obj


def over_members(x, container):
    for member in container:
        x = x * member.factor
    return x


def unseen_places():
    """Yield (name, function of x and an object, the object, a change of it)."""
    yield "private slot", lambda x, o: o.apply(x), Slotted(), lambda o: o.change(3.0)
    yield "empty slot", lambda x, o: o.apply(x), Slotted(), lambda o: setattr(o, "late", 3.0)
    named = NamedList([1.0])
    yield "list", lambda x, o: x * o[0] * o.factor, named, lambda o: setattr(o, "factor", 3.0)
    yield (
        "class of a tuple", lambda x, o: x * o.factor, NamedTuple(1.0),
        lambda o: setattr(NamedTuple, "factor", NamedTuple.factor + 1),
    )  # fmt: skip
    for kind in (set, frozenset, dict.fromkeys):
        part = Part()
        yield kind.__name__, over_members, kind([part]), lambda _, p=part: with_attribute(p, 3.0)
    held = {"factor": 2.0}
    proxy = types.MappingProxyType(held)
    yield "proxy", lambda x, o: x * o["factor"], proxy, lambda _: held.update(factor=3.0)
    mapping = UserMapping(factor=2.0)
    yield "mapping", lambda x, o: x * o["factor"], mapping, lambda o: o.update(factor=3.0)
    yield "ctypes", lambda x, o: x * o.factor, Struct(2.0), lambda o: with_attribute(o, 3.0)
    yield (
        "operator", lambda x, o: x * o[0], Operator(),
        lambda o: setattr(Operator, "__getitem__", lambda self, i: 3.0),
    )  # fmt: skip
    record = np.array([(2.0,)], [("factor", "f8")])[0]
    yield (
        "record", lambda x, o: x * float(o["factor"]), record,
        lambda o: o.__setitem__("factor", 3.0),
    )  # fmt: skip
    with_attribute(helper, 2.0)
    yield "function", lambda x, o: o(x), helper, lambda o: with_attribute(o, 3.0)
    yield (
        "code", lambda x, o: o(x), doubled,
        lambda o: setattr(o, "__code__", (lambda x: x * 3).__code__),
    )  # fmt: skip
    many = [{"factor": 2.0} for _ in range(5000)]
    yield "many", lambda x, o: x * o[1]["factor"], many, lambda o: o[1].update(factor=3.0)


@pytest.mark.parametrize("place", list(unseen_places()), ids=lambda place: place[0])
def test_numbers_in_other_places_are_read_anew(place):
    """A number is read anew wherever it is kept: slots, classes, keys, ctypes, functions."""
    _, use, held, change = place
    fn = graphed(lambda x: use(x, held))
    for _ in range(3):
        assert agrees(fn, lambda x: use(x, held), normal(4))
    assert fn.cache_info().hits == 2
    change(held)
    assert agrees(fn, lambda x: use(x, held), normal(4))


@pytest.mark.parametrize("make", [lambda k: {k: 0}, lambda k: {k}], ids=["dict", "set"])
def test_a_number_of_another_type_is_another(make):
    """Keys and members that are equal and of different types are told apart."""
    held = make(2)

    def plain(x):
        for k in held:
            x = x * k
        return x

    fn = graphed(plain)
    for kind in (int, int, float, bool, float):
        held = make(kind(2))
        assert agrees(fn, plain, normal(4).astype(np.int64))


@dataclasses.dataclass
class Parameters:
    w: xp.Array
    factor: ClassVar[float] = 2.0
    is_training = True

    def __post_init__(self):
        self.half = 0.5

    @functools.cached_property
    def double(self):
        return self.factor * 2

    def apply(self, x):
        return x * self.w * self.half if self.is_training else x - self.w * self.double


def test_a_dataclass_keeps_what_is_no_field():
    """Attributes of a dataclass that are no fields, and those of its class, are the call's own."""

    def make():
        return Parameters(normal(4))

    fn = graphed(Parameters.apply)
    for set_up in (
        lambda p: None,
        lambda p: setattr(p, "half", 0.25),
        lambda p: setattr(p, "is_training", False),
        lambda p: (setattr(p, "is_training", False), setattr(Parameters, "factor", 3.0)),
    ):
        for _ in range(3):
            parameters = make()
            set_up(parameters)
            assert agrees(fn, Parameters.apply, parameters, normal(4))
    Parameters.factor = 2.0
    assert fn.cache_info().hits == 8
