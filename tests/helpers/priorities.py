"""The priorities that the kernels of a graph have."""

from __future__ import annotations

import struct

from graphjit import GraphedFunction
from graphjit._nodes import KernelNode


def priorities_of(call: GraphedFunction) -> tuple[bool, list[int]]:
    """Say whether the graph of a function keeps priorities; return that of each kernel."""
    (entry,) = call._self_state.cache.entries()
    driver, executable = entry.adapter.driver(), entry.executable
    found = []
    for node, added in zip(entry.graph.nodes, executable.nodes, strict=True):
        if isinstance(node, KernelNode):
            attributes = dict(driver.kernel_node_attributes(added))
            found += struct.unpack_from("<i", attributes.get("PRIORITY", bytes(4)))
    return executable.use_node_priority, found
