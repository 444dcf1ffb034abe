// Conditional nodes without graphjit, Python or CuPy, to be run under compute-sanitizer.
//
//   nvcc -std=c++17 -rdc=true -arch=native conditional_nodes.cu -o conditional_nodes -lcudadevrt
//   compute-sanitizer ./conditional_nodes KIND MEMORY SECONDS
//
// KIND: plain (no conditional node), if, else (an if with two bodies), switch, switch1 (one body),
// while, nest (an if inside a while).
// MEMORY: fixed; fresh (every launch is pointed at new memory); many (fresh, after thousands of
// allocations that were made when the graph had been instantiated already); late (as many, but the
// graph uses none of them).
// Every launch is compared with what the host computes.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cub/block/block_reduce.cuh>
#include <string>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        if (cudaError_t error_ = (call); error_ != cudaSuccess) {                       \
            printf("%s: %s, launch %d\n", #call, cudaGetErrorString(error_), launches); \
            exit(3);                                                                    \
        }                                                                               \
    } while (0)

constexpr int N = 200, THREADS = 256;
static int launches = 0;

__global__ void choose(cudaGraphConditionalHandle handle, const int* value, int n) {
    cudaGraphSetConditional(handle, *value < 0 ? 0 : *value >= n ? n - 1 : *value);
}

__global__ void count_down(cudaGraphConditionalHandle handle, int* value) {
    *value -= 1;
    cudaGraphSetConditional(handle, *value > 0);
}

__global__ void add(const float* x, float* y, float a) {
    if (threadIdx.x < N) y[threadIdx.x] = x[threadIdx.x] + a;
}

__global__ void largest(const float* x, float* out) {
    using Reduce = cub::BlockReduce<float, THREADS>;
    __shared__ typename Reduce::TempStorage storage;
    float value = threadIdx.x < N ? x[threadIdx.x] : -1e30f;
    float found = Reduce(storage).Reduce(value, [](float a, float b) { return a > b ? a : b; });
    if (threadIdx.x == 0) *out = found;
}

__global__ void scale(const float* x, const float* factor, float* y) {
    if (threadIdx.x < N) y[threadIdx.x] = x[threadIdx.x] * *factor;
}

struct Kernel {
    cudaGraphNode_t node;
    cudaKernelNodeParams params;
};

static std::vector<Kernel> kernels;

static cudaGraphNode_t add_kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void* function,
                                  void** arguments, int threads = THREADS) {
    Kernel kernel = {};
    kernel.params.func = function;
    kernel.params.gridDim = dim3(1);
    kernel.params.blockDim = dim3(threads);
    kernel.params.kernelParams = arguments;
    CHECK(cudaGraphAddKernelNode(&kernel.node, graph, after.data(), after.size(), &kernel.params));
    kernels.push_back(kernel);
    return kernel.node;
}

static cudaGraphNode_t add_conditional(cudaGraph_t graph, cudaGraphNode_t after, cudaGraphConditionalHandle handle,
                                       cudaGraphConditionalNodeType type, std::vector<cudaGraph_t>& bodies) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = bodies.size();
    cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddNode(&node, graph, &after, nullptr, 1, &params));
#else
    CHECK(cudaGraphAddNode(&node, graph, &after, 1, &params));
#endif
    for (size_t i = 0; i < bodies.size(); i++) bodies[i] = params.conditional.phGraph_out[i];
    return node;
}

