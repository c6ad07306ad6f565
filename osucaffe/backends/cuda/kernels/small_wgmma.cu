// Owns small convolutions with stride 1, on images with the channels last, by what Hopper GPUs have
// for four warps together: products of tiles that lie in shared memory.
//
// Sums run over units: EACH channels (16 bytes, floats rounded to tf32) of a tap. A block keeps its
// part of the image, with a border of zeros, as planes of such vectors, and the filters as vectors
// of outputs, unit by unit. A tile is 8 x 8 pixels: the instruction takes vectors of 8 neighbours,
// 8 times at a distance, from wherever a tap says, so that nothing is copied. It multiplies two
// units: neighbouring planes of a tap or, in the last of an odd number of them, neighbouring taps.
//
// S, T: element types of the input and of the output (and the filters); C, H, W: the input;
// O, OH, OW: the output; KH, KW, PH, PW: kernel and padding; SN, SC, SH, SW: the input's strides;
// VEC, WVEC: channels that are loaded at once of the input and the filters; FLIPPED: w is
// (C, KH, KW, O) and rotated by 180 degrees, as the gradient to the input wants it; DOWN, ACROSS:
// tiles of a block; DEEP: tiles of a group of four warps; SPLITS: groups that share the sum over
// units; OWN: outputs of a block; STAGES: parts of the filters, of STAGE units, that are loaded one
// behind the other, each while the one before is multiplied; MASKED: y becomes 0 where `relu_output`,
// which lies as y does, is not positive; MULTIPLY(d, a, b): the instruction; THREADS: of a block;
// RESIDENT: blocks on a processor.
// Blocks: images x parts of 8 DOWN rows x parts of OWN outputs.

#define PLANES ((C + EACH - 1) / EACH)
#define TAPS (KH * KW)
#define EVEN (PLANES / 2 * 2)
#define UNITS (PLANES * TAPS)
#define WIDTH (ACROSS * 8 + KW - 1)
#define HEIGHT (DOWN * 8 + KH - 1)
#define N ((OWN + 7) / 8 * 8)
// Odd distances, so that neighbouring threads write to different banks. One pixel more than there
// are, beside the last tap.
#define PLANE (HEIGHT * WIDTH + 1 | 1)
#define UNIT (N | 1)
#define LOADED ((STAGE * N + THREADS - 1) / THREADS)
#define BATCH 4
#define GROUPS (DOWN * ACROSS / DEEP)

// What was written to shared memory is there for all threads and for the instruction.
__device__ __forceinline__ void fence_and_sync() {
    fence_proxy_async();
    __syncthreads();
}

template <typename E> struct Channels { E element[EACH]; };

// EACH channels at this distance, zero from `count` on; V: neighbours that are loaded at once.
template <typename E, int V>
__device__ __forceinline__ Channels<E> channels(const E* from, int64_t distance, int count) {
    Channels<E> found = {};
#pragma unroll
    for (int i = 0; i < EACH; i += V) {
        if (i >= count) continue;
        auto v = *reinterpret_cast<const Vector<E, V>*>(from + i * distance);
#pragma unroll
        for (int j = 0; j < V; ++j) found.element[i + j] = v.element[j];
    }
    return found;
}

#if EACH == 8
__device__ __forceinline__ uint32_t word(T low, T high) {
    return low.bits | (uint32_t)high.bits << 16;
}
template <typename E> __device__ __forceinline__ uint32_t word(E low, E high) {
    return word(from_float<T>(to_float(low)), from_float<T>(to_float(high)));
}
#endif

template <typename E> __device__ __forceinline__ uint4 packed(const Channels<E>& from) {
    const E* e = from.element;
#if EACH == 8
    return make_uint4(word(e[0], e[1]), word(e[2], e[3]), word(e[4], e[5]), word(e[6], e[7]));
#else
    return make_uint4(round_to_tf32(to_float(e[0])), round_to_tf32(to_float(e[1])),
                      round_to_tf32(to_float(e[2])), round_to_tf32(to_float(e[3])));
#endif
}

__device__ __forceinline__ int tap_of(int unit) {
    return unit < EVEN * TAPS ? unit / max(EVEN, 1) : unit - EVEN * TAPS;
}
__device__ __forceinline__ int plane_of(int unit) {
    return unit < EVEN * TAPS ? unit % max(EVEN, 1) : EVEN;
}
// Where a tap's first pixel lies in a plane.
__device__ __forceinline__ int place_of(int tap) { return tap / KW * WIDTH + tap % KW; }

// The place among the filters of the i-th vector of a stage, in an order in which neighbours come
// from neighbouring memory.
struct Place { int unit, o; };
__device__ __forceinline__ Place filter_place(int i) {
    return FLIPPED ? Place{i / N, i % N} : Place{i % STAGE, i / STAGE};
}

// A thread's vectors of a stage, zero where there are none.
__device__ __forceinline__ void load_filters(Channels<T> (&to)[LOADED], const T* w, int output,
                                             int stage) {
#pragma unroll
    for (int i = 0; i < LOADED; ++i) {
        Place at = filter_place(i * THREADS + threadIdx.x);
        int unit = stage * STAGE + at.unit, o = output + at.o;
        to[i] = {};
        if (at.unit >= STAGE || at.o >= N || unit >= UNITS || o >= O) continue;
        int tap = tap_of(unit), c = plane_of(unit) * EACH;
#if FLIPPED
        to[i] = channels<T, 1>(w + (c * TAPS + TAPS - 1 - tap) * O + o, TAPS * O, C - c);
#else
        to[i] = channels<T, WVEC>(w + (o * TAPS + tap) * C + c, 1, C - c);
#endif
    }
}

