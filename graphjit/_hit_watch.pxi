# The reads and checks of implicit arguments: the fast side of `_watch.Watch`.
#
# Part of `_hit_cython.pyx`.

cdef enum:
    READ_CELL, READ_GLOBAL, READ_ATTRIBUTE, READ_ABSENT, READ_ITEM, READ_ARGUMENT, READ_OTHER
    CHECK_VALUE, CHECK_OBJECT, CHECK_ARRAY, CHECK_LENGTH, CHECK_KEYS, CHECK_CONTENT


cdef class NativeStep:
    """One step of ``_watch.Watch``: read a value and check it."""

    cdef NativeLibrary lib
    cdef int op, kind
    cdef Py_ssize_t parent, index, known_length
    cdef object place, key, check, known, known_type

    def __init__(self, NativeLibrary lib, step):
        place = step.place
        self.lib, self.parent, self.place, self.check = lib, step.parent, place, step.check
        self.known, self.known_type = MISS, None
        self.op, self.key = READ_OTHER, None
        if isinstance(place, _places.Cell):
            self.op, self.key = READ_CELL, place.cell
        elif isinstance(place, _places.Global):
            self.op, self.key, self.place = READ_GLOBAL, place.name, place.namespace
        elif isinstance(place, _places.Attribute):
            self.op, self.key = READ_ATTRIBUTE, place.name
        elif isinstance(place, _places.AbsentGlobals):
            self.op, self.key, self.place = READ_ABSENT, place.names, place.namespace
        elif isinstance(place, _places.Item):
            self.op, self.key = READ_ITEM, place.key
            self.index = place.key if type(place.key) is int and place.key >= 0 else -1
        elif isinstance(place, _places.Argument):
            self.op, self.index = READ_ARGUMENT, place.index
        kinds = {
            "value": CHECK_VALUE, "object": CHECK_OBJECT, "array": CHECK_ARRAY,
            "length": CHECK_LENGTH, "keys": CHECK_KEYS,
        }
        self.kind = kinds.get(step.kind, CHECK_CONTENT)

    cdef object read(self, parent):
        cdef PyObject* found = NULL
        if self.op == READ_CELL:
            found = PyCell_GET(self.key)
        elif self.op == READ_GLOBAL:
            found = PyDict_GetItem(self.place, self.key)
        elif self.op == READ_ABSENT:
            for name in <tuple>self.key:
                if name in <dict>self.place:
                    return False
            return True
        elif self.op == READ_ATTRIBUTE:
            return getattr(parent, self.key, MISSING)
        elif self.op == READ_ARGUMENT:
            return parent[self.index]
        elif self.op == READ_ITEM and type(parent) is dict:
            found = PyDict_GetItem(parent, self.key)
        elif self.op == READ_ITEM and type(parent) is list and self.index >= 0:
            return (<list>parent)[self.index] if self.index < len(<list>parent) else MISSING
        elif self.op == READ_ITEM and type(parent) is tuple and self.index >= 0:
            return (<tuple>parent)[self.index] if self.index < len(<tuple>parent) else MISSING
        else:
            return self.place.read(parent)
        return MISSING if found == NULL else <object>found

    cdef bint accepts(self, value) except -1:
        """Check a value; what is like that of the last call is accepted without more ado."""
        if self.kind == CHECK_ARRAY:
            return self.accepts_array(value)
        if self.kind == CHECK_LENGTH or self.kind == CHECK_KEYS:
            return self.accepts_container(value)
        if self.kind == CHECK_VALUE:
            if value is self.known:
                return True
        elif (self.kind == CHECK_OBJECT and self.known is not MISS and self.known() is value
                and type(value) is self.known_type):
            return True
        if not self.check(value):
            return False
        if self.kind == CHECK_VALUE:
            self.known = value
        elif self.kind == CHECK_OBJECT:
            self.known_type = type(value)
            try:
                self.known = weakref.ref(value)
            except TypeError:
                self.known = MISS
        return True

    cdef bint accepts_array(self, value) except -1:
        cdef char[MAX_VALUE] key
        cdef uint64_t ptr
        cdef KeyWriter w
        begin_key(&w, key, &ptr, NULL)
        is_packed = (
            (<PyObject*>value).ob_type == self.lib.array_type and write_array(self.lib, value, &w))
        if is_packed and type(self.known) is bytes and PyBytes_GET_SIZE(self.known) == w.n:
            if memcmp(PyBytes_AS_STRING(self.known), key, w.n) == 0:
                return True
        if not self.check(value):
            return False
        if is_packed:
            self.known = PyBytes_FromStringAndSize(key, w.n)
            self.known_type = value.dtype  # its address is in the key: no other may lie there
        return True

    cdef bint accepts_container(self, value) except -1:
        if self.known_type is not None and type(value) is self.known_type:
            if self.kind == CHECK_LENGTH and len(value) == self.known_length:
                return True
            if self.kind == CHECK_KEYS and type(value) is dict and has_keys(value, self.known):
                return True
        if not self.check(value):
            return False
        self.known_type, self.known_length = type(value), len(value)
        if self.kind == CHECK_KEYS:
            self.known = tuple(value)
        return True


cdef bint has_keys(dict value, tuple keys) noexcept:
    """Say whether the keys are these very objects, in this order."""
    cdef Py_ssize_t place = 0, i = 0
    cdef PyObject* key = NULL
    cdef PyObject* item = NULL
    if PyDict_Size(value) != len(keys):
        return False
    while PyDict_Next(value, &place, &key, &item):
        if key != <PyObject*>keys[i]:
            return False
        i += 1
    return True


cdef bint is_unchanged(list steps, leaves) except -1:
    """Check steps that start at the root and read no arrays."""
    cdef NativeStep step
    for step in steps:
        if not step.accepts(step.read(leaves)):
            return False
    return True


cdef list read_watch(list steps, leaves):
    """Return the implicit arrays as they are now; None if anything is not what it was."""
    cdef NativeStep step
    cdef list values = [], arrays = []
    for step in steps:
        value = step.read(values[step.parent] if step.parent >= 0 else leaves)
        if not step.accepts(value):
            return None
        values.append(value)
        if step.kind == CHECK_ARRAY:
            arrays.append(value)
    return arrays
