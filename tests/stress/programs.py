"""Draw a random program: state, and graphed functions that call each other.

Input: a seed. Output: ``Program``: Python source, and what the functions take. Every statement
has been executed with NumPy while the program was drawn; one that does not fit the shapes at
hand is left out. The choices are Python's and not hypothesis's, which would repeat itself:
every operation is to be met soon, and ``reduce`` makes a failing program short.
"""

from __future__ import annotations

import random
import textwrap
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stress.backends import host_data, lay_out
from stress.numpy_control import NUMPY_CONTROL
from stress.operations import HOLES, Operation

SHAPES = ((3,), (2, 3), (3, 3), (), (1, 3), (2, 3, 3), (0, 3), (3, 2), (5,))
DTYPES = ("f8", "f8", "f4", "i8", "i8", "c8", "?", "i4")
CONTAINERS = ("{0}", "{0}", "{0}", "[{0}, {1}]", "{{'x': {0}, 'y': ({1},)}}")
MEMBERS = {
    "{0}": ("{0}",),
    "[{0}, {1}]": ("{0}[0]", "{0}[1]"),
    "{{'x': {0}, 'y': ({1},)}}": ("{0}['x']", "{0}['y'][0]"),
}
RESULTS = ("{0}", "({0}, {1})", "{{'a': {0}, 'b': [{1}, None]}}", "[{0}, 3, ({1}, {0})]", "None")
OPTIONS = (
    "",
    "patch='host'",
    "patch='device'",
    "optimize=True",
    "max_entries=1",
    "max_entries=2, patch='device'",
    "warmup=2",
    "verify=True",
)
REFUSAL_OPTIONS = ("on_unsupported='eager'", "on_unsupported='split'", "on_unsupported='split'")
_STATE = (
    "scale = 2\n"
    "class Model: pass\n"
    "model = Model()\n"
    "model.scale = 0.5\n"
    "w = data((3,), 'f8', 1)\n"
    "model.w = data((3, 3), 'f8', 2)\n"
)


