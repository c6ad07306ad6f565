// What threads of a warp tell one another, for kernels as plain C++ (lockstep.h): they meet,
// and read what the others have left. And the rest of CUDA that common.cuh and kernels in float use.

struct uint4 { uint32_t x, y, z, w; };
static uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

template <typename T> static T __shfl_xor_sync(unsigned, T value, int lanes) {
    return exchange(value, running ^ lanes);
}

template <typename T> static T __shfl_up_sync(unsigned, T value, int lanes) {
    return exchange(value, running % 32 < lanes ? running : running - lanes);
}

template <typename T> static T __shfl_down_sync(unsigned, T value, int lanes) {
    return exchange(value, running % 32 + lanes > 31 ? running : running + lanes);
}

static unsigned __ballot_sync(unsigned, bool flag) {
    unsigned set = 0;
    left_behind[running] = flag;
    meet_warp();
    for (int lane = 0; lane < 32; ++lane)
        set |= unsigned(left_behind[(running & ~31) + lane]) << lane;
    meet_warp();
    return set;
}

static int __syncthreads_or(int flag) {
    left_behind[running] = flag;
    __syncthreads();
    bool any = false;
    for (int i = 0; i < blockDim.x * blockDim.y; ++i) any |= left_behind[i] != 0;
    __syncthreads();
    return any;
}

template <typename To, typename From> static To as(From x) {
    To bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static uint32_t __float_as_uint(float x) { return as<uint32_t>(x); }
static int __float_as_int(float x) { return as<int>(x); }
static float __uint_as_float(uint32_t x) { return as<float>(x); }
static float __int_as_float(int x) { return as<float>(x); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static int atomicAdd(int* at, int value) { return (*at += value) - value; }
static int atomicMax(int* at, int value) { int was = *at; *at = max(was, value); return was; }
static float __fdividef(float a, float b) { return a / b; }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int __ffs(int bits) { return __builtin_ffs(bits); }

// What kernels have instructions for.
static float power(float s, float beta) { return powf(s, -beta); }
template <typename T, int N> struct Vector;
template <typename T, int N> static void store(T* to, const Vector<T, N>& v) {
    *reinterpret_cast<Vector<T, N>*>(to) = v;
}
