// Collectives by stores into the peers' memory: one or two trips over the links, no barrier.
//
// Data travel in packets of 16 bytes, of which the last four are the number of the call. A rank
// stores them into its peers' memory; a peer looks at its own memory until the number appears. A
// 16-byte access is indivisible (PTX: a scalar of .b128), so with the number the data are there,
// and no fence is needed. NCCL's protocol LL has the same idea with 8 bytes.
//
// Each rank has two slots, which calls use in turn. A rank stores into a slot again two calls
// later; before, it has completed the call between, for which it had to see a packet of every
// peer; and a peer sends that one after it has ended the earlier call (calls run in order on a
// stream), so it reads that slot no more. For this every rank must send something to every other
// in each call. What an earlier call left in a slot bears an earlier number, however it lay there:
// the last word of 16 aligned bytes is always a number. (Numbers come again after 2^32 calls. Only
// a place that was last written exactly that many calls ago would then deceive.)
//
// Every call runs the same blocks on each rank, and a block waits for packets of the same block
// only: it does no harm that not all run at a time, as they start in their order.
//
// Sums are made in the order of the ranks, by every rank or by one for all: the same bits.
// Compiled for T (the type of an element), A (the type in which elements are added), RANKS,
// SLOT (packets in a slot), BLOCKS (the most of a launch) and THREADS (of a block, at most).

#define N ((int)(12 / sizeof(T)))

__device__ __forceinline__ int packets_of(int count) { return (count + N - 1) / N; }

union Packet {
    T e[N];
    uint32_t word[4];  // the last one is the number of the call
    uint64_t half[2];
};

__device__ __forceinline__ void put(Packet* to, Packet packet) {
    asm volatile("{ .reg .b128 p; mov.b128 p, {%1, %2}; st.relaxed.sys.global.b128 [%0], p; }"
                 :: "l"(to), "l"(packet.half[0]), "l"(packet.half[1]) : "memory");
}

__device__ __forceinline__ Packet look(const Packet* at) {
    Packet packet;
    asm volatile("{ .reg .b128 p; ld.relaxed.sys.global.b128 p, [%2]; mov.b128 {%0, %1}, p; }"
                 : "=l"(packet.half[0]), "=l"(packet.half[1]) : "l"(at) : "memory");
    return packet;
}

__device__ __forceinline__ Packet pack(const T* x, int v, int count, uint32_t call) {
    Packet packet;
    packet.half[0] = packet.half[1] = 0;
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (v * N + i < count) packet.e[i] = x[v * N + i];
    packet.word[3] = call;
    return packet;
}

__device__ __forceinline__ void unpack(T* x, int v, int count, const Packet& packet) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (v * N + i < count) x[v * N + i] = packet.e[i];
}

// Wait for a packet of each of the ranks in the bits of `from`; they lie `apart` from one another.
__device__ __forceinline__ void wait_for(Packet (&got)[RANKS], const Packet* first, int apart,
                                      uint32_t from, uint32_t call) {
    uint32_t missing;
    do {
        missing = 0;
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (from >> r & 1) got[r] = look(first + r * apart);
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (from >> r & 1) missing |= got[r].word[3] ^ call;
    } while (missing);
}

__device__ __forceinline__ Packet add_all(const Packet (&got)[RANKS], uint32_t call) {
    Packet total;
    total.half[0] = total.half[1] = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        A sum = to_sum(got[0].e[i]);
#pragma unroll
        for (int r = 1; r < RANKS; ++r) sum += to_sum(got[r].e[i]);
        total.e[i] = from_sum(sum);
    }
    total.word[3] = call;
    return total;
}

// calls[b] is the number of the last call, for block b: launches have different numbers of blocks,
// so each block keeps it for those that are not there, too. It never becomes 0, which new memory
// holds, and changes from odd to even for ever.
#define BEGIN                                                        \
    uint32_t call = calls[blockIdx.x] + 1;                           \
    if (!call) call = 2;                                             \
    int first = blockIdx.x * blockDim.x + threadIdx.x;               \
    int stride = gridDim.x * blockDim.x;                             \
    uint32_t others = (1u << RANKS) - 1 - (1u << rank);              \
    Packet* there[RANKS];                                            \
    _Pragma("unroll") for (int r = 0; r < RANKS; ++r)                \
        there[r] = (Packet*)slots[r] + (call & 1) * SLOT;            \
    const Packet* here = (Packet*)slots[rank] + (call & 1) * SLOT;