int main(int argc, char** argv) {
    if (argc != 4) return printf("KIND MEMORY SECONDS\n"), 2;
    const std::string kind = argv[1], memory = argv[2];
    const double seconds = atof(argv[3]);
    const bool is_switch = kind == "switch", is_else = kind == "else", is_switch1 = kind == "switch1", is_plain = kind == "plain", is_nest = kind == "nest";
    const bool is_loop = kind == "while" || is_nest;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    float *x, *y, *top;
    int* value;
    void** pointers[] = {(void**)&x, (void**)&y, (void**)&top, (void**)&value};
    for (void** p : pointers) CHECK(cudaMalloc(p, 1536));

    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle outer = 0, inner = 0;
    int n_outer = is_switch1 ? 1 : is_switch ? 3 : is_loop ? 1 << 30 : 2, n_inner = 2;
    float one = 1, two = 2;
    void* choose_outer[] = {&outer, &value, &n_outer};
    void* choose_inner[] = {&inner, &value, &n_inner};
    void* count[] = {&outer, &value};
    void* add_one[] = {&x, &y, &one};
    void* add_two[] = {&x, &y, &two};
    void* add_behind[] = {&y, &y, &one};
    void* find_top[] = {&x, &top};
    void* scale_by_top[] = {&x, &top, &y};

    std::vector<cudaGraph_t> bodies(is_switch ? 3 : is_else ? 2 : 1);
    cudaGraphNode_t conditional{};
    if (is_plain) {
        bodies[0] = graph;
    } else {
        CHECK(cudaGraphConditionalHandleCreate(&outer, graph, 0, 0));
        auto chosen = add_kernel(graph, {}, (void*)choose, choose_outer, 1);
        auto type = is_loop ? cudaGraphCondTypeWhile : cudaGraphCondTypeIf;
        if (is_switch || is_switch1) type = cudaGraphCondTypeSwitch;
        conditional = add_conditional(graph, chosen, outer, type, bodies);
    }
    if (is_switch) {
        add_kernel(bodies[0], {}, (void*)add, add_one);
        add_kernel(bodies[1], {}, (void*)add, add_two);
    }
    if (is_else) add_kernel(bodies[1], {}, (void*)add, add_two);
    cudaGraph_t last_body = is_else ? bodies[0] : bodies.back();
    auto found = add_kernel(last_body, {}, (void*)largest, find_top);
    auto last = add_kernel(last_body, {found}, (void*)scale, scale_by_top);
    if (is_nest) {
        CHECK(cudaGraphConditionalHandleCreate(&inner, bodies[0], 0, 0));
        auto chosen = add_kernel(bodies[0], {last}, (void*)choose, choose_inner, 1);
        std::vector<cudaGraph_t> inside(1);
        last = add_conditional(bodies[0], chosen, inner, cudaGraphCondTypeIf, inside);
        auto again = add_kernel(inside[0], {}, (void*)largest, find_top);
        add_kernel(inside[0], {again}, (void*)scale, scale_by_top);
    }
    if (is_loop) add_kernel(bodies[0], {last}, (void*)count_down, count, 1);
    if (!is_plain) add_kernel(graph, {conditional}, (void*)add, add_behind);

    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphUpload(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (memory == "many" || memory == "late") {
        void* kept;
        for (int i = 0; i < 5000; i++) CHECK(cudaMalloc(&kept, 512 * (1 + rand() % 8)));
    }
    std::vector<float> given(N), got(N);
    std::vector<void*> before;
    int n_differ = 0;
    auto begin = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
        if (memory == "fresh" || memory == "many") {
            for (void** p : pointers) {
                before.push_back(*p);
                CHECK(cudaMalloc(p, 512 * (2 + rand() % 4)));
            }
            for (; before.size() > 40; before.erase(before.begin())) CHECK(cudaFree(before[0]));
            for (Kernel& k : kernels) CHECK(cudaGraphExecKernelNodeSetParams(exec, k.node, &k.params));
        }
        int index = rand() % 5 - (is_loop ? 0 : 1);
        float largest_given = -1e30f;
        for (float& v : given) {
            v = rand() / 1e8f - 5;
            if (v > largest_given) largest_given = v;
        }
        CHECK(cudaMemcpyAsync(x, given.data(), 4 * N, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemcpyAsync(value, &index, 4, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemsetAsync(y, 0, 4 * N, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaMemcpyAsync(got.data(), y, 4 * N, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        launches++;
        bool differs = false;
        for (int i = 0; i < N; i++) {
            float scaled = given[i] * largest_given, expected = scaled;
            if (is_switch) expected = index <= 0 ? given[i] + 1 : index == 1 ? given[i] + 2 : scaled;
            if (!is_switch && !is_switch1 && !is_plain && index <= 0) expected = is_else ? given[i] + 2 : 0;
            differs |= got[i] != expected + (is_plain ? 0 : 1);
        }
        n_differ += differs;
    }
    printf("%s %s: %d launches, %d differ\n", argv[1], argv[2], launches, n_differ);
    return n_differ != 0;
}
