// Large convolutions with stride 1 in tf32 and in 16 bits on Hopper GPUs, on images with the
// channels last. Where it sums for batch normalization, adds gradients or has groups, it also takes
// 1 x 1 filters.
// What it is worth: see the tables of make bench-kernels, benchmarks/results/kernels-*.md.
//
// Pixels are numbered flat: rows and images lie after one another, with the padding once between
// two of them, so that a tap of the kernel lies equally far from every pixel. Shared memory holds what
// TILE neighbouring pixels need; the instruction takes neighbours, from wherever a tap says, and
// nothing is copied. One thread has boxes of filters copied, another runs of pixels, each a row of some
// channels, while groups of four warps multiply; results go through shared memory, too, and leave while
// the next tile is computed. Where the instruction cannot turn them around, as in tf32, FLIPPED filters
// are by a kernel of its own before.
//
// T: elements; VEC: of 16 bytes; PLANES: vectors of a pixel in a part of the image; G: groups of
// channels; CG, H, W: the input, of a group; OG, OH, OW: the output; KH, KW, PH, PW: kernel and padding;
// FLIPPED: w is (G * CG, KH, KW, OG) and rotated by 180 degrees, as the gradient to the input wants it;
// TRANSPOSED: so are the filters that `convolve` gets; N: outputs of a tile; GROUPS: groups of warps that
// multiply, each M_TILES times 64 pixels; STAGES: parts of the filters, of TAPS taps, and BUFFERS: parts of
// the image that are in flight; WIDTH: outputs of a row of filters that are TRANSPOSED; LOADING,
// MULTIPLYING: registers of a thread; ADDS: y gets `addend`; MASKED: then it becomes 0 where
// `relu_output` is not positive; both lie as y does; RELU: y ends with one; SUMS: parts of the sums of y
// that are written for a batch normalization (see batch_norm.cu), 0: none; MULTIPLY(d, a, b): the
// instruction.

#include "ring.cuh"

#define CHUNK (PLANES * VEC)
#define CHUNKS ((CG + CHUNK - 1) / CHUNK)
#define STEPS (KH * KW / TAPS)
#define PITCH (W + PW)
#define IMAGE ((H + PH) * PITCH)
#define TILE (GROUPS * M_TILES * 64)
#define REACH (TILE + (KH - 1) * PITCH + KW - 1)
// Vectors of a part of the image.
#define PATCH (PLANES * ((REACH + 7) / 8 * 8))
// Blocks of WIDTH outputs, where the filters lie so.
#define BLOCKS (TRANSPOSED ? (N + WIDTH - 1) / WIDTH : 1)
#define STAGE (TAPS * PLANES * (TRANSPOSED ? BLOCKS * WIDTH : N))
#define PARTS ((OG + N - 1) / N)
#define THREADS ((GROUPS + 1) * 128)
// A pixel's results, in vectors, such that pixels next to each other lie in different banks.
#define ROW (VEC == 4 ? N / 4 + (N % 16 ? 0 : 2) : N / 8 | 1)
#define ROWS (M_TILES * 16)
#define VECTORS (N / VEC)
#define RESULTS (GROUPS * 4 * ROWS * ROW)
// What lies so: results in the place of what is added to them, and what masks them.
#define OPERANDS (ADDS && MASKED ? 2 : 1)
// Numbers of each sum.
#define SUMMED 4

#if FLIPPED && !TRANSPOSED
// filters (G * OG, KH, KW, CG), not rotated.
extern "C" __global__ void transpose_filters(const T* w, T* filters) {
    PDL_BEGIN;
    FOR_EACH(G * OG * KH * KW * CG) {
        int c = id % CG, tap = id / CG % (KH * KW), o = id / (CG * KH * KW);
        filters[id] = w[((o / OG * CG + c) * (KH * KW) + KH * KW - 1 - tap) * OG + o % OG];
    }
}
#endif

// A pixel from this plane on, and those after it, as the instruction's left operand.
__device__ __forceinline__ MatrixDescriptor left_operand(const uint4* pixel, int plane) {
    return rows_descriptor(pixel, PLANES) + plane;
}

