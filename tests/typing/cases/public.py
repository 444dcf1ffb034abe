"""Blocks, caches, errors, inspection and the helpers for tests have types."""

from typing import reveal_type

import graphjit
from graphjit import inspection, testing
from graphjit.testing import simulated as xp

x = xp.asarray([1.0, 2.0])
reveal_type(x)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"
reveal_type(x + 1)  # note: Revealed type is "graphjit._adapters.simulated_ndarray.Array"
reveal_type(x.shape)  # note: Revealed type is "tuple[int, ...]"

with graphjit.capture(inputs={"x": x}) as block:
    block.outputs = block.inputs["x"] * 2
reveal_type(block)  # note: Revealed type is "graphjit._block.Block"
reveal_type(block.info())  # note: Revealed type is "graphjit.inspection.EntryInfo"
block.launch(1)  # error: Too many arguments for "launch" of "EntryLauncher"

counts = graphjit.caches()["name"]
reveal_type(counts.hits)  # note: Revealed type is "int"
reveal_type(counts.max_entries)  # note: Revealed type is "int | None"

reveal_type(inspection.table([block.info()]))  # note: Revealed type is "rich.table.Table"

try:
    pass
except graphjit.DriverError as error:
    reveal_type(error.code)  # note: Revealed type is "int"

testing.check_driver(testing.SimulatedDriver(device_patch=False))
testing.check_driver(1)  # error: Argument 1 to "check_driver" has incompatible type "int"
