# The signature of a call as packed bytes, and the addresses of its arrays on the way.
#
# Part of `_hit_cython.pyx`. What is packed here is what `ArgumentReader` puts into its keys, for
# the arguments that `ArgumentReader.is_plain` accepts.

cdef enum:
    IS_ARRAY = 1, IS_VALUE = 2, IS_CONTAINER = 3, IS_KEYWORDS = 4, IS_DYNAMIC = 5


cdef enum:
    MAX_CONTAINERS = 512  # lists and dictionaries of one call
    N_FILTER = 8


cdef struct Containers:
    # Those of a call, to see whether one is given twice; the bits of their addresses, hashed,
    # say at once of most that they are new.
    Py_ssize_t n
    uint64_t filter[N_FILTER]
    PyObject* met[MAX_CONTAINERS]


cdef bint is_new(Containers* c, PyObject* container) noexcept:
    """Say whether a container has not been met before, and note it; False if there are too many."""
    cdef uint64_t address = (<uint64_t><uintptr_t>container >> 4) * 0x9E3779B97F4A7C15ull
    cdef uint64_t bit = <uint64_t>1 << (address >> 58)
    cdef uint64_t* word = &c.filter[address >> 55 & (N_FILTER - 1)]
    cdef Py_ssize_t i
    if word[0] & bit:
        for i in range(c.n):
            if c.met[i] == container:
                return False
    if c.n == MAX_CONTAINERS:
        return False
    word[0] |= bit
    c.met[c.n] = container
    c.n += 1
    return True


cdef struct KeyWriter:
    char* key
    Py_ssize_t n
    uint64_t* ptrs
    Py_ssize_t n_arrays
    uint64_t dynamic  # bit i: the argument at position i
    Containers* containers
    bint is_nested


cdef void begin_key(
    KeyWriter* w, char* key, uint64_t* ptrs, Containers* containers, uint64_t dynamic=0
) noexcept:
    w.key, w.n, w.ptrs, w.n_arrays, w.is_nested = key, 0, ptrs, 0, False
    w.containers, w.dynamic = containers, dynamic


cdef bint write_key(NativeLibrary lib, tuple args, dict kwargs, KeyWriter* w) except -1:
    """Pack the signature of plain arguments; False if anything is not plain."""
    cdef uint64_t dynamic = w.dynamic
    for value in args:
        if dynamic & 1 and type(value) in <frozenset>DYNAMIC:
            if not write_kind(value, w):
                return False
        elif not write_value(lib, value, w, 0):
            return False
        dynamic >>= 1
    if not kwargs:
        return True
    if w.n > MAX_KEY - MAX_VALUE:
        return False
    (<uint64_t*>(w.key + w.n))[0] = IS_KEYWORDS  # not a dictionary given by position
    w.n += 8
    return write_container(lib, kwargs, w, 0)


cdef bint write_value(NativeLibrary lib, value, KeyWriter* w, int depth) except -1:
    cdef uint64_t* words = <uint64_t*>(w.key + w.n)
    cdef PyObject* obj = <PyObject*>value
    if w.n > MAX_KEY - MAX_VALUE:
        return False
    if obj.ob_type == lib.array_type:
        return write_array(lib, value, w)
    kind = type(value)
    if kind is list or kind is tuple or kind is dict:
        return write_container(lib, value, w, depth)
    words[0], words[1] = IS_VALUE, <uint64_t><PyObject*>kind
    if kind is float:
        (<double*>words)[2] = value
    elif kind is int:
        if not -(1 << 62) < value < 1 << 62:
            return False
        (<int64_t*>words)[2] = value
    elif kind is str or kind is bytes:
        return write_text(value, w)
    elif kind is complex:
        (<double*>words)[2], (<double*>words)[3] = value.real, value.imag
        w.n += 8
    elif kind in <frozenset>NUMPY_SCALARS:
        words[2] = words[3] = 0
        copy_buffer(value, words + 2)
        w.n += 8
    else:
        # None, booleans, and objects by identity: `add` is only asked for those. Should
        # another object come to lie at the address, the watch tells it from the first.
        words[2] = <uint64_t>obj
    w.n += 24
    return True


