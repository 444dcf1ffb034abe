"""graphjit: Python functions that launch GPU work, at the speed of CUDA graphs.

The files, in the order of one call (imports go down this list, never up):

    _graphed, _block    the decorator and the capture block
    _explicit, _races   a graph of nodes put together by hand
    _explicit_nodes     its nodes
    _load               a graph from a file
    _launcher           what is captured once and launched by name
    _composed           its launch in another capture, which becomes a child graph
    _offered            what a graphed function offers besides being called
    control             branches and loops that are decided on the device
    host                calls of the host, page-locked memory, events
    _typing             what a graphed function is to a type checker
    _state              one graphed function: the story of a call in one function
    _nvtx               ranges for profilers
    _options            what the decorator can be told
    inspection          what is in the caches
    _explanation        why a call would miss
    _profile            the times of the nodes
    _export             a graph written to a file
    _saved, _saved_parts  what the file holds
    _page, _drawing     an entry as a page, its graph as a picture
    _cache              signature -> entry: look-up, insertion, eviction
    _hit                the compiled front of a call, or its plain twin
    _binding            arguments in one form
    _recipe             capture a function, as often as it takes
    _build              make an entry of a capture
    _entry              one captured function: match a call, launch it
    _graph_info         its graph as plain data, with names
    _verify             run the eager call beside a launch and compare
    _segments, _replay  a function that reads on the host, as several graphs
    _probing, _traced   capture with other numbers, to find dynamic scalars
    _dynamic, _scalars  where they are, and the bytes of a number
    _setup              the arrays of a capture and the slots of its graph
    _stand_ins          arrays that hold no memory, in their places
    _captured_flow      branches and loops under capture
    _bodies             what their functions are given and return
    _second_attempt     capture once more: the line of a node that is refused
    _node_lines         which line recorded which node
    _capture            run the function under stream capture on stand-ins
    _capture_errors     what CUDA and the library say about it, in graphjit's words
    _outputs            what it returned -> how to build that on every call
    _draws              random numbers whose generators count on the host
    _escapes            what it kept although a later call overwrites it
    _turns              graphs that work in one memory of a library take turns
    _host_calls, _host_memory  functions that a graph calls, and the memory between
    _timing             a graph that takes the times of its nodes
    _externals          memory that cannot be re-pointed: listed and kept alive
    _instantiate        nodes -> executable graph
    _executable         patch it and launch it
    _flow               the pieces of a capture between them -> one graph
    _joined             several graphs -> one
    _children           calls of graphed functions inside it -> child graphs
    _relocation         nodes + regions -> which words are addresses, and of what
    _dependencies       which nodes must wait for which (optimize=True)
    _replace            copies and fills -> kernel nodes
    _implicit, _watch   what the function reaches without being given it
    _ran_code           the code that ran, and the names in it
    _observed           which code begins to run
    _host_random        random numbers drawn on the host: refused
    _arguments, _named  arguments -> leaves and back
    _containers         nested containers -> leaves and back
    _aliasing           which arrays share memory
    _places             attributes, items, globals and cells that hold values
    _signature          leaves -> a key; the difference of two signatures
    _regions            reserved addresses; the scratch plan
    _adapters/          one file an array library
    _driver/            the CUDA driver: interface, cuda.bindings, simulated
    _nodes              a captured graph as plain data
    _whole_file         a file that others see whole, or not at all
    _source, errors     where in the user's code; what is raised

Only ``_driver/cuda*.py`` import cuda.bindings; only ``_adapters`` know an array library.
"""

from graphjit._block import Block, capture
from graphjit._cache import CacheInfo
from graphjit._explicit import Graph
from graphjit._explicit_nodes import GraphNode
from graphjit._graphed import GraphedFunction, caches, graphed
from graphjit._load import LoadedGraph, load
from graphjit.errors import (
    AmbiguousPointerError,
    AnalysisError,
    CacheGrowthWarning,
    CaptureError,
    CaptureInvalidatedError,
    ControlFlowError,
    DriverError,
    DynamicScalarError,
    ExportError,
    GraphjitError,
    GraphjitWarning,
    HostCallbackError,
    HostReadError,
    PatchError,
    SignatureError,
    UnsupportedNodeError,
    VerificationError,
)
from graphjit.host import PinnedArray, host_callback, record_event, synchronize, wait_event

__version__ = "0.1.0"
__all__ = [
    "AmbiguousPointerError",
    "AnalysisError",
    "Block",
    "CacheGrowthWarning",
    "CacheInfo",
    "CaptureError",
    "CaptureInvalidatedError",
    "ControlFlowError",
    "DynamicScalarError",
    "DriverError",
    "ExportError",
    "Graph",
    "GraphNode",
    "GraphedFunction",
    "GraphjitError",
    "GraphjitWarning",
    "HostCallbackError",
    "HostReadError",
    "LoadedGraph",
    "PatchError",
    "PinnedArray",
    "SignatureError",
    "UnsupportedNodeError",
    "VerificationError",
    "caches",
    "capture",
    "graphed",
    "host_callback",
    "load",
    "record_event",
    "synchronize",
    "wait_event",
]
