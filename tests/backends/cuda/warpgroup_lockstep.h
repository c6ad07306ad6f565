// Owns what lets the kernel of warpgroup.cu run as plain C++: its instructions, as documented.
#include "lockstep.h"
using std::max;
typedef float T;
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
#define __shfl_sync(lanes, value, lane) (value)
inline float to_float(float x) { return x; }
template <typename E> E from_float(float x) { return x; }

struct Operand { const uint4* first; int unit, neighbours; };
#define uint64_t Operand
inline Operand operand(const uint4* first, int unit, int neighbours) {
    return {first, unit, neighbours};
}
inline void publish_to_all() { meet(); }
inline void launch_next() {}
template <typename E> void begin_products(E&) {}
template <int LEFT, typename E> void await_products(E&) {}
inline void end_products() {}

// Rows come in eights at a distance, as neighbours; numbers in two units.
inline float number(const Operand& from, int row, int k) {
    const uint4* vector = from.first + row / 8 * from.neighbours + row % 8 + k / 4 * from.unit;
    float result;
    memcpy(&result, reinterpret_cast<const char*>(vector) + k % 4 * 4, 4);
    return result;
}

template <int COUNT> void multiply(float (&d)[COUNT], const Operand& a, const Operand& b) {
    int thread = threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    for (int i = 0; i < COUNT; ++i)
        for (int k = 0; k < 8; ++k)
            d[i] += number(a, thread / 32 * 16 + i / 2 % 2 * 8 + g, k) *
                    number(b, i / 4 * 8 + 2 * t + i % 2, k);
}
#define MULTIPLY(d, a, b) multiply(d, a, b)