#if TRANSPOSED  // rows of WIDTH outputs for each channel of a part
// The part of this number, of those of a tile.
__device__ __forceinline__ void load_filters(uint4* to, const TensorMap& filters, int part, int number,
                                             uint32_t barrier) {
    int channel = part / PARTS * CG + number / STEPS * CHUNK, tap = number % STEPS * TAPS;
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        tma_load(to + i * (STAGE / BLOCKS), filters, part % PARTS * N + i * WIDTH, channel,
                 KH * KW - TAPS - tap, 0, 0, barrier);
}

// Those of a tap, from this plane on, as the instruction's right operand.
__device__ __forceinline__ MatrixDescriptor right_operand(const uint4* stage, int tap, int plane) {
    return transposed_rows_descriptor(stage, WIDTH / 8, STAGE / BLOCKS) +
           ((TAPS - 1 - tap) * CHUNK + plane * 8) * (WIDTH / 8);
}
#else  // rows of the channels of a part for each output
__device__ __forceinline__ void load_filters(uint4* to, const TensorMap& filters, int part, int number,
                                             uint32_t barrier) {
    tma_load(to, filters, number / STEPS * CHUNK, part / PARTS * OG + part % PARTS * N,
             number % STEPS * TAPS, 0, 0, barrier);
}

__device__ __forceinline__ MatrixDescriptor right_operand(const uint4* stage, int tap, int plane) {
    return rows_descriptor(stage, PLANES) + (tap * N * PLANES + plane);
}
#endif

// Where the output of this flat number lies in memory, -1 if there is none.
__device__ __forceinline__ int output_pixel(int flat, int images) {
    int n = flat / IMAGE, row = flat % IMAGE / PITCH, column = flat % PITCH;
    return n < images && row < OH && column < OW ? (n * OH + row) * OW + column : -1;
}

// What a warp has of a tile: pixels, lane by lane (-1: there is none); the first of their outputs, and how
// many bytes of these there are.
struct WarpTile {
    int pixel, output, bytes;

    __device__ __forceinline__ WarpTile(int tile, int warp, int images) {
        int lane = threadIdx.x % 32, part = tile % (G * PARTS);
        int first = tile / (G * PARTS) * TILE + warp / 4 * M_TILES * 64 + warp % 4 * 16;
        pixel = lane < ROWS ? output_pixel(first + lane / 16 * 64 + lane % 16, images) : -1;
        output = part / PARTS * OG + part % PARTS * N;
        bytes = min(N, OG - part % PARTS * N) * (int)sizeof(T);
    }
};

// A warp: call this for the vectors of its rows, whose pixels lane by lane are these (-1: none), with
// whether they are there: neighbouring lanes have neighbouring vectors. bytes: of a row.
template <typename F> __device__ __forceinline__ void for_each_vector(int pixel, int bytes, F call) {
#pragma unroll
    for (int i = 0; i < ROWS * VECTORS; i += 32) {
        int number = i + threadIdx.x % 32, row = number / VECTORS, vector = number % VECTORS;
        int at = __shfl_sync(0xffffffff, pixel, row % 32);
        if (row < ROWS) call(row, vector, at, at >= 0 && vector * 16 < bytes);
    }
}

#if ADDS || MASKED
// Begin to fetch what a warp adds to its results, and what masks them, to where these will be.
__device__ __forceinline__ void fetch_operands(uint4* results, const T* addend, const T* relu_output,
                                               const WarpTile& its) {
    __syncwarp();  // the results that were there have left
    for_each_vector(its.pixel, its.bytes, [&](int row, int vector, int at, bool there) {
        int64_t from = there ? (int64_t)at * (G * OG) + its.output + vector * VEC : 0;
        uint4* to = results + row * ROW + vector;
        if (ADDS) cp_async_16_bytes(to, addend + from, there);
        if (MASKED) cp_async_16_bytes(to + ADDS * RESULTS, relu_output + from, there);
    });
}
#endif

#if SUMS
// Sums of the channels of a vector: of x and x^2 less a shift, which is one of what is computed.
struct VectorSums {
    float shift[VEC], sum[VEC], square[VEC];
    int count;