cdef bint write_kind(value, KeyWriter* w) except -1:
    """Pack the type of a dynamic scalar, which may have any value."""
    cdef uint64_t* words = <uint64_t*>(w.key + w.n)
    if w.n > MAX_KEY - MAX_VALUE:
        return False
    kind = type(value)
    words[0], words[1] = IS_DYNAMIC, <uint64_t><PyObject*>kind
    w.n += 16
    return True


cdef bint write_array(NativeLibrary lib, value, KeyWriter* w) noexcept:
    """Pack alignment class, device, dtype, number of dimensions, shape and strides."""
    cdef uint64_t* words = <uint64_t*>(w.key + w.n)
    cdef PyObject* obj = <PyObject*>value
    cdef PyObject* data = <PyObject*>field(obj, lib.data)
    cdef uint64_t ptr = field(data, lib.ptr)
    cdef uint64_t begin = field(obj, lib.shape)
    cdef Py_ssize_t size = <Py_ssize_t>(field(obj, lib.shape + 8) - begin)
    if size > 256 or w.n_arrays >= MAX_ARRAYS:
        return False
    w.ptrs[w.n_arrays] = ptr
    w.n_arrays += 1
    words[0] = IS_ARRAY | ((ptr & (~ptr + 1)) & 255) << 8
    words[1] = <uint32_t>(<int32_t*>(<char*>data + lib.device_id))[0]
    words[2] = field(obj, lib.dtype)
    words[3] = size
    memcpy(words + 4, <void*><uintptr_t>begin, size)
    memcpy(<char*>(words + 4) + size, <void*><uintptr_t>field(obj, lib.strides), size)
    w.n += 32 + 2 * size
    return True


cdef bint write_container(NativeLibrary lib, value, KeyWriter* w, int depth) except -1:
    """Pack a list, a tuple, or a dictionary with strings and integers as keys, in its order."""
    cdef uint64_t* words = <uint64_t*>(w.key + w.n)
    kind = type(value)
    if depth >= MAX_DEPTH or w.n > MAX_KEY - MAX_VALUE:
        return False
    if not w.is_nested:
        w.is_nested = True
        w.containers.n = 0
        memset(w.containers.filter, 0, 8 * N_FILTER)
    if kind is not tuple and not is_new(w.containers, <PyObject*>value):
        return False  # the function may ask whether two of its arguments are one object
    words[0], words[1], words[2] = IS_CONTAINER, <uint64_t><PyObject*>kind, len(value)
    w.n += 24
    if kind is dict:
        for key, item in (<dict>value).items():
            if type(key) is not str and type(key) is not int:
                return False
            if not write_value(lib, key, w, depth) or not write_value(lib, item, w, depth + 1):
                return False
        return True
    for item in value:
        if not write_value(lib, item, w, depth + 1):
            return False
    return True


cdef bint write_text(value, KeyWriter* w) except -1:
    """Pack what a short string, or short bytes, hold: their address says nothing."""
    cdef Py_ssize_t size
    cdef const char* text
    cdef uint64_t* words = <uint64_t*>(w.key + w.n)
    if type(value) is bytes:
        text, size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
    elif PyUnicode_IS_ASCII(value):
        text = PyUnicode_AsUTF8AndSize(value, &size)
    else:
        return False
    if size > MAX_VALUE - 40:
        return False
    words[2] = size
    w.n += 24
    memcpy(w.key + w.n, text, size)
    w.n += (size + 7) // 8 * 8
    memset(<char*>(words + 3) + size, 0, w.n - 24 - size - (<char*>words - w.key))
    return True


cdef int copy_buffer(value, void* target) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    memcpy(target, view.buf, view.len)
    PyBuffer_Release(&view)
    return 0


cdef list leaves_of(tuple args, dict kwargs):
    """List the leaves of nested arguments, in the order in which ``write_key`` packs them."""
    cdef list leaves = []
    append_leaves(args, leaves)
    if kwargs:
        append_leaves(kwargs, leaves)
    return leaves


cdef int append_leaves(value, list leaves) except -1:
    kind = type(value)
    if kind is list or kind is tuple:
        for item in value:
            append_leaves(item, leaves)
    elif kind is dict:
        for item in (<dict>value).values():
            append_leaves(item, leaves)
    else:
        leaves.append(value)
    return 0
