"""What happens to a random program: calls on fresh data, and everything between the calls.

Input: a backend. Output: a state machine of hypothesis whose steps are lines of a script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stress.backends import LAYOUTS, Backend
from stress.programs import ArraySpec, Function, Program, make_program
from stress.worlds import Counts, Worlds


class Machine(RuleBasedStateMachine):
    """A program and what has happened to it; subclasses have a backend."""

    backend: Backend
    counts: Counts
    salt: int
    keep: Callable[[Worlds, Program], None] | None = None
    program: Program | None = None

    @initialize(number=st.integers(0, 2**16), more=st.integers(0, 2**16))
    def begin(self, number: int, more: int) -> None:
        seed = f"{self.salt}-{number}-{more}"
        self.program = program = make_program(seed, self.backend.operations)
        self.worlds = Worlds(self.backend, self.counts, may_be_refused=program.may_be_refused)
        self.seed = 1000
        self.arrays: list[str] = []
        self.results: list[str] = []
        self.step(program.source)
        self.worlds.state = program.state
        self.worlds.compare()

    # -- helpers

    def step(self, line: str) -> bool:
        """Run a line of the script; return whether it raised in both worlds."""
        return self.worlds.run(line)

    def fresh(self, spec: ArraySpec, layout: str) -> str:
        """Make a new array under a new name."""
        self.seed += 1
        name = f"x{self.seed - 1000}"
        if layout == "broadcast" and (self.program.writes or not all(spec.shape)):
            layout = "C"
        more = "" if layout == "C" else f", {layout!r}"
        self.worlds.run(
            f"{name} = data({spec.shape}, {spec.dtype!r}, {self.seed}{more})", compares=False
        )
        self.arrays.append(name)
        return name

    def argument(self, data: Any, spec: ArraySpec, layouts: tuple[str, ...]) -> str:
        """Make a new array, or take one of before that has the shape."""
        old = [name for name in self.candidates() if self.fits(name, spec)]
        if old and data.draw(st.integers(0, 3)) == 3:
            return data.draw(st.sampled_from(old))
        return self.fresh(spec, data.draw(st.sampled_from(layouts)))

    def candidates(self) -> list[str]:
        return [*self.arrays, *(f"first({name}, {name})" for name in self.results)]

    def fits(self, text: str, spec: ArraySpec) -> bool:
        value = eval(text, self.worlds.eager.variables)
        is_array = isinstance(value, self.backend.array_type)
        return is_array and value.shape == spec.shape and value.dtype == spec.dtype

    def arguments(self, data: Any, fn: Function, *, is_new: bool = False) -> str:
        """Return the text of the arguments of a call."""
        texts = []
        layouts = ("C",) if data.draw(st.booleans()) else LAYOUTS
        for container, specs in zip(fn.containers, fn.specs, strict=True):
            if is_new:
                names = [self.fresh(spec, "C") for spec in specs]
            else:
                names = [self.argument(data, spec, layouts) for spec in specs]
            texts.append(container.format(*names))
        return ", ".join(texts)

    def result(self) -> str:
        name = f"r{len(self.worlds.lines)}"
        self.results.append(name)
        return name

    # -- what happens

    @rule(data=st.data(), n_calls=st.integers(1, 3), stream=st.sampled_from((None, None, 0, 1)))
    def call(self, data: Any, n_calls: int, stream: int | None) -> None:
        """Call a function several times."""
        fn = data.draw(st.sampled_from(self.program.functions[::-1]))
        for _ in range(n_calls):
            arguments = self.arguments(data, fn)
            name = self.result()
            where = "" if stream is None else f"with on_stream({stream}): "
            if self.step(f"{where}{name} = {fn.name}({arguments})"):
                self.results.remove(name)

    @rule(data=st.data(), shape=st.sampled_from(((3,), (1,), (3, 3), (2, 3))))
    def call_with_another_shape(self, data: Any, shape: tuple[int, ...]) -> None:
        """Change a shape: another signature, an eviction, or an error in both worlds."""
        fn = data.draw(st.sampled_from(self.program.functions[::-1]))
        names = [[self.fresh(ArraySpec(shape, s.dtype), "C") for s in specs] for specs in fn.specs]
        texts = [c.format(*n) for c, n in zip(fn.containers, names, strict=True)]
        name = self.result()
        if self.step(f"{name} = {fn.name}({', '.join(texts)})"):
            self.results.remove(name)

    @rule(data=st.data())
    def call_the_last_function(self, data: Any) -> None:
        """Call it on new arrays of one kind: every call but the first is a hit."""
        fn = self.program.functions[-1]
        for _ in range(3):
            arguments = self.arguments(data, fn, is_new=True)
            name = self.result()
            if self.step(f"{name} = {fn.name}({arguments})"):
                self.results.remove(name)

    @precondition(lambda self: self.program and not self.program.functions[-1].changes_state)
    @rule(data=st.data())
    def call_in_threads(self, data: Any) -> None:
        """Call one function from three threads at once, each on arrays of its own."""
        fn = self.program.functions[-1]
        calls = [f"({self.arguments(data, fn, is_new=True)},)" for _ in range(3)]
        name = self.result()
        if self.step(f"{name} = in_threads({fn.name}, [{', '.join(calls)}])"):
            self.results.remove(name)

    @rule(
        which=st.sampled_from(("w", "model.w", "closure", "scale", "model.scale")),
        shape=st.sampled_from(((3,), (3, 3), (1, 3))),
        dtype=st.sampled_from(("f8", "f4", "i8")),
        number=st.sampled_from((2, 0.5, -3)),
    )
    def replace_state(self, which: str, shape: Any, dtype: str, number: float) -> None:
        """Put another array, or another number, where the functions look."""
        self.seed += 1
        value = f"data({shape}, {dtype!r}, {self.seed})"
        if which == "closure":
            for text in [s for s in self.program.state if s.startswith("get_")]:
                self.step(f"{text.replace('get_', 'set_')[:-2]}({value})")
        else:
            self.step(f"{which} = {number if 'scale' in which else value}")

    @rule(which=st.sampled_from(("w", "model.w")))
    def change_state_in_place(self, which: str) -> None:
        """Write to an array that the functions reach."""
        self.step(f"{which}[...] = {which}[::-1] * 2")

    @precondition(lambda self: self.program and self.results)
    @rule(data=st.data(), is_deleted=st.booleans())
    def use_a_result(self, data: Any, is_deleted: bool) -> None:
        """Drop a result, or write to it: what shares memory with it changes in both worlds."""
        name = data.draw(st.sampled_from(self.results))
        if is_deleted:
            self.results.remove(name)
            self.step(f"del {name}")
            return
        value = eval(f"first({name}, None)", self.worlds.eager.variables)
        if isinstance(value, self.backend.array_type) and value.size and all(value.strides):
            self.step(f"first({name}, None)[...] = 1")

    @precondition(lambda self: self.program and self.arrays)
    @rule(data=st.data())
    def drop_an_array(self, data: Any) -> None:
        """Let go of an argument: its memory goes back to the pool."""
        name = data.draw(st.sampled_from(self.arrays))
        self.arrays.remove(name)
        self.step(f"del {name}")

    @rule(data=st.data())
    def clear_the_cache(self, data: Any) -> None:
        """Destroy the graphs of a function."""
        fn = data.draw(st.sampled_from(self.program.functions))
        self.step(f"clear({fn.name})")

    @rule()
    def collect(self) -> None:
        """Collect cycles."""
        self.step("collect()")

    def teardown(self) -> None:
        if self.program is not None:
            note(self.worlds.script())
            if self.keep is not None:
                self.keep(self.worlds, self.program)
            self.worlds.close()


def make_machine(
    backend: Backend,
    counts: Counts,
    salt: int = 0,
    keep: Callable[[Worlds, Program], None] | None = None,
) -> type[Machine]:
    """Return the machine of a backend.

    With another ``salt`` it draws other programs; ``keep`` is given every script.
    """
    more = {"backend": backend, "counts": counts, "salt": salt}
    more["keep"] = keep and staticmethod(keep)
    return type("BackendMachine", (Machine,), more)
