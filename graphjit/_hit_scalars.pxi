# The bytes of dynamic scalars: the fast side of `_scalars.ScalarWord`.
#
# Part of `_hit_cython.pyx`. Python's floats and integers are converted here where C does exactly
# what NumPy does; everything else is left to `ScalarWord.encode`.

cdef enum:
    FLOAT64, FLOAT32, SIGNED, UNSIGNED
    EXACT_IN_FLOAT32 = 1 << 24


cdef struct Form:
    int kind, nbytes


cdef class NativeScalar:
    """A slot that a dynamic scalar is written to, encoded."""

    cdef Py_ssize_t leaf
    cdef object word
    cdef bytes forms
    cdef bint is_simple

    def __init__(self, Py_ssize_t leaf, word):
        kinds = {"f8": FLOAT64, "f4": FLOAT32, "f2": -1, "i": SIGNED, "u": UNSIGNED}
        forms = [
            (kinds.get(e.dtype, kinds.get(e.dtype[0], -1)), e.nbytes) for e in word.encodings
        ]
        self.leaf, self.word = leaf, word
        self.is_simple = all(
            e.part == "real" and kind >= 0
            for e, (kind, _) in zip(word.encodings, forms, strict=True)
        )
        self.forms = b"".join(struct.pack("<ii", *form) for form in forms)

    cdef bint encode(self, value, uint64_t* slot) except -1:
        """Write the bytes of a number; False if no parameter, or not every form, holds it."""
        kind = type(value)
        if self.is_simple and kind is float:
            return self.encode_float(value, slot)
        if self.is_simple and kind is int and -(1 << 62) < value < 1 << 62:
            return self.encode_int(value, slot)
        return self.encode_any(value, slot)

    cdef bint encode_any(self, value, uint64_t* slot) except -1:
        try:
            slot[0] = self.word.encode(value)
        except (OverflowError, TypeError, ValueError):
            return False
        return True

    cdef bint encode_float(self, double value, uint64_t* slot) except -1:
        cdef Form* form = <Form*>PyBytes_AS_STRING(self.forms)
        cdef float single = <float>value
        if PyBytes_GET_SIZE(self.forms) != sizeof(Form):
            return self.encode_any(value, slot)  # two forms of one size: neither is a float
        slot[0] = 0
        if form.kind == FLOAT64:
            memcpy(slot, &value, 8)
        elif form.kind == FLOAT32:
            memcpy(slot, &single, 4)
        else:
            return self.encode_any(value, slot)
        return True

    cdef bint encode_int(self, int64_t value, uint64_t* slot) except -1:
        cdef Form* form = <Form*>PyBytes_AS_STRING(self.forms)
        cdef Py_ssize_t i
        cdef uint64_t word, first = 0
        cdef double double_value = <double>value
        cdef float single = <float>value
        for i in range(PyBytes_GET_SIZE(self.forms) // <Py_ssize_t>sizeof(Form)):
            word = 0
            if form[i].kind == FLOAT64:
                memcpy(&word, &double_value, 8)
            elif form[i].kind == FLOAT32:
                if not -EXACT_IN_FLOAT32 <= value <= EXACT_IN_FLOAT32:
                    return self.encode_any(value, slot)
                memcpy(&word, &single, 4)
            elif not is_within(value, form[i]):
                return False
            else:
                memcpy(&word, &value, form[i].nbytes)  # little-endian, as everything here
            if i and word != first:
                return False
            first = word
        slot[0] = first
        return True


cdef inline bint is_within(int64_t value, Form form) noexcept:
    """Say whether an integer type of some bytes holds a value."""
    cdef int n_bits = 8 * form.nbytes
    if form.kind == UNSIGNED:
        return value >= 0 and (n_bits == 64 or value < <int64_t>1 << n_bits)
    return n_bits == 64 or -(<int64_t>1 << (n_bits - 1)) <= value < <int64_t>1 << (n_bits - 1)
