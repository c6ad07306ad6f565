// Sums, which copy engines cannot do.
//
// Compiled for T (the type of an element), A (the type in which elements are added), and PEERS.

#define N ((int)(16 / sizeof(T)))

struct alignas(16) Pack { T e[N]; };

// x += the arrays that the peers have left in `slots`, `pitch` bytes apart. All loads of a vector
// are under way at once: a few threads are to keep the memory busy.
extern "C" __global__ void add(T* x, int64_t count, const char* slots, int64_t pitch) {
    int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t stride = gridDim.x * (int64_t)blockDim.x;
    int64_t vectors = (uint64_t)x % 16 ? 0 : count / N;
    for (int64_t v = first; v < vectors; v += stride) {
        Pack own = ((const Pack*)x)[v], others[PEERS];
#pragma unroll
        for (int peer = 0; peer < PEERS; ++peer)
            others[peer] = ((const Pack*)(slots + peer * pitch))[v];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            A sum = to_sum(own.e[i]);
#pragma unroll
            for (int peer = 0; peer < PEERS; ++peer) sum += to_sum(others[peer].e[i]);
            own.e[i] = from_sum(sum);
        }
        ((Pack*)x)[v] = own;
    }
    for (int64_t i = vectors * N + first; i < count; i += stride) {
        A sum = to_sum(x[i]);
        for (int peer = 0; peer < PEERS; ++peer) sum += to_sum(((const T*)(slots + peer * pitch))[i]);
        x[i] = from_sum(sum);
    }
}
