# cython: language_level=3, boundscheck=False, wraparound=False
"""Read and add nodes without a Python object for every field of the driver's structs.

Input / Output: as ``cuda_nodes_python.py``, which is the specification of this file.
Raises: ``DriverError``.
Source: the functions in ``ENTRY_POINTS``, obtained at run time (cuGetProcAddress), so that
the build needs no CUDA headers; structs as in cuda.h of CUDA 12.4 and later.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject_GenericSetAttr
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from graphjit._driver.cuda_check import driver_error, entry_point
from graphjit._nodes import KernelNode

ENTRY_POINTS = {
    "cuGraphGetNodes": 12000,
    "cuGraphNodeGetType": 12000,
    "cuGraphGetEdges": 12030,
    "cuGraphKernelNodeGetParams": 12000,
    "cuGraphAddKernelNode": 12000,
    "cuGraphKernelNodeCopyAttributes": 12000,
    "cuGraphKernelNodeSetAttribute": 12000,
    "cuGraphKernelNodeGetAttribute": 12000,
    "cuGraphAddDependencies": 12030,
    "cuGraphExecKernelNodeSetParams": 12000,
}
"""Driver function: the CUDA version whose form of it is called below."""

cdef enum:
    DEVICE_UPDATABLE = 13  # CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE
    BUFFER_POINTER = 1  # CU_LAUNCH_PARAM_BUFFER_POINTER
    BUFFER_SIZE = 2  # CU_LAUNCH_PARAM_BUFFER_SIZE


cdef struct KernelNodeParamsStruct:  # CUDA_KERNEL_NODE_PARAMS_v2
    uint64_t func
    uint32_t[3] grid_dim
    uint32_t[3] block_dim
    uint32_t shared_mem_bytes
    uint64_t* kernel_params
    uint64_t* extra
    uint64_t kern
    uint64_t ctx


cdef struct EdgeData:  # CUgraphEdgeData
    uint8_t[8] bytes


cdef struct AttributeValue:  # CUkernelNodeAttrValue: a union of 64 bytes
    int device_updatable
    uint64_t device_node
    uint8_t[48] rest


ctypedef int (*GetNodes)(uint64_t, uint64_t*, size_t*) noexcept nogil
ctypedef int (*GetType)(uint64_t, int*) noexcept nogil
ctypedef int (*GetEdges)(uint64_t, uint64_t*, uint64_t*, EdgeData*, size_t*) noexcept nogil
ctypedef int (*GetParams)(uint64_t, KernelNodeParamsStruct*) noexcept nogil
ctypedef int (*AddKernelNode)(
    uint64_t*, uint64_t, uint64_t*, size_t, KernelNodeParamsStruct*) noexcept nogil
ctypedef int (*CopyAttributes)(uint64_t, uint64_t) noexcept nogil
ctypedef int (*Attribute)(uint64_t, int, AttributeValue*) noexcept nogil
ctypedef int (*AddDependencies)(
    uint64_t, uint64_t*, uint64_t*, EdgeData*, size_t) noexcept nogil
ctypedef int (*SetParams)(uint64_t, uint64_t, KernelNodeParamsStruct*) noexcept nogil


cdef class KernelNodeParams:
    """A CUDA_KERNEL_NODE_PARAMS over bytes that live as long as it does."""

    cdef KernelNodeParamsStruct struct
    cdef bytes pointers
    cdef readonly bytearray buffer

    def __init__(self, launch, bytes params):
        cdef Py_ssize_t i
        cdef uint64_t* pointers
        cdef char* base
        cdef tuple layout = launch.param_layout
        kind, handle, context = launch.function
        # Never resized, so that its address stays.
        self.buffer = bytearray(params) if params else bytearray(8)
        base = PyByteArray_AS_STRING(self.buffer)
        self.pointers = PyBytes_FromStringAndSize(NULL, 8 * max(len(layout), 1))
        pointers = <uint64_t*>PyBytes_AS_STRING(self.pointers)
        pointers[0] = 0
        for i in range(len(layout)):
            pointers[i] = <uint64_t><uintptr_t>(base + <Py_ssize_t>layout[i][0])
        memset(&self.struct, 0, sizeof(KernelNodeParamsStruct))
        if kind == "kern":
            self.struct.kern = handle
        else:
            self.struct.func = handle
        self.struct.ctx = context
        self.struct.grid_dim = launch.grid_dim
        self.struct.block_dim = launch.block_dim
        self.struct.shared_mem_bytes = launch.shared_mem_bytes
        self.struct.kernel_params = pointers

    @property
    def struct_ptr(self):
        """Address of the CUDA_KERNEL_NODE_PARAMS."""
        return <uint64_t><uintptr_t>&self.struct

    @property
    def buffer_ptr(self):
        """Address of the packed parameters."""
        return <uint64_t><uintptr_t>PyByteArray_AS_STRING(self.buffer)

    @property
    def pointers_ptr(self):
        """Address of ``kernelParams``."""
        return <uint64_t><uintptr_t>self.struct.kernel_params


cdef class NodeCalls:
    """The calls that are made once a node, by address."""

    cdef GetNodes get_nodes
    cdef GetType get_type
    cdef GetEdges get_edges
    cdef GetParams get_params
    cdef AddKernelNode add_kernel_node
    cdef CopyAttributes copy_attributes
    cdef Attribute set_attribute, get_attribute
    cdef AddDependencies add_edges
    cdef SetParams exec_set_params

    def __init__(self):
        cdef dict found = {name: entry_point(name, v) for name, v in ENTRY_POINTS.items()}
        self.get_nodes = <GetNodes><uintptr_t>found["cuGraphGetNodes"]
        self.get_type = <GetType><uintptr_t>found["cuGraphNodeGetType"]
        self.get_edges = <GetEdges><uintptr_t>found["cuGraphGetEdges"]
        self.get_params = <GetParams><uintptr_t>found["cuGraphKernelNodeGetParams"]
        self.add_kernel_node = <AddKernelNode><uintptr_t>found["cuGraphAddKernelNode"]
        self.copy_attributes = <CopyAttributes><uintptr_t>found["cuGraphKernelNodeCopyAttributes"]
        self.set_attribute = <Attribute><uintptr_t>found["cuGraphKernelNodeSetAttribute"]
        self.get_attribute = <Attribute><uintptr_t>found["cuGraphKernelNodeGetAttribute"]
        self.add_edges = <AddDependencies><uintptr_t>found["cuGraphAddDependencies"]
        self.exec_set_params = <SetParams><uintptr_t>found["cuGraphExecKernelNodeSetParams"]

    cdef int check(self, str call, int status) except -1:
        if status:
            raise driver_error(call, status)
        return 0

    def nodes(self, uint64_t graph):
        """Return (handle, CUgraphNodeType) of each node, in the order of creation."""
        cdef size_t n = 0, i
        cdef int kind = 0
        cdef uint64_t* handles
        cdef list found = []
        self.check("cuGraphGetNodes", self.get_nodes(graph, NULL, &n))
        if not n:
            return found
        handles = <uint64_t*>calloc(n + 1, 8)
        if handles == NULL:
            raise MemoryError
        try:
            self.check("cuGraphGetNodes", self.get_nodes(graph, handles, &n))
            for i in range(n):
                self.check("cuGraphNodeGetType", self.get_type(handles[i], &kind))
                found.append((handles[i], kind))
        finally:
            free(handles)
        return found

    def edges(self, uint64_t graph):
        """Return (source, target, CUgraphEdgeData as bytes or None) of each edge."""
        cdef size_t n = 0, i
        cdef EdgeData none
        cdef EdgeData* data
        cdef uint64_t* ends
        cdef list found = []
        self.check("cuGraphGetEdges", self.get_edges(graph, NULL, NULL, NULL, &n))
        if not n:
            return found
        ends = <uint64_t*>calloc(n + 1, 2 * 8 + sizeof(EdgeData))
        if ends == NULL:
            raise MemoryError
        try:
            data = <EdgeData*>(ends + 2 * n)
            self.check("cuGraphGetEdges", self.get_edges(graph, ends, ends + n, data, &n))
            memset(&none, 0, sizeof(EdgeData))
            for i in range(n):
                is_plain = memcmp(&data[i], &none, sizeof(EdgeData)) == 0
                packed = None if is_plain else PyBytes_FromStringAndSize(<char*>&data[i], 8)
                found.append((ends[i], ends[n + i], packed))
        finally:
            free(ends)
        return found

    def kernel(self, uint64_t handle, functions):
        """Read a kernel node; ``functions`` has the name and the layout of each function."""
        cdef KernelNodeParamsStruct p
        memset(&p, 0, sizeof(KernelNodeParamsStruct))
        self.check("cuGraphKernelNodeGetParams", self.get_params(handle, &p))
        kind = "func" if p.func else "kern"
        function = p.func if p.func else p.kern
        name, layout = functions[kind, function]
        node = KernelNode.__new__(KernelNode)
        # As dataclasses do for frozen classes, without a Python call for every field.
        PyObject_GenericSetAttr(node, "handle", handle)
        PyObject_GenericSetAttr(node, "name", name)
        PyObject_GenericSetAttr(node, "function", (kind, function, p.ctx))
        PyObject_GenericSetAttr(node, "grid_dim", (p.grid_dim[0], p.grid_dim[1], p.grid_dim[2]))
        PyObject_GenericSetAttr(node, "block_dim", (p.block_dim[0], p.block_dim[1], p.block_dim[2]))
        PyObject_GenericSetAttr(node, "shared_mem_bytes", p.shared_mem_bytes)
        PyObject_GenericSetAttr(node, "params", packed_params(&p, layout))
        PyObject_GenericSetAttr(node, "param_layout", layout)
        PyObject_GenericSetAttr(node, "attributes", ())
        PyObject_GenericSetAttr(node, "is_own", False)
        return node

    def params(self, launch, bytes packed):
        """Build parameters that own a copy of ``packed``."""
        return KernelNodeParams(launch, packed)

    def add_kernel(self, uint64_t graph, KernelNodeParams params, like):
        """Add a kernel node, with the attributes of the node ``like`` if that is not None."""
        cdef uint64_t node = 0
        self.check(
            "cuGraphAddKernelNode",
            self.add_kernel_node(&node, graph, NULL, 0, &params.struct))
        if like is not None:
            self.check("cuGraphKernelNodeCopyAttributes", self.copy_attributes(node, like))
        return node

    def add_dependencies(self, uint64_t graph, list edges):
        """Add edges (source, target, CUgraphEdgeData as bytes or None)."""
        cdef size_t n = len(edges), i
        cdef EdgeData* data
        cdef uint64_t* ends = <uint64_t*>calloc(n + 1, 2 * 8 + sizeof(EdgeData))
        if ends == NULL:
            raise MemoryError
        try:
            data = <EdgeData*>(ends + 2 * n)
            for i in range(n):
                source, target, packed = edges[i]
                ends[i], ends[n + i] = source, target
                if packed is not None:
                    memcpy(&data[i], PyBytes_AS_STRING(packed), sizeof(EdgeData))
            self.check(
                "cuGraphAddDependencies", self.add_edges(graph, ends, ends + n, data, n))
        finally:
            free(ends)

    def make_device_updatable(self, uint64_t node):
        """Set the attribute of that name; return the device node handle."""
        cdef AttributeValue value
        memset(&value, 0, sizeof(AttributeValue))
        value.device_updatable = 1
        self.check(
            "cuGraphKernelNodeSetAttribute", self.set_attribute(node, DEVICE_UPDATABLE, &value))
        if not value.device_node:  # older drivers want to be asked
            self.check(
                "cuGraphKernelNodeGetAttribute",
                self.get_attribute(node, DEVICE_UPDATABLE, &value))
        return value.device_node

    def set_params(self, uint64_t graph_exec, uint64_t node, KernelNodeParams params):
        """Give a node of a graph exec other parameters."""
        self.check(
            "cuGraphExecKernelNodeSetParams",
            self.exec_set_params(graph_exec, node, &params.struct))


cdef bytes packed_params(KernelNodeParamsStruct* p, tuple layout):
    """Copy parameters out of ``kernelParams``, or of ``extra`` as cuBLAS's kernels use it."""
    cdef Py_ssize_t nbytes = 0, offset, size, i
    cdef uint64_t* extra = p.extra
    cdef uint64_t buffer_nbytes = 0
    cdef char* source = NULL
    cdef bytes packed
    for offset, size in layout:
        nbytes = max(nbytes, offset + size)
    packed = PyBytes_FromStringAndSize(NULL, nbytes)
    memset(PyBytes_AS_STRING(packed), 0, nbytes)
    if p.kernel_params != NULL:
        i = 0
        for offset, size in layout:
            source = <char*><uintptr_t>p.kernel_params[i]
            memcpy(PyBytes_AS_STRING(packed) + offset, source, size)
            i += 1
    elif extra != NULL:
        while extra[0]:  # CU_LAUNCH_PARAM_END is 0
            if extra[0] == BUFFER_POINTER:
                source = <char*><uintptr_t>extra[1]
            elif extra[0] == BUFFER_SIZE:
                buffer_nbytes = (<uint64_t*><uintptr_t>extra[1])[0]
            extra += 2
        if source != NULL:
            memcpy(PyBytes_AS_STRING(packed), source, min(<uint64_t>nbytes, buffer_nbytes))
    return packed
