"""The exceptions and warnings of graphjit.

::

    GraphjitError
    ├── CaptureError               the function could not be captured
    │   ├── CaptureInvalidatedError    the driver broke the capture off
    │   ├── DynamicScalarError         a dynamic scalar is used for more than a kernel parameter
    │   ├── HostReadError              the function reads device memory on the host
    │   └── UnsupportedNodeError       the graph holds a node that cannot be replayed
    ├── AnalysisError              the captured graph cannot be re-pointed safely
    │   └── AmbiguousPointerError      a word may or may not be an address
    ├── ExportError                a graph cannot be written to a file, or a file cannot be loaded
    ├── HostCallbackError          a function that a graph called raised an exception
    ├── ControlFlowError           a branch or a loop of graphjit.control has not the right form
    ├── SignatureError             an argument cannot be part of a signature
    ├── PatchError                 re-pointing a graph at new arrays failed
    ├── VerificationError          the graph and the eager call disagree
    └── DriverError                a driver call failed: call, name and code

    GraphjitWarning
    └── CacheGrowthWarning         a function keeps being captured anew

Every message says what failed, where, why, and what to do about it.
"""

from __future__ import annotations


class GraphjitError(Exception):
    """Base class of every error that graphjit raises.

    Attributes
    ----------
    eager_result : object
        What the eager call returned, if it was complete before the capture was refused.
    """

    __module__ = "graphjit"
    eager_result: object = None


class CaptureError(GraphjitError):
    """A function could not be captured as a CUDA graph."""

    __module__ = "graphjit"


class CaptureInvalidatedError(CaptureError):
    """The driver invalidated the capture: CUDA_ERROR_STREAM_CAPTURE_*."""

    __module__ = "graphjit"


class HostReadError(CaptureError):
    """The function reads the contents of a device array on the host."""

    __module__ = "graphjit"


class DynamicScalarError(CaptureError):
    """A dynamic scalar is used in a derived form, or decides what is launched."""

    __module__ = "graphjit"


class UnsupportedNodeError(CaptureError):
    """The captured graph holds a node that cannot be re-pointed or replayed."""

    __module__ = "graphjit"
    _refused: object = None
    """Which node, and why: what a second attempt is compared by."""


class AnalysisError(GraphjitError):
    """A captured graph cannot be re-pointed without a risk of a wrong answer."""

    __module__ = "graphjit"


class AmbiguousPointerError(AnalysisError):
    """A word of a kernel's parameters may or may not be an address."""

    __module__ = "graphjit"


class SignatureError(GraphjitError, TypeError):
    """An argument cannot be made part of a signature; the message names its path."""

    __module__ = "graphjit"


class ControlFlowError(GraphjitError, TypeError):
    """A predicate, a branch or a carry of ``graphjit.control`` has not the form that it needs."""

    __module__ = "graphjit"


class ExportError(GraphjitError):
    """A graph cannot be written to a file, or a file cannot be loaded here."""

    __module__ = "graphjit"


class HostCallbackError(GraphjitError):
    """A function that a graph called by ``graphjit.host_callback`` raised an exception."""

    __module__ = "graphjit"


class PatchError(GraphjitError):
    """A captured graph could not be pointed at the arrays of a call."""

    __module__ = "graphjit"


class VerificationError(GraphjitError):
    """With ``verify=True``: a graph launch and the eager call gave different results."""

    __module__ = "graphjit"


class DriverError(GraphjitError):
    """A CUDA driver call failed.

    Parameters
    ----------
    call : str
        Name of the driver function, such as ``"cuGraphLaunch"``.
    name : str
        Name of the error, such as ``"CUDA_ERROR_INVALID_VALUE"``.
    code : int
        The ``CUresult``.
    detail : str, optional
        What the driver or graphjit knows about the reason.
    """

    __module__ = "graphjit"

    def __init__(self, call: str, name: str, code: int, detail: str = "") -> None:
        super().__init__(f"{call} failed: {name} ({code})" + (f": {detail}" if detail else ""))
        self.call = call
        self.name = name
        self.code = code


class GraphjitWarning(UserWarning):
    """Base class of graphjit's warnings."""

    __module__ = "graphjit"


class CacheGrowthWarning(GraphjitWarning):
    """A function is captured over and over; its cache has begun to evict entries."""

    __module__ = "graphjit"
