// The gradients of the filters of large convolutions with stride 1 in tf32, by what Hopper GPUs
// have for four warps together.
// Floats are rounded on their way to shared memory (runtime/driver.py).
// What it is worth: see the tables of make bench-kernels, benchmarks/results/kernels-*.md.
//
// partial[column][output] = sum over pixels of x[pixel + tap][channel] dy[pixel][output]; a column
// is a tap of the kernel and a channel. The instruction takes its left operand from registers: x, as
// it lies in shared memory, from wherever a tap says. Its right operand has to have the pixels
// varying fastest: a group of four warps turns dy around in shared memory, while others multiply.
//
// A stage: ROWS rows of an image's output, or WIDE pixels of one. Rows of x are PITCH pixels apart,
// those of dy DY_PITCH, the same if there are several; what is copied from outside an image is
// zero: the pixels of x before a row are those that a tap finds after the row above, and where a row
// is longer than that of the output, dy is zero.
// x lies in planes of 8 channels, so that a warp reads 4 pixels of a plane at once.
// Blocks: (tiles of outputs, parts of the channels, parts of the kernel, groups) x shares of the
// stages; what these have summed is added in a fixed order by a second kernel. Blocks that have the
// same dy take turns, by stages, to sum it for the biases.
//
// BATCH, OH, OW: maps; G: groups; CG, OG: channels and outputs of each; KH, KW, PH, PW: kernel and
// padding; OUTPUTS, BLOCK_C, KROWS: outputs, channels and rows of the kernel of a block; STEPS,
// LAST_STEPS: products, of 8 pixels, of a stage and of an image's last one; CONSUMERS: groups of four
// warps that multiply; REGISTERS, FEW: of a thread of these, and of those that turn dy; BIAS: there
// are biases; MULTIPLY(d, a, b): the instruction.

#include "filter_work.cuh"

#define AHEAD 2  // more, or products that go on from stage to stage, and the compiler serializes them
#define THREADS (CONSUMERS * 128 + 128)
#define TAPS (KROWS * KW)
#define SLABS (TAPS * BLOCK_C / 16)  // of 16 columns, those of a warp
#define TILES ((SLABS + 3) / 4)
#define MAX_TILES ((TILES + CONSUMERS - 1) / CONSUMERS)

// Bytes in shared memory.
#define WHOLE(bytes) (((bytes) + 127) / 128 * 128)
#define PLANE ((ROWS + KROWS - 1) * PITCH * 32)
#define X_BYTES (BLOCK_C / 8 * PLANE)
#define X_REACH (X_BYTES - PLANE + (STEPS * 8 + (KROWS - 1) * PITCH + KW - 1) * 32)
#define X_SLOT WHOLE(MAX(X_BYTES, X_REACH))
#define DY_BYTES (ROWS * DY_PITCH * OUTPUTS * 4)
#define DY_SLOT WHOLE(MAX(DY_BYTES, STEPS * 8 * OUTPUTS * 4))
#define TRANSPOSED_SLOT (STEPS * 8 * OUTPUTS * 4)
#define SHARED (3 * X_SLOT + 2 * DY_SLOT + 2 * TRANSPOSED_SLOT)

// Threads that turn dy around: for the biases' sake each has the same four outputs of all pixels.
#define FOURS (OUTPUTS / 4)
#define TURNING (BIAS ? 128 / FOURS * FOURS : 128)

// A barrier for each slot of some that are used in turn; i: the number of a stage.
template <int SLOTS> struct Slots {
    uint64_t barriers[SLOTS];

    __device__ __forceinline__ uint32_t of(int i) { return shared_address(&barriers[i % SLOTS]); }
    __device__ __forceinline__ void init(int i, int arrivals) { mbarrier_init(of(i), arrivals); }
    __device__ __forceinline__ void wait_for(int i) {
        int slot = i % SLOTS, parity = i / SLOTS & 1;
        mbarrier_wait_opaque(shared_address(&barriers[slot]), parity);
    }
    // Until the stage that had the slot before is done with.
    __device__ __forceinline__ void wait_for_last(int i) {
        int slot = i % SLOTS, parity = i / SLOTS - 1 & 1;
        mbarrier_wait_opaque(shared_address(&barriers[slot]), parity);
    }
};

