// What all kernels share: element types, vectors of 16 bytes, sums over a block, random bits.
//
// The 16-bit types are our own, a few lines, because CUDA's headers for them take NVRTC ten times
// as long to read as one of our kernels takes to compile.

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

struct bfloat16 { uint16_t bits; };
struct float16 { uint16_t bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bfloat16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
__device__ __forceinline__ float to_float(float16 x) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
}
__device__ __forceinline__ float to_float(uint8_t x) { return x; }
__device__ __forceinline__ float to_float(int x) { return x; }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float(float x) { return x; }
template <> __device__ __forceinline__ bfloat16 from_float(float x) {
    bfloat16 value;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
#else
    uint32_t bits = __float_as_uint(x);
    value.bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
    return value;
}
template <> __device__ __forceinline__ float16 from_float(float x) {
    float16 value;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
    return value;
}
template <> __device__ __forceinline__ uint8_t from_float(float x) { return (uint8_t)x; }
template <> __device__ __forceinline__ int from_float(float x) { return (int)x; }

// A label or an index, read from floats. NaN becomes the least, which is out of range: a mere cast makes
// it 0, which is not.
__device__ __forceinline__ int whole_number(float x) { return x == x ? (int)x : (int)0x80000000; }

// The greater of two, NaN if one is.
__device__ __forceinline__ float max_or_nan(float x, float y) {
#if __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
#else
    return x > y || x != x ? x : y;
#endif
}

// Programmatic dependent launch (runtime/driver.py): until all that a kernel follows has ended, it does
// nothing. Without this at its head it might run beside that; `kernel_from` refuses such a text.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// From here on, if all blocks have come so far, the kernel after this one may be launched, to wait in
// turn. A kernel that runs long calls it late: the threads that wait keep others from running.
__device__ __forceinline__ void pdl_launch_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The head of a kernel that need not say where the next one is launched.
#define PDL_BEGIN pdl_wait(), pdl_launch_next()

#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; id < (count); \
         id += (int64_t)gridDim.x * blockDim.x)

// N neighbouring elements, loaded and stored as one word of up to 16 bytes.
template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
    T element[N];
};

// Of 16 bits, two at a time: the compiler takes them apart and together in more instructions.
template <typename T> constexpr bool is_bfloat16 = false;
template <> constexpr bool is_bfloat16<bfloat16> = true;

template <typename T, int N>
__device__ __forceinline__ void unpack(const Vector<T, N>& v, float (&to)[N]) {
    if constexpr (is_bfloat16<T> && N % 2 == 0) {
        const auto& words = reinterpret_cast<const Vector<uint32_t, N / 2>&>(v);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            uint32_t word = words.element[i / 2];
            to[i] = __uint_as_float(i % 2 ? word & 0xffff0000 : word << 16);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = to_float(v.element[i]);
    }
}

template <typename T, int N> __device__ __forceinline__ void load(const T* from, float (&to)[N]) {
    Vector<T, N> v = *reinterpret_cast<const Vector<T, N>*>(from);
    unpack(v, to);
}

template <typename T, int N> __device__ __forceinline__ Vector<T, N> pack(const float (&from)[N]) {
    Vector<T, N> v;
#if __CUDA_ARCH__ >= 800
    if constexpr (is_bfloat16<T> && N % 2 == 0) {
        auto& words = reinterpret_cast<Vector<uint32_t, N / 2>&>(v);
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
                : "=r"(words.element[i]) : "f"(from[2 * i + 1]), "f"(from[2 * i]));
        return v;
    }
#endif
#pragma unroll
    for (int i = 0; i < N; ++i) v.element[i] = from_float<T>(from[i]);
    return v;
}

// A vector to global memory. The compiler takes assignments apart where it shares them between branches:
// parts of sectors then take several times as long.
template <typename T, int N> __device__ __forceinline__ void store(T* to, const Vector<T, N>& v) {
    const auto* words = reinterpret_cast<const uint32_t*>(&v);
    if constexpr (sizeof(v) == 16)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]),
                     "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
    else if constexpr (sizeof(v) == 8)
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1])
                     : "memory");
    else
        *reinterpret_cast<Vector<T, N>*>(to) = v;
}

template <typename T, int N> __device__ __forceinline__ void store(T* to, const float (&from)[N]) {
    store(to, pack<T>(from));
}

// A number of each channel from `column` on: `otherwise` where there are none.
template <int N>
__device__ __forceinline__ void channels(const float* from, int column, float otherwise, float (&to)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = from ? from[column + j] : otherwise;
}

template <typename N> __device__ __forceinline__ N warp_sum(N x) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) x += __shfl_xor_sync(0xffffffff, x, lane);
    return x;
}

// -log(FLT_MIN): the most that a label adds to a loss of softmax, as in Caffe; NaN stays NaN.
__device__ __forceinline__ float bounded_loss(float loss) {
    return loss > 87.33654475f ? 87.33654475f : loss;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lane));
    return x;
}

// The sum over a block, in every thread; always added in the same order.
template <typename N> __device__ __forceinline__ N block_sum(N x) {
    __shared__ N partial[32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    int warps = (blockDim.x + 31) >> 5;
    return warp_sum(lane < warps ? partial[lane] : (N)0);
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
