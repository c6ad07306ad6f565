// Owns what lets the kernels of filter_gradient.cu run as plain C++: their instructions, as
// documented. Copies are over at once; who waits lets all others run.
#include "lockstep.h"
#define __shfl_sync(lanes, value, lane) (value)
struct float2 { float x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
#define __grid_constant__
#define __align__(bytes)
template <int N> void store(float* to, const float (&from)[N]) { memcpy(to, from, sizeof from); }

static char* memory() { return reinterpret_cast<char*>(::shared); }
inline uint64_t shared_address(const void* p) { return static_cast<const char*>(p) - memory(); }

// Of 16 bits each: arrivals in a phase, those that are missing, and phases that are over.
inline void begin_barrier(uint64_t* barrier, uint64_t arrivals) {
    *barrier = arrivals | arrivals << 16;
}
inline void publish_barriers() {}
inline void arrive(uint64_t* barrier) {
    uint64_t arrivals = *barrier & 0xffff, missing = *barrier >> 16 & 0xffff, over = *barrier >> 32;
    if (--missing == 0) missing = arrivals, ++over;
    *barrier = arrivals | missing << 16 | over << 32;
}
static int expected;
inline void expect(uint64_t*, int bytes) { expected = bytes; }
inline void await(uint64_t* barrier, int parity) {
    while ((*barrier >> 32 & 1) == parity) meet();
}

// Of a map: the address, extents, strides in elements but the first, extents of a box.
inline void copy_box(void* to, const TensorMap& map, uint64_t* barrier, int i, int j, int k, int l,
                     int m) {
    const uint64_t *extents = map.words + 1, *strides = map.words + 6, *box = map.words + 10;
    const float* from = reinterpret_cast<const float*>(map.words[0]);
    float* next = static_cast<float*>(to);
    if (shared_address(to) % 128) abort();
    int first[5] = {i, j, k, l, m}, at[5];
    int count = box[0] * box[1] * box[2] * box[3] * box[4];
    if (count * 4 != expected) abort();
    for (int each = 0; each < count; ++each) {
        int rest = each;
        bool real = true;
        int64_t offset = 0;
        for (int axis = 0; axis < 5; ++axis) {
            at[axis] = first[axis] + rest % (int)box[axis], rest /= (int)box[axis];
            real &= at[axis] >= 0 && at[axis] < (int64_t)extents[axis];
            offset += at[axis] * (axis ? (int64_t)strides[axis - 1] : 1);
        }
        *next++ = real ? from[offset] : 0.0f;
    }
    arrive(barrier);
}

inline uint32_t nearest(float value) { return rounded(value); }
inline void publish() {}
inline void meet_turners() {
    static int come;
    int phase = come++ / 128;
    while (come < (phase + 1) * 128) meet();
}
inline void begin_products() {}
inline void end_products() {}
template <int COUNT> void await_products() {}
#define WITH_REGISTERS(how, count)

static uint32_t operands[1024][4];
// Of a warp's lanes: 16 rows, of 8 numbers; the right operand has these in two vectors.
template <int COUNT> void multiply(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b) {
    int lane = threadIdx.x % 32, warp = threadIdx.x - lane, g = lane / 4, t = lane % 4;
    memcpy(operands[threadIdx.x], a, 16);
    meet();
    auto left = [&](int row, int k) {
        float result;
        memcpy(&result, &operands[warp + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2], 4);
        return result;
    };
    auto right = [&](int n, int k) {
        uint64_t field[3] = {b & 0x3fff, b >> 16 & 0x3fff, b >> 32 & 0x3fff};
        float result;
        memcpy(&result, memory() + (field[0] + k / 4 * field[1] + n / 8 * field[2] + n % 8) * 16 +
                            k % 4 * 4, 4);
        return result;
    };
    for (int i = 0; i < COUNT; ++i)
        for (int k = 0; k < 8; ++k)
            d[i] += left(i / 2 % 2 * 8 + g, k) * right(i / 4 * 8 + 2 * t + i % 2, k);
    meet();
}
#define MULTIPLY(d, a, b) multiply(d, a, b)