    __device__ __forceinline__ void add(const Vector<T, VEC>& x) {
        float values[VEC];
        unpack(x, values);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            float apart = values[i] - shift[i];
            sum[i] += apart;
            square[i] = fmaf(apart, apart, square[i]);
        }
        ++count;
    }
};

// Those of `count` numbers less another shift, less this one: added to what there is of `all`.
__device__ __forceinline__ void add_shifted(float (&all)[SUMMED], float sum, float square, float shift,
                                            float count) {
    if (count == 0) return;
    if (all[3] == 0) all[2] = shift;
    float apart = shift - all[2];
    all[0] += fmaf(count, apart, sum);
    all[1] += fmaf(apart, fmaf(count, apart, 2 * sum), square);
    all[3] += count;
}

// The sums of a block's outputs: what lanes have, in shared memory that no thread uses any more, is
// added by a thread for each. Those of parts that have no block are of no numbers.
__device__ __forceinline__ void store_sums(const VectorSums& mine, float* shared, float* sums) {
    constexpr int ROWS_OF_LANES = GROUPS * 4 * 32 / VECTORS, ROW_LENGTH = SUMMED * N;
    int lane = threadIdx.x % 32, row = threadIdx.x / VECTORS;
    sync_consumers<GROUPS * 128>();
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        float* at = shared + row * ROW_LENGTH + lane % VECTORS * VEC + i;
        at[0] = mine.sum[i], at[N] = mine.square[i], at[2 * N] = mine.shift[i], at[3 * N] = mine.count;
    }
    sync_consumers<GROUPS * 128>();
    if (threadIdx.x >= N) return;
    float all[SUMMED] = {};
    for (int i = 0; i < ROWS_OF_LANES; ++i) {
        const float* at = shared + i * ROW_LENGTH + threadIdx.x;
        add_shifted(all, at[0], at[N], at[2 * N], at[3 * N]);
    }
    int blocks = gridDim.x / PARTS, part = blockIdx.x / PARTS;
    sums += blockIdx.x % PARTS * N + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SUMMED; ++i) sums[(i * SUMS + part) * OG] = all[i];
    for (part += blocks; part < SUMS; part += blocks) sums[(3 * SUMS + part) * OG] = 0;
}
#endif

// tiles: in all: those of all groups and parts at a time, then the next pixels. With SUMS, all that a
// block has are of the same part.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
convolve(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap filters,
         const float* b, const T* addend, const T* relu_output, T* y, float* sums, int images, int tiles, float slope) {
    PDL_BEGIN;
    extern __shared__ __align__(1024) uint4 shared[];
    uint4 *stages = shared, *patches = stages + STAGES * STAGE;
    uint4* results = patches + BUFFERS * PATCH;
    uint32_t barriers = shared_address(results + OPERANDS * RESULTS);
    Ring<BUFFERS> patch(barriers);
    Ring<STAGES> stage(barriers + BUFFERS * 16);
    // Of the whole warp, as the instruction wants its operands.
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        patch.init(1, GROUPS * 4);
        stage.init(1, GROUPS * 4);
        fence_proxy_async();
    }
    __syncthreads();
    if (warp >= GROUPS * 4) {
        setmaxnreg_dec<LOADING>();
        if (threadIdx.x == GROUPS * 128) {
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                for (int i = 0; i < CHUNKS * STEPS; ++i, stage.advance()) {
                    stage.wait_empty();
                    mbarrier_arrive_expect_tx(stage.full(), STAGE * 16);
                    load_filters(stages + stage.place * STAGE, filters, tile % (G * PARTS), i,
                                 stage.full());
                }
            }
        }
        if (threadIdx.x != GROUPS * 128 + 32) return;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            int channel = tile % (G * PARTS) / PARTS * CG, flat = tile / (G * PARTS) * TILE;
            int image = flat / IMAGE, row = flat % IMAGE / PITCH - PH, column = flat % PITCH - PW;
            for (int c = 0; c < CG; c += CHUNK, patch.advance()) {
                patch.wait_empty();
                mbarrier_arrive_expect_tx(patch.full(), REACH * PLANES * 16);
                tma_load_pixels(patches + patch.place * PATCH, x, channel + c, column, row, image,
                                patch.full());
            }
        }
        return;
    }
    setmaxnreg_inc<MULTIPLYING>();