// x, dy as it comes and transposed are there; dy transposed is not needed any more.
struct Barriers {
    Slots<3> x;
    Slots<2> dys, transposed, free;
};

// Four warps: order the copies of all stages; turn dy around. Chunks of 4 pixels of all outputs,
// these in the order 0, 4, 8, ..., 1, 5, 9, ...: neighbouring threads write neighbouring vectors.
// sums: of dy in this block's turns, if there are biases.
__device__ __forceinline__ void transpose(const Work& w, const TensorMap& x_map,
                                     const TensorMap& dy_map, char* xs, char* dys, char* transposed,
                                     Barriers& barriers, float* sums) {
    int thread = threadIdx.x % 128;
    float sum[4] = {};
    auto copy_maps = [&](int i) {
        int stage = w.first + i, row = stage % STAGES_IMAGE / ACROSS * ROWS;
        mbarrier_arrive_expect_tx(barriers.dys.of(i), DY_BYTES);
        tma_load(dys + i % 2 * DY_SLOT, dy_map, w.group * OG + w.output,
                  stage % ACROSS * WIDE, row, stage / STAGES_IMAGE, 0, barriers.dys.of(i));
    };
    auto copy_x = [&](int i) {
        int stage = w.first + i, row = stage % STAGES_IMAGE / ACROSS * ROWS;
        mbarrier_arrive_expect_tx(barriers.x.of(i), X_BYTES);
        tma_load(xs + i % 3 * X_SLOT, x_map, 0, stage % ACROSS * WIDE - PW, row + w.row - PH,
                  (w.group * CG + w.channel) / 8, stage / STAGES_IMAGE, barriers.x.of(i));
    };
    if (thread == 0) copy_maps(0), copy_x(0);
#pragma unroll 1
    for (int i = 0; i < w.count; ++i) {
        bool more = thread == 0 && i + 1 < w.count;
        if (more) copy_maps(i + 1);
        if (i >= 2) barriers.free.wait_for_last(i);
        if (more) copy_x(i + 1);
        barriers.dys.wait_for(i);
        auto from = reinterpret_cast<const Vector<float, 4>*>(dys + i % 2 * DY_SLOT);
        auto to = reinterpret_cast<Vector<float, 4>*>(transposed + i % 2 * TRANSPOSED_SLOT);
        int all = (is_last(w.first + i) ? LAST_STEPS : STEPS) * 2 * FOURS;
        bool adds = BIAS && (w.first + i) % BIAS_OWNERS == w.bias_owner;
#pragma unroll (FEW < 64 ? 1 : 2)
        for (int at = thread < TURNING ? thread : all; at < all; at += TURNING) {
            int chunk = at / FOURS, four = at % FOURS;
            Vector<float, 4> v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) v[j] = from[(chunk * 4 + j) * FOURS + four];
            Vector<float, 4>* beside = to + chunk * OUTPUTS + four;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float a = v[0].element[j], b = v[1].element[j], c = v[2].element[j];
                float d = v[3].element[j];
                beside[FOURS * j] = {a, b, c, d};
                if (adds) sum[j] += (a + b) + (c + d);
            }
        }
        fence_proxy_async();
        sync_consumers<128>();
        if (thread == 0) mbarrier_arrive(barriers.transposed.of(i));
    }
    if (!BIAS) return;
    auto sums_here = reinterpret_cast<Vector<float, 4>*>(dys);
    sums_here[thread] = pack<float>(sum);
    sync_consumers<128>();
    if (thread >= FOURS || w.output + thread * 4 >= OG) return;