_UNFIT = (ValueError, TypeError, IndexError, AttributeError, RuntimeError)


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array that a function takes."""

    shape: tuple[int, ...]
    dtype: str


@dataclass
class Function:
    """One function of a program."""

    name: str
    containers: list[str] = field(default_factory=list)
    specs: list[list[ArraySpec]] = field(default_factory=list)
    writes_arguments: bool = False
    changes_state: bool = False


@dataclass
class Program:
    """Source, functions, and the expressions of what they reach without being given it."""

    source: str
    functions: list[Function]
    state: list[str]
    may_be_refused: bool = False
    writes: bool = False


def numpy_space() -> dict[str, Any]:
    """Return the names that a program needs, with NumPy in place of the array library."""

    def data(shape: Any, dtype: str, seed: int, layout: str = "C") -> Any:
        return lay_out(np.asarray, host_data(shape, dtype, seed), layout)

    def graphed(*functions: Any, **_: Any) -> Any:
        return functions[0] if functions else lambda fn: fn

    return {
        "xp": np,
        "data": data,
        "graphed": graphed,
        "first": first,
        **NUMPY_CONTROL,
        "fused": lambda x, y: x * 2 + y * y,
        "rng": np.random.default_rng(1),
    }


class _Builder:
    """Draws the statements of one function after the other."""

    def __init__(self, seed: str, operations: tuple[Operation, ...]) -> None:
        self.random = random.Random(seed)
        refusals = not self.random.randint(0, 3)
        self.operations = [o for o in operations if not o.is_refused]
        self.refused = [o for o in operations if o.is_refused and refusals]
        self.space = numpy_space()
        self.program = Program(_STATE, [], ["w", "model.w", "scale", "model.scale"])
        exec(_STATE, self.space)  # the state of the program, with NumPy
        self.seed = 100

    def pick(self, choices: Any) -> Any:
        return self.random.choice(choices)

    # -- one function

    def add_function(self, kind: str, *, is_graphed: bool) -> None:
        """Draw a function, and run it with NumPy as it grows."""
        number = len(self.program.functions)
        fn = Function(f"f{number}")
        parameters = [f"p{k}" for k in range(self.random.randint(1, 2))]
        space = dict(self.space)
        atoms: list[str] = []
        for name in parameters:
            atoms += self._add_parameter(fn, name, space)
        if kind == "closure":
            space["c"] = host_data((3,), "f8", 3)
        atoms += {"closure": ["c"], "method": ["self.w"], "plain": ["w", "model.w"]}[kind]
        space["self"] = space["model"]
        body: list[str] = []
        for _ in range(self.random.randint(1, 6)):
            body += self._statement(fn, space, atoms)
        names = [name for name in atoms if name.startswith("v")] or atoms
        result = self.pick(RESULTS)
        chosen = (names[-1], self.pick(atoms))
        body.append("return " + result.format(*chosen))
        self._emit(fn, kind, parameters, body, is_graphed=is_graphed)

    def _add_parameter(self, fn: Function, name: str, space: dict[str, Any]) -> list[str]:
        container = self.pick(CONTAINERS)
        members = MEMBERS[container]
        dtype = self.pick(DTYPES)
        specs = [ArraySpec(self.pick(SHAPES), dtype) for _ in members]
        arrays = []
        for spec in specs:
            self.seed += 1
            arrays.append(host_data(spec.shape, spec.dtype, self.seed))
        texts = [f"_arrays[{k}]" for k in range(len(arrays))]
        space[name] = eval(container.format(*texts), {"_arrays": arrays})
        fn.containers.append(container)
        fn.specs.append(specs)
        return [member.format(name) for member in members]

    def _statement(self, fn: Function, space: dict[str, Any], atoms: list[str]) -> list[str]:
        """Draw a statement that NumPy accepts; an empty list if there is none at hand."""
        if self.program.functions and self.random.randint(0, 4) == 4:
            return self._call(fn, space, atoms)
        is_refused = self.refused and self.random.randint(0, 7) == 7
        operation = self.pick(self.refused if is_refused else self.operations)
        holes = {name: self.pick(HOLES[name]) for name in operation.holes}
        starts = [self.random.randint(0, 7) for _ in range(operation.n_arrays)]
        for turn in range(len(atoms)):
            chosen = [
                atoms[(start + turn * (k > 0)) % len(atoms)] for k, start in enumerate(starts)
            ]
            lines = self._lines(operation, chosen, holes, atoms)
            if self._try(fn, operation, lines, space, chosen):
                return self._accept(operation, lines, atoms)
            if operation.n_arrays < 2:
                break
        return []

    def _lines(
        self, operation: Operation, chosen: list[str], holes: dict[str, str], atoms: list[str]
    ) -> list[str]:
        if operation.is_expression:
            return [f"v{len(atoms)} = {operation.text.format(*chosen, **holes)}"]
        target = f"v{len(atoms)}"  # a name of the function's own: `w += 1` would make a local
        chosen = list(chosen)
        before = f"{target} = {chosen[operation.writes or 0]}"
        chosen[operation.writes or 0] = target
        return [before, operation.text.format(*chosen, **holes)]

    def _try(
        self,
        fn: Function,
        operation: Operation,
        lines: list[str],
        space: dict[str, Any],
        chosen: list[str],
    ) -> bool:
        before = dict(space)
        backup = [np.array(a) for a in self._state_arrays(space)]
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a mean of nothing is as good as any
                exec("\n".join(lines), space)
            value = np.asarray(space[lines[0].split(" = ")[0]])
            if value.size > 200 or value.dtype.kind not in "?biufc":
                raise ValueError("too large, or no array of numbers")
        except _UNFIT:
            space.clear()
            space.update(before)
            return False
        if operation.is_expression:
            space[lines[0].split(" = ")[0]] = value
        if operation.writes is not None:
            self._note_write(fn, value, space)
        fn.changes_state |= operation.draws or any(
            a.tobytes() != b.tobytes()
            for a, b in zip(backup, self._state_arrays(space), strict=True)
        )
        self.program.may_be_refused |= operation.is_refused
        return True

    def _note_write(self, fn: Function, target: Any, space: dict[str, Any]) -> None:
        fn.changes_state |= any(np.may_share_memory(target, a) for a in self._state_arrays(space))
        fn.writes_arguments = True
        self.program.writes = True

    def _state_arrays(self, space: dict[str, Any]) -> list[Any]:
        return [space["w"], space["model"].w, *([space["c"]] if "c" in space else [])]

    def _accept(self, operation: Operation, lines: list[str], atoms: list[str]) -> list[str]:
        atoms.append(lines[0].split(" = ")[0])
        return lines

    def _call(self, fn: Function, space: dict[str, Any], atoms: list[str]) -> list[str]:
        """Draw a call of a function of before, with arrays of this one."""
        inner = self.pick(self.program.functions)
        arrays = [self.pick(atoms) for specs in inner.specs for _ in specs]
        arguments = []
        for container, specs in zip(inner.containers, inner.specs, strict=True):
            arguments.append(container.format(*arrays[: len(specs)]))
            del arrays[: len(specs)]
        line = f"v{len(atoms)} = first({inner.name}({', '.join(arguments)}), {atoms[0]})"
        if not self._try(fn, Operation(line), [line], space, []):
            return []
        fn.changes_state |= inner.changes_state or inner.writes_arguments
        fn.writes_arguments |= inner.writes_arguments
        atoms.append(line.split(" = ")[0])
        return [line]

    # -- source

    def _emit(
        self, fn: Function, kind: str, parameters: list[str], body: list[str], *, is_graphed: bool
    ) -> None:
        options = ", ".join(filter(None, [self.pick(OPTIONS), self.refusal_option]))
        decorator = (f"@graphed({options})\n" if options else "@graphed\n") if is_graphed else ""
        first_name = ["self"] if kind == "method" else []
        head = f"{decorator}def {fn.name}({', '.join(first_name + parameters)}):\n"
        text = head + textwrap.indent("\n".join(body), "    ") + "\n"
        if kind == "closure":
            text = (
                f"def make_{fn.name}(c):\n{textwrap.indent(text, '    ')}"
                f"    def set_c(value):\n        nonlocal c\n        c = value\n"
                f"    return {fn.name}, set_c, lambda: c\n"
                f"{fn.name}, set_{fn.name}, get_{fn.name} = make_{fn.name}(data((3,), 'f8', 3))\n"
            )
            self.program.state.append(f"get_{fn.name}()")
        elif kind == "method":
            text = text + f"Model.{fn.name} = {fn.name}\n{fn.name} = model.{fn.name}\n"
        self.program.source += text
        # What was written while the statements were tried has to be as the script has it.
        exec(text, self.space)
        self.program.functions.append(fn)

    refusal_option = ""


def first(value: Any, other: Any) -> Any:
    """Return the first array of nested containers, or another value if there is none."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return first(value[0], other)
    return other if value is None else value


def make_program(seed: str, operations: tuple[Operation, ...]) -> Program:
    """Draw a program; the same seed gives the same one."""
    builder = _Builder(seed, operations)
    refusals = bool(builder.refused)
    if refusals and builder.random.randint(0, 1):
        builder.refusal_option = builder.pick(REFUSAL_OPTIONS)
    for _ in range(builder.random.randint(0, 2)):
        # Under a plain function, the error of a refusal would bring the result of a part only.
        is_graphed = refusals or bool(builder.random.randint(0, 1))
        builder.add_function(builder.pick(("plain", "closure", "method")), is_graphed=is_graphed)
    builder.add_function(builder.pick(("plain", "closure", "method")), is_graphed=True)
    return builder.program