#if SUMS
    VectorSums mine = {};
#endif
    results += warp * (ROWS * ROW);
    int own = warp / 4 * M_TILES * 64;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        WarpTile its(tile, warp, images);
        float sum[M_TILES][N / 2];
#pragma unroll
        for (int j = 0; j < N / 4; ++j) {
            int o = j / 2 * 8 + lane % 4 * 2 + j % 2;
            float bias = b && o * (int)sizeof(T) < its.bytes ? b[its.output + o] : 0.0f;
#pragma unroll
            for (int i = 0; i < M_TILES * 2; ++i) sum[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2] = bias;
        }
#if ADDS || MASKED
        fetch_operands(results, addend, relu_output, its);
#endif
        uint32_t used = 0, used_patch = 0;  // barriers of what may be emptied after the next wait
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const uint4* from = patches + patch.place * PATCH + own * PLANES;
            patch.wait_full();
#pragma unroll 1
            for (int row = 0; row < KH; ++row, from += (PITCH - KW) * PLANES) {
#pragma unroll 1
                for (int column = 0; column < KW; column += TAPS, from += TAPS * PLANES) {
                    const uint4* right = stages + stage.place * STAGE;
                    stage.wait_full();
                    wgmma_fence(sum);
#pragma unroll
                    for (int i = 0; i < TAPS * PLANES / 2; ++i) {
                        int tap = i / (PLANES / 2), k = i % (PLANES / 2) * 2;
#pragma unroll
                        for (int d = 0; d < M_TILES; ++d)
                            MULTIPLY(sum[d], left_operand(from, k) + (d * 64 + tap) * PLANES,
                                     right_operand(right, tap, k));
                    }
                    wgmma_commit();
                    wgmma_wait<1>(sum);
                    if (lane == 0 && used) mbarrier_arrive(used);
                    if (lane == 0 && used_patch) mbarrier_arrive(used_patch);
                    used = stage.empty();
                    used_patch = 0;
                    stage.advance();
                }
            }
            used_patch = patch.empty();
            patch.advance();
        }
        wgmma_wait<0>(sum);
        if (lane == 0) {
            mbarrier_arrive(used);
            mbarrier_arrive(used_patch);
        }
        cp_async_wait();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < M_TILES * 2; ++i) {
            int row = (i * 8 + lane / 4) * ROW;
            T* to = reinterpret_cast<T*>(results + row) + lane % 4 * 2;
            const T* positive = reinterpret_cast<T*>(results + ADDS * RESULTS + row) + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < N / 8; ++j) {
                float* v = &sum[i / 2][j * 4 + i % 2 * 2];
                float pair[2] = {v[0], v[1]};
#if RELU
                pair[0] = relu(pair[0], slope);
                pair[1] = relu(pair[1], slope);
#endif
#if ADDS
                float more[2];
                load(to + j * 8, more);
                pair[0] += more[0];
                pair[1] += more[1];
#endif
#if MASKED
                float mask[2];
                load(positive + j * 8, mask);
                pair[0] = relu_backward(pair[0], mask[0]);
                pair[1] = relu_backward(pair[1], mask[1]);
#endif
                *reinterpret_cast<Vector<T, 2>*>(to + j * 8) = pack<T>(pair);
            }
        }
        __syncwarp();
#if SUMS
        if (tile == blockIdx.x)  // even a pixel outside of the images is like others
            unpack(reinterpret_cast<const Vector<T, VEC>&>(results[lane % VECTORS]), mine.shift);
#endif
        for_each_vector(its.pixel, its.bytes, [&](int row, int vector, int at, bool there) {
            uint4* to = reinterpret_cast<uint4*>(y + (int64_t)at * (G * OG) + its.output) + vector;
            uint4 stored = results[row * ROW + vector];
            if (there) *to = stored;
#if SUMS
            if (there) mine.add(reinterpret_cast<const Vector<T, VEC>&>(stored));
#endif
        });
    }
#if SUMS
    store_sums(mine, reinterpret_cast<float*>(shared), sums);
#endif
}