#pragma unroll
    for (int other = thread + FOURS; other < TURNING; other += FOURS) {
        float more[4];
        unpack(sums_here[other], more);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] += more[j];
    }
    sums += ((int64_t)(blockIdx.y * BIAS_OWNERS + w.bias_owner) * G + w.group) * OG + w.output;
    store(sums + thread * 4, sum);
}

// A lane's part of 8 pixels x 16 channels: two neighbouring channels of two pixels.
__device__ __forceinline__ void read_x(uint32_t (&to)[4], const char* from) {
    float2 near = *reinterpret_cast<const float2*>(from);
    float2 far = *reinterpret_cast<const float2*>(from + 4 * 32);
    to[0] = __float_as_uint(near.x), to[1] = __float_as_uint(near.y);
    to[2] = __float_as_uint(far.x), to[3] = __float_as_uint(far.y);
}

// sum += the products of COUNT steps of a stage. What registers hold of x is read AHEAD of its
// turn, when the product that read them before is over.
template <int COUNT, int M_TILES>
__device__ __forceinline__ void add_products(float (&sum)[M_TILES][OUTPUTS / 2], const char* x,
                                             const int (&offset)[M_TILES], MatrixDescriptor right) {
    constexpr int ALL = COUNT * M_TILES;
    uint32_t left[AHEAD + 1][4];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        if (i < ALL) read_x(left[i], x + offset[i % M_TILES] + i / M_TILES * 256);
#pragma unroll
    for (int i = 0; i < ALL; ++i) {
        wgmma_fence();
        MULTIPLY(sum[i % M_TILES], left[i % (AHEAD + 1)], right + i / M_TILES * (2 * OUTPUTS));
        wgmma_commit();
        int next = i + AHEAD;
        if (next >= ALL) continue;
        wgmma_wait<1>();
        read_x(left[next % (AHEAD + 1)], x + offset[next % M_TILES] + next / M_TILES * 256);
    }
    wgmma_wait<0>();
}

