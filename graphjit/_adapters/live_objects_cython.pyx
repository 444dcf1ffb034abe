# cython: language_level=3
"""The compiled form of ``live_objects.py``: no other thread can go on meanwhile.

Input: a type. Output: its objects.
"""

import gc


def live_objects(type kind):
    """Return the objects of a type and of types derived from it."""
    cdef list found = []
    cdef list everything = gc.get_objects()
    for obj in everything:
        if issubclass(type(obj), kind):
            found.append(obj)
    return found