__device__ __forceinline__ void put_filters(uint4* filters, const Channels<T> (&from)[LOADED],
                                            int stage) {
#pragma unroll
    for (int i = 0; i < LOADED; ++i) {
        Place at = filter_place(i * THREADS + threadIdx.x);
        if (at.unit < STAGE && at.o < N)
            filters[(stage % 2 * STAGE + at.unit) * UNIT + at.o] = packed(from[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
correlate(const S* x, const T* w, const float* b, const T* relu_output, T* y, float slope) {
    pdl_wait();
    extern __shared__ uint4 shared[];
    uint4 *patch = shared, *filters = shared + PLANES * PLANE;
    int n = blockIdx.x, top = blockIdx.y * DOWN * 8, output = blockIdx.z * OWN;
    const S* image = x + n * (int64_t)SN;
    // A thread loads all it can before it waits for the first: the block has nothing else to do.
    Channels<T> next[LOADED];
    load_filters(next, w, output, 0);
#pragma unroll 1
    for (int begin = threadIdx.x; begin < PLANE * PLANES; begin += BATCH * THREADS) {
        Channels<S> v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            int pixel = (begin + i * THREADS) / PLANES, c = (begin + i * THREADS) % PLANES * EACH;
            int h = top + pixel / WIDTH - PH, column = pixel % WIDTH - PW;
            v[i] = {};
            if (h >= 0 && h < H && column >= 0 && column < W && pixel < PLANE)
                v[i] = channels<S, VEC>(
                    image + (int64_t)h * SH + (int64_t)column * SW + (int64_t)c * SC, SC, C - c);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            int pixel = (begin + i * THREADS) / PLANES, plane = (begin + i * THREADS) % PLANES;
            if (pixel < PLANE) patch[plane * PLANE + pixel] = packed(v[i]);
        }
    }
    put_filters(filters, next, 0);
    fence_and_sync();

    // Of the whole warp, as the instruction wants its operands.
    int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    int first = group % GROUPS * DEEP, split = group / GROUPS;
    float sum[DEEP][N / 2] = {};
#pragma unroll 1
    for (int stage = 0; stage < STAGES; ++stage) {
        if (stage + 1 < STAGES) load_filters(next, w, output, stage + 1);
        wgmma_fence(sum);
#pragma unroll 1
        for (int k = split * 2; k < min(STAGE, UNITS - stage * STAGE); k += SPLITS * 2) {
            int unit = stage * STAGE + k, tap = tap_of(unit), far = PLANE;
            if (unit >= EVEN * TAPS) far = tap + 1 < TAPS ? place_of(tap + 1) - place_of(tap) : 1;
            const uint4* from = patch + plane_of(unit) * PLANE + place_of(tap);
            MatrixDescriptor right =
                matrix_descriptor(filters + (stage % 2 * STAGE + k) * UNIT, UNIT, 8);
#pragma unroll
            for (int d = 0; d < DEEP; ++d) {
                int corner = (first + d) / ACROSS * 8 * WIDTH + (first + d) % ACROSS * 8;
                MatrixDescriptor left = matrix_descriptor(from + corner, far, WIDTH);
                MULTIPLY(sum[d], left, right);
            }
        }
        wgmma_commit();
        if (stage + 1 < STAGES) put_filters(filters, next, stage + 1);
        wgmma_wait<0>(sum);
        fence_and_sync();
    }
    pdl_launch_next();
    if (SPLITS > 1) {
        float* parts = reinterpret_cast<float*>(shared) + threadIdx.x % 128;
        constexpr int PART = DEEP * N / 2;
        if (split) {
#pragma unroll
            for (int i = 0; i < PART; ++i)
                parts[(((split - 1) * GROUPS + group % GROUPS) * PART + i) * 128] =
                    sum[i / (N / 2)][i % (N / 2)];
        }
        __syncthreads();
        if (split) return;
#pragma unroll
        for (int other = 0; other < SPLITS - 1; ++other)
#pragma unroll
            for (int i = 0; i < PART; ++i)
                sum[i / (N / 2)][i % (N / 2)] += parts[((other * GROUPS + group) * PART + i) * 128];
    }
    int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        int o = output + j * 8 + 2 * t;
        if (o >= O) continue;
        float bias[2] = {b ? b[o] : 0.0f, b && o + 1 < O ? b[o + 1] : 0.0f};
#pragma unroll
        for (int i = 0; i < DEEP * 2; ++i) {
            int tile = first + i / 2, row = top + tile / ACROSS * 8 + warp * 2 + i % 2;
            int column = tile % ACROSS * 8 + g;
            if (row >= OH || column >= OW) continue;
            int64_t at = (((int64_t)n * OH + row) * OW + column) * O + o;
            float v[2];
#pragma unroll
            for (int l = 0; l < 2; ++l) {
                v[l] = relu(sum[i / 2][j * 4 + i % 2 * 2 + l] + bias[l], slope);
#if MASKED
                if (o + l < O && !(to_float(relu_output[at + l]) > 0)) v[l] = 0;
#endif
            }
#if O % 2
            y[at] = from_float<T>(v[0]);
            if (o + 1 < O) y[at + 1] = from_float<T>(v[1]);
#elif EACH == 8
            *reinterpret_cast<uint32_t*>(y + at) = word(v[0], v[1]);
#else
            *reinterpret_cast<float2*>(y + at) = make_float2(v[0], v[1]);
#endif
        }
    }
}
