"""What a graphed function offers besides being called.

Input: its state. Output: descriptions of calls and of its cache.
Raises: what the function raises; ``GraphjitError``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from graphjit._cache import CacheInfo
from graphjit._explanation import Explanation, explain_call
from graphjit._profile import Profile
from graphjit._signature import Signature
from graphjit._state import State
from graphjit.inspection import EntryInfo, describe_entry


class Offered:
    """What a graphed function offers, bound to an instance or not."""

    _self_state: State

    def _instance(self) -> tuple[Any, ...]:
        return ()

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it was before decoration; nothing is captured or launched.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.
        """
        state = self._self_state
        state.cache.eager_calls += 1
        return state.fn(*self._instance(), *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Say whether a call with these arguments would hit, and if not, what differs.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function; nothing is run.

        Returns
        -------
        Explanation
            ``hit``, the closest entry, and the differences by path.
        """
        state = self._self_state
        call = state.reader.read((*self._instance(), *args), kwargs)
        return explain_call(state.reader, state.cache, call)

    def profile(self, *args: Any, **kwargs: Any) -> Profile:
        """Take the time of each node of the graph that serves a call.

        The function is captured once more, with events between its nodes, and launched several
        times; the arrays are put back to what they held. Host functions are not called.

        Parameters
        ----------
        *args, **kwargs
            Arguments as for a call that has been made before.

        Returns
        -------
        Profile
            Prints as a table, and is written as a trace.

        Raises
        ------
        GraphjitError
            There is no graph for the call; the function is split at reads on the host; it draws
            random numbers from a generator whose state is on the host.

        Notes
        -----
        cuGraphAddEventRecordNode, cuEventElapsedTime; CUDA 12.4.
        """
        return self._self_state.profile((*self._instance(), *args), kwargs)

    def export(self, path: str | os.PathLike[str], /, *args: Any, **kwargs: Any) -> None:
        """Write the graph that serves a call to a file, for ``graphjit.load`` in another process.

        The code of its kernels travels along. Numbers and other values that are no arrays are
        part of the graph, those that the function reaches by itself, too.

        Parameters
        ----------
        path : str or path
        *args, **kwargs
            Arguments as for a call that has been made before; nothing is run.

        Raises
        ------
        ExportError
            Something in the graph belongs to this process: a kernel of a library, an array that
            is no argument, a function of the host. The message names it. No file is left.
        GraphjitError
            There is no graph for the call.

        Notes
        -----
        cuFuncGetModule, cuGraphKernelNodeGetAttribute; CUDA 12.4.
        """
        self._self_state.export(path, (*self._instance(), *args), kwargs)

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, entries, evictions and eager calls."""
        return self._self_state.cache.info()

    def cache_clear(self) -> None:
        """Free all entries: graphs, constants and patch tables."""
        self._self_state.cache.clear()

    def cache_entries(self) -> list[EntryInfo]:
        """Return a description of each entry, the one used last first."""
        state = self._self_state
        return [
            describe_entry(entry, state.name, partial(self._profile_of, entry.signature))
            for entry in state.cache.entries()
        ]

    def _profile_of(self, signature: Signature, *args: Any, **kwargs: Any) -> Profile:
        return self._self_state.profile((*self._instance(), *args), kwargs, signature)
