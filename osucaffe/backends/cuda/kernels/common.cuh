// Owns what all kernels share: element types, vectors of 16 bytes, sums over a block, random bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(unsigned char x) { return x; }
__device__ __forceinline__ float to_float(int x) { return x; }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float(float x) { return x; }
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float x) { return __float2bfloat16(x); }
template <> __device__ __forceinline__ __half from_float(float x) { return __float2half(x); }
template <> __device__ __forceinline__ unsigned char from_float(float x) { return (unsigned char)x; }
template <> __device__ __forceinline__ int from_float(float x) { return (int)x; }

// N neighbouring elements, loaded and stored as one word of up to 16 bytes.
template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
    T element[N];
};

template <typename T, int N> __device__ __forceinline__ void load(const T* from, float (&to)[N]) {
    Vector<T, N> v = *reinterpret_cast<const Vector<T, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = to_float(v.element[i]);
}

template <typename T, int N> __device__ __forceinline__ void store(T* to, const float (&from)[N]) {
    Vector<T, N> v;
#pragma unroll
    for (int i = 0; i < N; ++i) v.element[i] = from_float<T>(from[i]);
    *reinterpret_cast<Vector<T, N>*>(to) = v;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) x += __shfl_xor_sync(0xffffffff, x, lane);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lane));
    return x;
}

// The sum over a block, in every thread; always added in the same order.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float partial[32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    int warps = (blockDim.x + 31) >> 5;
    return warp_sum(lane < warps ? partial[lane] : 0.0f);
}

// squares32 of Widynski (2020): 32 random bits from a counter and a key.
__device__ __forceinline__ uint32_t squares32(uint64_t counter, uint64_t key) {
    uint64_t x = counter * key, y = x, z = y + key;
    x = x * x + y; x = (x >> 32) | (x << 32);
    x = x * x + z; x = (x >> 32) | (x << 32);
    x = x * x + y; x = (x >> 32) | (x << 32);
    return (uint32_t)((x * x + z) >> 32);
}

// The finalizer of splitmix64, as in random.py.
__device__ __forceinline__ uint64_t mix64(uint64_t v) {
    v += 0x9E3779B97F4A7C15ull;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
    return v ^ (v >> 31);
}
