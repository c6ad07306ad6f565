// Owns what the copy engines cannot do: the ranks' meetings, and sums.
//
// Compiled for T (the type of an element) and A (the type in which elements are added).

#define N ((int)(16 / sizeof(T)))

struct alignas(16) Pack { T e[N]; };

// Tell all peers that this rank has come here, and wait until they all have. One warp.
// A rank can be one meeting ahead of another at most, which `<` takes for having come.
extern "C" __global__ void meet(const uint64_t* flags, int rank, int size, uint32_t* meetings) {
    uint32_t word = *meetings + 1;
    __syncwarp();
    if (threadIdx.x < size) {
        uint32_t* there = (uint32_t*)flags[threadIdx.x] + rank;
        uint32_t* here = (uint32_t*)flags[rank] + threadIdx.x;
        __threadfence_system();
        asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(there), "r"(word) : "memory");
        uint32_t seen;
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(here) : "memory");
        } while ((int32_t)(seen - word) < 0);
    }
    __syncwarp();
    if (threadIdx.x == 0) *meetings = word;
}

// x += the arrays that the peers have left in `slots`, `pitch` bytes apart.
extern "C" __global__ void add(T* x, int64_t count, const char* slots, int64_t pitch, int peers) {
    int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t stride = gridDim.x * (int64_t)blockDim.x;
    int64_t vectors = (uint64_t)x % 16 ? 0 : count / N;
    for (int64_t v = first; v < vectors; v += stride) {
        Pack own = ((const Pack*)x)[v];
        A sum[N];
        for (int i = 0; i < N; ++i) sum[i] = to_sum(own.e[i]);
        for (int peer = 0; peer < peers; ++peer) {
            Pack other = ((const Pack*)(slots + peer * pitch))[v];
            for (int i = 0; i < N; ++i) sum[i] += to_sum(other.e[i]);
        }
        for (int i = 0; i < N; ++i) own.e[i] = from_sum(sum[i]);
        ((Pack*)x)[v] = own;
    }
    for (int64_t i = vectors * N + first; i < count; i += stride) {
        A sum = to_sum(x[i]);
        for (int peer = 0; peer < peers; ++peer) sum += to_sum(((const T*)(slots + peer * pitch))[i]);
        x[i] = from_sum(sum);
    }
}
