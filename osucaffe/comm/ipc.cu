// Owns collectives over the peers' memory, which is mapped into this process.
//
// Each rank has a region: flags, then two buffers that calls use in turn. Every call runs the same
// number of blocks, and block b of one rank meets only block b of the others: it writes its share
// to its own region, tells all peers, waits for their word, and reads their shares. A buffer is
// written again two calls later; by then every peer has begun the call between, so it has read it.
// Compiled for T (the type of an element) and A (the type in which elements are added).

#define N ((int)(16 / sizeof(T)))

struct alignas(16) Pack { T e[N]; };

__device__ __forceinline__ Pack* buffer(const uint64_t* peers, int rank, uint32_t call) {
    return (Pack*)(peers[rank] + FLAG_BYTES + (uint64_t)(call & 1) * BUFFER_BYTES);
}

__device__ __forceinline__ Pack read_pack(const Pack* from) {
    union { int4 raw; Pack pack; } value;
    value.raw = __ldcv((const int4*)from);
    return value.pack;
}

__device__ __forceinline__ Pack load(const T* x, int64_t v, int64_t count, bool aligned) {
    if (aligned && (v + 1) * N <= count) return ((const Pack*)x)[v];
    Pack pack;
    for (int i = 0; i < N; ++i) pack.e[i] = v * N + i < count ? x[v * N + i] : T();
    return pack;
}

__device__ __forceinline__ void store(T* x, int64_t v, int64_t count, bool aligned, Pack pack) {
    if (aligned && (v + 1) * N <= count) { ((Pack*)x)[v] = pack; return; }
    for (int i = 0; i < N; ++i)
        if (v * N + i < count) x[v * N + i] = pack.e[i];
}

__device__ __forceinline__ Pack add_all(const uint64_t* peers, int size, uint32_t call, int64_t v) {
    A sum[N];
    for (int i = 0; i < N; ++i) sum[i] = A(0);
    for (int rank = 0; rank < size; ++rank) {
        Pack other = read_pack(buffer(peers, rank, call) + v);
        for (int i = 0; i < N; ++i) sum[i] += to_sum(other.e[i]);
    }
    Pack result;
    for (int i = 0; i < N; ++i) result.e[i] = from_sum(sum[i]);
    return result;
}

// Every block tells its peers that it has come to `word`, and waits until they all have.
__device__ __forceinline__ void meet(const uint64_t* peers, int rank, int size, uint32_t word) {
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x < size) {
        uint32_t* there = (uint32_t*)peers[threadIdx.x] + blockIdx.x * MOST_RANKS + rank;
        uint32_t* here = (uint32_t*)peers[rank] + blockIdx.x * MOST_RANKS + threadIdx.x;
        asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(there), "r"(word) : "memory");
        uint32_t seen;
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(here) : "memory");
        } while ((int32_t)(seen - word) < 0);
    }
    __syncthreads();
}

#define BEGIN                                                          \
    uint32_t word = calls[blockIdx.x], call = word / 2;                \
    int64_t vectors = (count + N - 1) / N;                             \
    bool aligned = (uint64_t)x % 16 == 0;                              \
    Pack* own = buffer(peers, rank, call);                             \
    int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;    \
    int64_t stride = gridDim.x * (int64_t)blockDim.x;

#define END                                                            \
    __syncthreads();                                                   \
    if (threadIdx.x == 0) calls[blockIdx.x] = word + 2;

// Each rank adds everything: one meeting, (size - 1) * count elements read.
extern "C" __global__ void one_shot(T* x, int64_t count, const uint64_t* peers, int rank, int size,
                                    uint32_t* calls) {
    BEGIN
    for (int64_t v = first; v < vectors; v += stride) own[v] = load(x, v, count, aligned);
    meet(peers, rank, size, word + 2);
    for (int64_t v = first; v < vectors; v += stride)
        store(x, v, count, aligned, add_all(peers, size, call, v));
    END
}

// Each rank adds its part and then takes the others' sums: two meetings, 2 * count elements read.
extern "C" __global__ void two_shot(T* x, int64_t count, const uint64_t* peers, int rank, int size,
                                    uint32_t* calls) {
    BEGIN
    int64_t share = (vectors + size - 1) / size;
    for (int owner = 0; owner < size; ++owner)
        for (int64_t s = first; s < share; s += stride) {
            int64_t v = owner * share + s;
            if (v < vectors) own[v] = load(x, v, count, aligned);
        }
    meet(peers, rank, size, word + 1);
    for (int64_t s = first; s < share; s += stride) {
        int64_t v = rank * share + s;
        if (v < vectors) own[v] = add_all(peers, size, call, v);
    }
    meet(peers, rank, size, word + 2);
    for (int step = 0; step < size; ++step) {
        int owner = (rank + step) % size;
        for (int64_t s = first; s < share; s += stride) {
            int64_t v = owner * share + s;
            if (v < vectors)
                store(x, v, count, aligned, read_pack(buffer(peers, owner, call) + v));
        }
    }
    END
}

// Each element comes from the rank that has it: the root, or (root < 0) the owner of its part of
// the whole array, of which this is the piece that begins at `offset`.
extern "C" __global__ void pull(T* x, int64_t count, const uint64_t* peers, int rank, int size,
                                uint32_t* calls, int root, int64_t offset, int64_t whole) {
    BEGIN
    for (int64_t v = first; v < vectors; v += stride) own[v] = load(x, v, count, aligned);
    meet(peers, rank, size, word + 2);
    for (int64_t v = first; v < vectors; v += stride) {
        int from = rank;
        Pack pack = own[v];
        for (int i = 0; i < N && v * N + i < count; ++i) {
            int64_t at = v * N + i;
            int owner = root >= 0 ? root : (int)(((offset + at + 1) * size - 1) / whole);
            if (owner != from) pack = read_pack(buffer(peers, owner, call) + v), from = owner;
            x[at] = pack.e[i];
        }
    }
    END
}
