// Owns what threads of a warp tell one another, for kernels as plain C++ (lockstep.h): they meet,
// and read what the others have left. And the rest of CUDA that kernels of plain loops use.
#include <cmath>

typedef unsigned char uint8_t;
static Index blockDim;
static int64_t left_behind[1024];

template <typename T> static T exchange(T value, int from) {
    static_assert(sizeof(T) <= 8, "");
    memcpy(&left_behind[threadIdx.x], &value, sizeof value);
    meet();
    T found;
    memcpy(&found, &left_behind[from], sizeof found);
    meet();
    return found;
}

template <typename T> static T __shfl_xor_sync(unsigned, T value, int lanes) {
    return exchange(value, threadIdx.x ^ lanes);
}

static unsigned __ballot_sync(unsigned, bool flag) {
    unsigned set = 0;
    left_behind[threadIdx.x] = flag;
    meet();
    for (int lane = 0; lane < 32; ++lane)
        set |= unsigned(left_behind[(threadIdx.x & ~31) + lane]) << lane;
    meet();
    return set;
}

static int __syncthreads_or(int flag) {
    left_behind[threadIdx.x] = flag;
    meet();
    bool any = false;
    for (int i = 0; i < blockDim.x; ++i) any |= left_behind[i] != 0;
    meet();
    return any;
}

static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static int atomicAdd(int* at, int value) { return (*at += value) - value; }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static uint32_t __float_as_uint(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; id < (count); \
         id += (int64_t)gridDim.x * blockDim.x)

// Elements are floats here.
template <typename T> static T from_float(float x) { return x; }
static float to_float(float x) { return x; }
template <typename T, int N> static void load(const T* from, float (&to)[N]) {
    memcpy(to, reinterpret_cast<const Vector<T, N>*>(from)->element, sizeof to);
}
template <typename T, int N> static void unpack(const Vector<T, N>& v, float (&to)[N]) {
    load(v.element, to);
}
template <typename T, int N> static Vector<T, N> pack(const float (&from)[N]) {
    Vector<T, N> v;
    for (int i = 0; i < N; ++i) v.element[i] = from[i];
    return v;
}
template <typename T, int N> static void store(T* to, const Vector<T, N>& v) {
    *reinterpret_cast<Vector<T, N>*>(to) = v;
}
template <typename T, int N> static void store(T* to, const float (&from)[N]) {
    for (int i = 0; i < N; ++i) reinterpret_cast<Vector<T, N>*>(to)->element[i] = from[i];
}
