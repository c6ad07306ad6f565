// Owns what lets the kernels of large.cu run as plain C++: their instructions, as documented.
//
// What is asynchronous is done as late as it may be: copies to shared memory when LATE_COPIES,
// otherwise products and copies from there; the others are done at once.
#include "lockstep.h"
#include <map>
using std::max;
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
static Index blockDim;
#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * blockDim.x + threadIdx.x; id < (count); \
         id += gridDim.x * blockDim.x)

// -- threads of a warp

static int arrived[32], meetings[32];
static void meet_warp() {
    int warp = threadIdx.x / 32, before = meetings[warp];
    if (++arrived[warp] == 32) {
        arrived[warp] = 0;
        ++meetings[warp];
    }
    while (meetings[warp] == before) meet();
}
#define __syncwarp meet_warp
#define __shfl_sync(lanes, value, lane) (value)
static bool votes[1024];
inline uint32_t __ballot_sync(uint32_t, bool vote) {
    int first = threadIdx.x / 32 * 32;
    votes[threadIdx.x] = vote;
    meet_warp();
    uint32_t result = 0;
    for (int i = 0; i < 32; ++i) result |= (uint32_t)votes[first + i] << i;
    meet_warp();
    return result;
}
#define __popc __builtin_popcount

// -- barriers and copies

inline uint32_t shared_address(const void* at) { return (const char*)at - (const char*)::shared; }

struct Transfer { void* to; const void* from; int bytes; bool there; };
static void perform(const Transfer& each) {
    if ((uintptr_t)each.to % 16 || (uintptr_t)each.from % 16 || each.bytes % 16) abort();
    if (each.there) memcpy(each.to, each.from, each.bytes);
    else memset(each.to, 0, each.bytes);
}

struct Barrier {
    int expected, missing, bytes = 0, phase = 0;
    std::vector<Transfer> transfers;
    void settle() {
        if (missing < 0) abort();
        if (missing || bytes || !transfers.empty()) return;
        missing = expected;
        phase ^= 1;
    }
    void complete() {
        for (const Transfer& each : transfers) perform(each);
        transfers.clear();
    }
};
static std::map<uint32_t, Barrier> barriers;
static std::vector<Transfer> copied[1024], sent[1024];
static std::map<uint32_t, int> incoming;

inline void init_barrier(uint32_t at, int arrivals) {
    barriers[at] = {arrivals, arrivals};
    incoming[at] = 0;
}
inline void arrive_with(uint32_t at, int bytes) {
    Barrier& barrier = barriers.at(at);
    barrier.bytes += bytes;
    --barrier.missing;
    barrier.settle();
}
inline void arrive(uint32_t at) { arrive_with(at, 0); }
inline void await(uint32_t at, int parity) {
    for (int tries = 0; barriers.at(at).phase == parity; ++tries) {
        Barrier& barrier = barriers.at(at);
        if (!barrier.missing) {
            barrier.complete();
            barrier.bytes -= incoming[at];
            incoming[at] = 0;
            barrier.settle();
        }
        if (barrier.phase != parity) break;
        if (tries == 1 << 16) abort();
        meet();
    }
}
inline void copy_vector(uint4* to, const float* from, bool there) {
    Transfer each = {to, from, 16, there};
    if (LATE_COPIES) copied[threadIdx.x].push_back(each);
    else perform(each);
}
inline void arrive_when_copied(uint32_t at) {
    auto& mine = copied[threadIdx.x];
    auto& all = barriers.at(at).transfers;
    all.insert(all.end(), mine.begin(), mine.end());
    mine.clear();
    arrive(at);
}
inline void fetch(void* to, const void* from, int bytes, uint32_t at) {
    Transfer each = {to, from, bytes, true};
    Barrier& barrier = barriers.at(at);
    if (LATE_COPIES) {
        barrier.transfers.push_back(each);
        incoming[at] += bytes;
    } else {
        perform(each);
        barrier.bytes -= bytes;
        barrier.settle();
    }
}
inline void send(void* to, const void* from, int bytes) {
    Transfer each = {to, from, bytes, true};
    if (LATE_COPIES) perform(each);
    else sent[threadIdx.x].push_back(each);
}
inline void end_sending() {}
inline void await_reading() {
    for (const Transfer& each : sent[threadIdx.x]) perform(each);
    sent[threadIdx.x].clear();
}
inline void await_sending() { await_reading(); }
inline void publish() {}
template <int COUNT> void more_registers() {}
template <int COUNT> void fewer_registers() {}

// -- products

struct Operand {
    const uint4* first;
    int plane;
    Operand operator+(int vectors) const { return {first + vectors, plane}; }
};
#define uint64_t Operand
inline Operand operand(const uint4* first, int plane) { return {first, plane}; }

inline float number(const Operand& from, int row, int k) {
    float result;
    memcpy(&result, (const char*)(from.first + row + k / 4 * from.plane) + k % 4 * 4, 4);
    return result;
}
static void multiply(float* d, int count, const Operand& a, const Operand& b) {
    int thread = threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    for (int i = 0; i < count; ++i)
        for (int k = 0; k < 8; ++k)
            d[i] += number(a, thread / 32 * 16 + i / 2 % 2 * 8 + g, k) *
                    number(b, i / 4 * 8 + 2 * t + i % 2, k);
}
struct Product { float* d; int count; Operand a, b; };
static std::vector<std::vector<Product>> products[1024];
template <int COUNT> void begin_product(float (&d)[COUNT], const Operand& a, const Operand& b) {
    if (LATE_COPIES) return multiply(d, COUNT, a, b);
    products[threadIdx.x].back().push_back({d, COUNT, a, b});
}
#define MULTIPLY(d, a, b) begin_product(d, a, b)
template <typename E> void begin_products(E&) { products[threadIdx.x].emplace_back(); }
inline void end_products() {}
template <int LEFT, typename E> void await_products(E&) {
    auto& mine = products[threadIdx.x];
    while (mine.size() > LEFT) {
        for (const Product& each : mine.front()) multiply(each.d, each.count, each.a, each.b);
        mine.erase(mine.begin());
    }
}
