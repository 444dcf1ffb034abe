// The kernels that graphjit adds to captured graphs. No header is needed: with relocatable
// device code nvcc and NVRTC declare the one device runtime call by themselves; it is linked
// from libcudadevrt.a (patch kernels only).

typedef unsigned long long u64;
typedef unsigned int u32;

#ifdef GRAPHJIT_PATCH

struct Relocation {
    u64 target;        // device node, or the address of a word in device memory
    u32 param_offset;  // and the bytes to write in its upper 8 bits, if they are not 8;
                       // 0xFFFFFFFF: target is an address
    u32 slot;
    u64 delta;
};

template <int N>
struct Slots {
    u64 base_ptr[N];
};

// The slots arrive by value: every launch has its own snapshot of the addresses, so that
// launches can be queued without waiting for the ones before.
template <int N>
__device__ void patch(const Relocation* table, u32 n, const Slots<N>& slots) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Relocation r = table[i];
    u64 value = slots.base_ptr[r.slot] + r.delta;
    if (r.param_offset == 0xFFFFFFFFu)
        *(u64*)r.target = value;
    else
        cudaGraphKernelNodeSetParam((cudaGraphDeviceNode_t)r.target, r.param_offset & 0xFFFFFFu,
                                    &value, r.param_offset >> 24 ? r.param_offset >> 24 : 8);
}

#define PATCH(N)                                                                        \
    extern "C" __global__ void graphjit_patch_##N(                                      \
        const Relocation* table, u32 n, const __grid_constant__ Slots<N> slots) {       \
        patch<N>(table, n, slots);                                                      \
    }
PATCH(4)
PATCH(8)
PATCH(32)
PATCH(128)
PATCH(448)

// Set a condition from an integer of 1, 2, 4 or 8 bytes, 256 added to that if it is signed.
// Modes: 0 or 1; the integer, at least 0 and less than n; 1 if that is mode >> 8, else 0.
extern "C" __global__ void graphjit_set_condition(
    cudaGraphConditionalHandle handle, const void* integer, u32 form, u32 mode, long long n) {
    long long value;
    switch (form) {
        case 1: value = *(const unsigned char*)integer; break;
        case 2: value = *(const unsigned short*)integer; break;
        case 4: value = *(const u32*)integer; break;
        case 257: value = *(const signed char*)integer; break;
        case 258: value = *(const short*)integer; break;
        case 260: value = *(const int*)integer; break;
        default: value = *(const long long*)integer;
    }
    // An unsigned integer beyond the signed ones is beyond n.
    if (form == 8 && value < 0) value = 0x7FFFFFFFFFFFFFFFll;
    long long index = value < 0 ? 0 : value < n ? value : n - 1;
    u32 kind = mode & 255;
    cudaGraphSetConditional(
        handle, kind == 0 ? value != 0 : kind == 1 ? (u32)index : index == (mode >> 8));
}

#else

struct alignas(16) Word16 {
    u64 a, b;
};

template <typename T>
__device__ void copy_words(u64 dst, u64 src, u64 n) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        ((T*)dst)[i] = ((const T*)src)[i];
}

__device__ void copy_tail(u64 dst, u64 src, u64 from, u64 width) {
    u64 i = from + threadIdx.x;
    if (blockIdx.x == 0 && i < width) ((char*)dst)[i] = ((const char*)src)[i];
}

// A box of bytes. A plain row, by far the most frequent case, is copied in the widest
// words that both addresses allow.
extern "C" __global__ void graphjit_copy(
    u64 dst, u64 src, u64 width, u64 height, u64 depth,
    u64 dst_pitch, u64 src_pitch, u64 dst_slice_pitch, u64 src_slice_pitch) {
    if (height == 1 && depth == 1) {
        u64 both = dst | src;
        if ((both & 15) == 0) {
            copy_words<Word16>(dst, src, width / 16);
            copy_tail(dst, src, width / 16 * 16, width);
        } else if ((both & 3) == 0) {
            copy_words<u32>(dst, src, width / 4);
            copy_tail(dst, src, width / 4 * 4, width);
        } else {
            copy_words<char>(dst, src, width);
        }
        return;
    }
    u64 n = width * height * depth, step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        u64 x = i % width, y = i / width % height, z = i / width / height;
        ((char*)dst)[z * dst_slice_pitch + y * dst_pitch + x] =
            ((const char*)src)[z * src_slice_pitch + y * src_pitch + x];
    }
}

struct Fill {
    u64 dst, value, element_size, width, height, pitch;
};

template <typename T>
__device__ void fill_words(const Fill& f, T value, u64 width, u64 thread, u64 step) {
    u64 n = width * f.height;
    for (u64 i = thread; i < n; i += step)
        *(T*)(f.dst + i / width * f.pitch + i % width * sizeof(T)) = value;
}

__device__ void fill_rows(const Fill& f, u64 thread, u64 step) {
    u64 row = f.width * f.element_size;
    if (f.element_size == 1 && f.height == 1 && ((f.dst | row) & 15) == 0) {
        u64 word = (f.value & 255) * 0x0101010101010101ull;
        Word16 wide = {word, word};
        fill_words<Word16>(f, wide, row / 16, thread, step);
    } else if (f.element_size == 1) {
        fill_words<unsigned char>(f, (unsigned char)f.value, f.width, thread, step);
    } else if (f.element_size == 2) {
        fill_words<unsigned short>(f, (unsigned short)f.value, f.width, thread, step);
    } else {
        fill_words<u32>(f, (u32)f.value, f.width, thread, step);
    }
}

extern "C" __global__ void graphjit_fill(
    u64 dst, u64 value, u64 element_size, u64 width, u64 height, u64 pitch) {
    Fill fill = {dst, value, element_size, width, height, pitch};
    fill_rows(fill, (u64)blockIdx.x * blockDim.x + threadIdx.x, (u64)gridDim.x * blockDim.x);
}

struct Fills {
    Fill fill[16];
};

// Small fills in one kernel: a block for each.
extern "C" __global__ void graphjit_fills(const __grid_constant__ Fills fills) {
    fill_rows(fills.fill[blockIdx.x], threadIdx.x, blockDim.x);
}

#endif