#define END                                                          \
    __syncthreads();                                                 \
    for (int b = blockIdx.x + threadIdx.x * gridDim.x; b < BLOCKS; b += stride) calls[b] = call;

// Every rank sends all it has to all, and adds all. In a slot: [rank][packet].
extern "C" __global__ void __launch_bounds__(THREADS)
one_shot(T* x, int count, const uint64_t* slots, uint32_t* calls, int rank) {
    BEGIN
    int packets = packets_of(count);
    for (int v = first; v < packets; v += stride) {
        Packet own = pack(x, v, count, call);
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (r != rank) put(there[r] + rank * packets + v, own);
    }
    for (int v = first; v < packets; v += stride) {
        Packet got[RANKS], own = pack(x, v, count, call);
#pragma unroll
        for (int r = 0; r < RANKS; ++r) got[r] = own;
        wait_for(got, here + v, packets, others, call);
        unpack(x, v, count, add_all(got, call));
    }
    END
}

// Every rank sends each part to its owner, who adds them and sends the sums to all. In a slot:
// [rank][packet of the own part], then [owner][packet of its part]. No part may be empty.
extern "C" __global__ void __launch_bounds__(THREADS)
two_shot(T* x, int count, const uint64_t* slots, uint32_t* calls, int rank) {
    BEGIN
    int packets = packets_of(count), most = (packets + RANKS - 1) / RANKS;  // of a part
    int own_start = packets * rank / RANKS, own_stop = packets * (rank + 1) / RANKS;
    for (int s = first; s < most; s += stride) {
#pragma unroll
        for (int r = 0; r < RANKS; ++r) {
            int v = packets * r / RANKS + s;
            if (r != rank && v < packets * (r + 1) / RANKS)
                put(there[r] + rank * most + s, pack(x, v, count, call));
        }
    }
    for (int s = first; s < own_stop - own_start; s += stride) {
        Packet got[RANKS], own = pack(x, own_start + s, count, call);
#pragma unroll
        for (int r = 0; r < RANKS; ++r) got[r] = own;
        wait_for(got, here + s, most, others, call);
        Packet total = add_all(got, call);
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (r != rank) put(there[r] + (RANKS + rank) * most + s, total);
        unpack(x, own_start + s, count, total);
    }
    for (int s = first; s < most; s += stride) {
        uint32_t from = 0;
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (packets * r / RANKS + s < packets * (r + 1) / RANKS) from |= 1u << r;
        Packet got[RANKS];
        wait_for(got, here + RANKS * most + s, most, from & others, call);
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if ((from & others) >> r & 1) unpack(x, packets * r / RANKS + s, count, got[r]);
    }
    END
}

// The elements of an array that a rank gives the others: of those that it owns, `count` from
// `offset` on, if there are that many. All are the root's, or (root < 0) each rank has its part.
struct Range { int64_t start; int count; };

__device__ __forceinline__ Range range_of(int rank, int root, int64_t whole, int64_t offset,
                                          int count) {
    int64_t start = root < 0 ? whole * rank / RANKS : 0;
    int64_t stop = root < 0 ? whole * (rank + 1) / RANKS : rank == root ? whole : 0;
    int64_t left = stop - start - offset;
    return {start + offset, (int)(left < 0 ? 0 : left < count ? left : count)};
}

// Every rank sends all others what is its to give, or an empty packet. In a slot: [rank][packet].
extern "C" __global__ void __launch_bounds__(THREADS)
spread(T* x, int root, int64_t whole, int64_t offset, int count, const uint64_t* slots,
       uint32_t* calls, int rank) {
    BEGIN
    int most = packets_of(count);
    Range own = range_of(rank, root, whole, offset, count);
    for (int v = first; v < max(1, packets_of(own.count)); v += stride) {
        Packet packet = pack(x + own.start, v, own.count, call);
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (r != rank) put(there[r] + rank * most + v, packet);
    }
    for (int v = first; v < most; v += stride) {
        uint32_t from = 0;
#pragma unroll
        for (int r = 0; r < RANKS; ++r)
            if (v < max(1, packets_of(range_of(r, root, whole, offset, count).count)))
                from |= 1u << r;
        from &= others;
        Packet got[RANKS];
        wait_for(got, here + v, most, from, call);
#pragma unroll
        for (int r = 0; r < RANKS; ++r) {
            Range theirs = range_of(r, root, whole, offset, count);
            if (from >> r & 1) unpack(x + theirs.start, v, theirs.count, got[r]);
        }
    }
    END
}