// Four warps: M_TILES tiles of 64 columns, from this one on.
template <int M_TILES>
__device__ __forceinline__ void multiply(const Work& w, int tile, const char* xs, const char* transposed,
                                         Barriers& barriers, float* partial) {
    int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int offset[M_TILES];
#pragma unroll
    for (int j = 0; j < M_TILES; ++j) {
        int slab = (tile + j) * 4 + warp;
        if (slab >= SLABS) slab = 0;
        int tap = slab / (BLOCK_C / 16), plane = slab % (BLOCK_C / 16) * 2 + g / 4;
        offset[j] = plane * PLANE + (tap / KW * PITCH + tap % KW + t) * 32 + g % 4 * 8;
    }
    float sum[M_TILES][OUTPUTS / 2] = {};
#pragma unroll 1
    for (int i = 0; i < w.count; ++i) {
        const char* x = xs + i % 3 * X_SLOT;
        MatrixDescriptor right = matrix_descriptor(transposed + i % 2 * TRANSPOSED_SLOT, OUTPUTS);
        barriers.x.wait_for(i);
        barriers.transposed.wait_for(i);
        if (STEPS != LAST_STEPS && is_last(w.first + i))
            add_products<LAST_STEPS, M_TILES>(sum, x, offset, right);
        else
            add_products<STEPS, M_TILES>(sum, x, offset, right);
        if (lane == 0) mbarrier_arrive(barriers.free.of(i));
    }
    partial += ((int64_t)blockIdx.y * G + w.group) * (KH * KW * CG) * OG + w.output;
#pragma unroll
    for (int j = 0; j < M_TILES; ++j) {
        int slab = (tile + j) * 4 + warp, tap = slab / (BLOCK_C / 16);
        int channel = w.channel + slab % (BLOCK_C / 16) * 16 + g * 2;
        if (slab >= SLABS || channel >= CG) continue;
        int64_t column = (w.row * KW + tap) * CG + channel;
#pragma unroll
        for (int side = 0; side < 2; ++side)
#pragma unroll
            for (int k = 0; k < OUTPUTS / 32; ++k)
#pragma unroll
                for (int l = 0; l < 2; ++l) {
                    int output = 4 * (8 * k + 2 * t + l);
                    if (w.output + output >= OG) continue;
                    float v[4];
#pragma unroll
                    for (int q = 0; q < 4; ++q)
                        v[q] = sum[j][(k + q * (OUTPUTS / 32)) * 4 + side * 2 + l];
                    store(partial + (column + side) * OG + output, v);
                }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
filter_products(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap dy_map,
                float* partial, float* partial_bias) {
    PDL_BEGIN;
    extern __shared__ __align__(128) char shared[];
    __shared__ Barriers barriers;
    char *xs = shared, *dys = xs + 3 * X_SLOT, *transposed = dys + 2 * DY_SLOT;
    // What no copy reaches is multiplied by zeros, or is what zeros are.
    for (int i = threadIdx.x; i < SHARED / 16; i += THREADS)
        reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; ++i) barriers.x.init(i, 1);
        for (int i = 0; i < 2; ++i) {
            barriers.dys.init(i, 1);
            barriers.transposed.init(i, 1);
            barriers.free.init(i, CONSUMERS * 4);
        }
        fence_mbarrier_init();
    }
    fence_proxy_async();
    __syncthreads();
    Work w = work();
    int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (consumer == CONSUMERS) {
        setmaxnreg_dec<FEW>();
        transpose(w, x_map, dy_map, xs, dys, transposed, barriers, partial_bias);
    } else {
        setmaxnreg_inc<REGISTERS>();
        constexpr int FULL = TILES - CONSUMERS * (MAX_TILES - 1);  // warp groups with most tiles
        if (FULL == CONSUMERS || consumer < FULL)
            multiply<MAX_TILES>(w, consumer * MAX_TILES, xs, transposed, barriers, partial);
        else
            multiply<MAX(MAX_TILES - 1, 1)>(w, FULL + consumer * (MAX_TILES - 1), xs, transposed,
                                             barriers, partial);
    }
}

// dw (O, KH, KW, CG) and db (O) (+)= the sums of the shares. Blocks of 32 x 8 threads: parts of 32
// outputs and 8 columns, the last for the biases, groups.
extern "C" __global__ void add_shares(const float* partial, const float* partial_bias, float* dw,
                                      float* db, int shares, int add, int add_bias) {
    PDL_BEGIN;
    constexpr int K = KH * KW * CG;
    __shared__ float tile[8][33];
    int output = blockIdx.x * 32 + threadIdx.x, column = blockIdx.y * 8 + threadIdx.y;
    bool bias = BIAS && blockIdx.y == gridDim.y - 1;
    float sum = 0;
    if (bias) {
#pragma unroll 8
        for (int row = threadIdx.y; row < shares * BIAS_OWNERS && output < OG; row += 8)
            sum += partial_bias[(int64_t)(row * G + blockIdx.z) * OG + output];
    } else if (output < OG && column < K) {
        const float* from = partial + ((int64_t)blockIdx.z * K + column) * OG + output;
#pragma unroll 8
        for (int share = 0; share < shares; ++share) sum += from[share * (int64_t)(G * K * OG)];
    }
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (bias) {
        if (threadIdx.y || output >= OG) return;
#pragma unroll
        for (int row = 1; row < 8; ++row) sum += tile[row][threadIdx.x];
        db[blockIdx.z * OG + output] = sum + (add_bias ? db[blockIdx.z * OG + output] : 0.0f);
        return;
    }
    int thread = threadIdx.y * 32 + threadIdx.x;
    output = blockIdx.x * 32 + thread / 8, column = blockIdx.y * 8 + thread % 8;
    if (output >= OG || column >= K) return;
    float* to = dw + (int64_t)(blockIdx.z * OG + output) * K + column;
    *to = tile[thread % 8][thread / 8] + (add ? *to : 0.0f);
}
