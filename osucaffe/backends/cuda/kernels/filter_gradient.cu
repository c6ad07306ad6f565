// Owns the gradients of the filters of large convolutions in tf32, by tensor cores.
//
// A sum over all pixels p of the output: partial[column][output] += x[p, column] dy[p, output]. A
// column is a tap of the kernel and a channel; what it reads for a pixel lies always equally far from
// the pixel's first tap. Blocks: tiles of (outputs, columns, groups) x shares of the pixels; what
// these have summed is added in a fixed order by a second kernel. Tiles of pixels x outputs and
// pixels x columns come by asynchronous copies, STAGES - 1 ahead; rounding to tf32 comes behind.
//
// Columns are numbered (kernel row, part of the channels, kernel column, channel of the part), so
// that the columns of a block have pixels in common: these come from the first-level cache.
//
// BATCH, H, W: images; O, OH, OW: maps; G: groups; CG, OG: channels and outputs of each; KH, KW, SH,
// SW, PH, PW, DH, DW: kernel, stride, padding, dilation; XN, XC, XH, XW: strides of x; PART: channels
// of a part; VEC: neighbouring channels that are copied at once; MT, NT: tiles of 16 outputs and 8
// columns of a warp; WM, WN: warps of a block along outputs and columns; PIXELS: of a stage, a multiple
// of 16; BLOCKS: on a processor; AHEAD: 1: lanes read the next 8 pixels while these are multiplied.

#define THREADS (WM * WN * 32)
#define OUTPUTS (WM * MT * 16)
#define COLUMNS (WN * NT * 8)
// Words from pixel to pixel: 8 or 24 modulo 32, so that no two lanes of a warp meet in a bank.
#define OPITCH (OUTPUTS + 8)
#define CPITCH (COLUMNS + COLUMNS % 16 / 8 * -8 + 8)
#define STAGE (PIXELS * (OPITCH + CPITCH))
#define K (KH * KW * CG)
#define TILES_O ((OG + OUTPUTS - 1) / OUTPUTS)
#define TILES_C ((K + COLUMNS - 1) / COLUMNS)
#define ALL (BATCH * OH * OW)
#define NOWHERE (1 << 14)  // rows from any image

// Neighbouring words that a lane reads at once: its outputs and columns in a tile are any eight.
#define LOADS_O (MT % 2 ? 2 : 4)
#define LOADS_C (NT % 4 ? NT % 2 ? 1 : 2 : 4)

// -- instructions -------------------------------------------------------------------------------

// Zeros where it is not real: `from` is anywhere then.
template <int BYTES> __device__ __forceinline__ void copy(float* to, const float* from, bool real) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(address), "l"(from), "n"(BYTES), "r"(real ? BYTES : 0) : "memory");
}

// The same past the first-level cache.
__device__ __forceinline__ void copy_once(float* to, const float* from, bool real) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(address), "l"(from), "r"(real ? 16 : 0) : "memory");
}

__device__ __forceinline__ void end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the last COUNT stages have arrived.
template <int COUNT> __device__ __forceinline__ void wait_stage() {
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

__device__ __forceinline__ uint32_t rounded(float value) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// d (16 x 8) += a (16 x 8) b (8 x 8). Lane 4 g + t holds a[g][t], a[g + 8][t], a[g][t + 4],
// a[g + 8][t + 4]; b[t][g], b[t + 4][g]; d[g][2 t], d[g][2 t + 1], d[g + 8][2 t] ...
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// -- kernels ------------------------------------------------------------------------------------

struct Tap { int row, column, channel; };
__device__ __forceinline__ Tap tap_of(int column) {
    int row = column / (KW * CG), rest = column % (KW * CG), part = rest / (KW * PART);
    return {row, rest / PART % KW, part * PART + rest % PART};
}

// The pixels of the output from p on: where the first tap of each lies in x, in the array and as row
// and column; nowhere from `last` on.
__device__ __forceinline__ void find_pixels(int2* places, int p, int last) {
    if (threadIdx.x >= PIXELS) return;
    p += threadIdx.x;
    int h = p / OW % OH * SH - PH, w = p % OW * SW - PW;
    int offset = p / (OW * OH) * XN + h * XH + w * XW;
    places[threadIdx.x] = make_int2(offset, (p < last ? h : -NOWHERE) << 16 | (w & 0xffff));
}

// What a lane has of 8 pixels: a[i], b[j] for the tiles i of outputs and j of columns.
struct Fragments { float a[MT][4], b[NT][2]; };

__device__ __forceinline__ void read_fragments(Fragments& to, const float* maps,
                                               const float* patch) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2 * MT; i += LOADS_O) {
            auto v = *reinterpret_cast<const Vector<float, LOADS_O>*>(maps + half * 4 * OPITCH +
                                                                      i * 8);
#pragma unroll
            for (int q = 0; q < LOADS_O; ++q) to.a[(i + q) / 2][half * 2 + q % 2] = v.element[q];
        }
#pragma unroll
        for (int j = 0; j < NT; j += LOADS_C) {
            auto v = *reinterpret_cast<const Vector<float, LOADS_C>*>(patch + half * 4 * CPITCH +
                                                                      j * 8);
#pragma unroll
            for (int q = 0; q < LOADS_C; ++q) to.b[j + q][half] = v.element[q];
        }
    }
}

__device__ __forceinline__ void add_products(float (&sum)[MT][NT][4], const Fragments& from) {
    uint32_t a[MT][4], b[NT][2];
#pragma unroll
    for (int i = 0; i < MT * 4; ++i) a[i / 4][i % 4] = rounded(from.a[i / 4][i % 4]);
#pragma unroll
    for (int j = 0; j < NT * 2; ++j) b[j / 2][j % 2] = rounded(from.b[j / 2][j % 2]);
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int i = 0; i < MT; ++i) multiply(sum[i][j], a[i], b[j]);
}

// Lanes that copy neighbours, times as many pixels as fit beside each other.
#define LANES_O (OUTPUTS / 4)
#define BESIDE_O (THREADS / LANES_O)
#define LANES_C (COLUMNS / VEC < THREADS ? COLUMNS / VEC : THREADS)
#define BESIDE_C (THREADS / LANES_C)
#define EACH ((COLUMNS / VEC + LANES_C - 1) / LANES_C)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
filter_gradient(const float* x, const float* dy, float* partial, int share) {
    extern __shared__ float4 shared[];
    float* stages = reinterpret_cast<float*>(shared);
    int2* places = reinterpret_cast<int2*>(stages + STAGES * STAGE);
    int group = blockIdx.x / (TILES_O * TILES_C);
    int first_output = blockIdx.x % TILES_O * OUTPUTS;
    int first_column = blockIdx.x / TILES_O % TILES_C * COLUMNS;
    int first = blockIdx.y * share, last = min(first + share, ALL);
    int steps = (last - first + PIXELS - 1) / PIXELS;

    int map_pixel = threadIdx.x / LANES_O, map = threadIdx.x % LANES_O * 4;
    bool map_real = map_pixel < BESIDE_O && first_output + map < OG;
    const float* maps = dy + group * OG + first_output + map;
    int pixel = threadIdx.x / LANES_C, lane_c = threadIdx.x % LANES_C;
    int offset[EACH], row[EACH], column[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        int at = first_column + (lane_c + i * LANES_C) * VEC;
        Tap tap = tap_of(at);
        offset[i] = tap.row * DH * XH + tap.column * DW * XW + (group * CG + tap.channel) * XC;
        row[i] = at < K ? tap.row * DH : 2 * NOWHERE, column[i] = tap.column * DW;
    }

    auto load_stage = [&](int step) {
        float* to = stages + step % STAGES * STAGE;
        int p = first + step * PIXELS;
        if (LANES_O * BESIDE_O == THREADS || map_pixel < BESIDE_O) {
#pragma unroll
            for (int i = 0; i < PIXELS; i += BESIDE_O) {
                int at = i + map_pixel;
                if (PIXELS % BESIDE_O && at >= PIXELS) break;
                copy_once(to + at * OPITCH + map, maps + (p + at) * O, map_real && p + at < last);
            }
        }
        to += PIXELS * OPITCH;
        const int2* from = places + step % 2 * PIXELS;
        if (LANES_C * BESIDE_C == THREADS || pixel < BESIDE_C) {
#pragma unroll
            for (int i = 0; i < PIXELS; i += BESIDE_C) {
                int at = i + pixel;
                if (PIXELS % BESIDE_C && at >= PIXELS) break;
                int2 place = from[at];
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    int beside = (lane_c + j * LANES_C) * VEC;
                    if (EACH * LANES_C * VEC > COLUMNS && beside >= COLUMNS) break;
                    unsigned h = (place.y >> 16) + row[j], w = (short)place.y + column[j];
                    bool real = h < H && (PW == 0 || w < W);
                    copy<VEC * 4>(to + at * CPITCH + beside, x + (place.x + offset[j]), real);
                }
            }
        }
    };

#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) {
        find_pixels(places + step % 2 * PIXELS, first + step * PIXELS, last);
        __syncthreads();
        if (step < steps) load_stage(step);
        end_stage();
    }
    find_pixels(places + (STAGES - 1) % 2 * PIXELS, first + (STAGES - 1) * PIXELS, last);

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int warp_output = warp % WM * MT * 16, warp_column = warp / WM * NT * 8;
    const float* of_lane_o = stages + t * OPITCH + warp_output + g * LOADS_O;
    const float* of_lane_c =
        stages + PIXELS * OPITCH + t * CPITCH + warp_column + g * LOADS_C;
    Fragments fragments[2];
    float sum[MT][NT][4] = {};
    wait_stage<STAGES - 2>();
    __syncthreads();
    if (AHEAD) read_fragments(fragments[0], of_lane_o, of_lane_c);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        if (step + STAGES - 1 < steps) load_stage(step + STAGES - 1);
        end_stage();
        find_pixels(places + (step + STAGES) % 2 * PIXELS, first + (step + STAGES) * PIXELS, last);
        int here = step % STAGES * STAGE, next = (step + 1) % STAGES * STAGE;
#pragma unroll
        for (int k = 0; k < PIXELS / 8; ++k) {
            int read = k + AHEAD;
            if (read == PIXELS / 8) {
                wait_stage<STAGES - 2>();
                __syncthreads();
            }
            int at = read < PIXELS / 8 ? here : next, row = read % (PIXELS / 8) * 8;
            read_fragments(fragments[read % 2], of_lane_o + at + row * OPITCH,
                           of_lane_c + at + row * CPITCH);
            add_products(sum, fragments[k % 2]);
        }
        if (!AHEAD) {
            wait_stage<STAGES - 2>();
            __syncthreads();
        }
    }

    partial += ((int64_t)blockIdx.y * G + group) * K * OG;
    int output = first_output + warp_output + g * LOADS_O;
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            int at = first_column + warp_column + j / LOADS_C * LOADS_C * 8 +
                     (2 * t + side) * LOADS_C + j % LOADS_C;
            if (at >= K) continue;
#pragma unroll
            for (int i = 0; i < 2 * MT; i += LOADS_O) {
                if (output + i * 8 >= OG) continue;
                Vector<float, LOADS_O> v;
#pragma unroll
                for (int q = 0; q < LOADS_O; ++q)
                    v.element[q] = sum[(i + q) / 2][j][(i + q) % 2 * 2 + side];
                *reinterpret_cast<Vector<float, LOADS_O>*>(partial + at * OG + output + i * 8) = v;
            }
        }
}

// dw (O, KH, KW, CG) (+)= the sum of the shares. Blocks of 32 x 8 threads: parts of 32 outputs and 8
// columns, groups.
extern "C" __global__ void finish_filter_gradient(const float* partial, float* dw, int shares,
                                                  int add) {
    __shared__ float tile[8][33];
    int output = blockIdx.x * 32 + threadIdx.x, column = blockIdx.y * 8 + threadIdx.y;
    float sum = 0;
    if (output < OG && column < K) {
        const float* from = partial + ((int64_t)blockIdx.z * K + column) * OG + output;
#pragma unroll 8
        for (int share = 0; share < shares; ++share) sum += from[share * (int64_t)(G * K * OG)];
    }
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    int thread = threadIdx.y * 32 + threadIdx.x;
    output = blockIdx.x * 32 + thread / 8, column = blockIdx.y * 8 + thread % 8;
    if (output >= OG || column >= K) return;
    Tap tap = tap_of(column);
    float* to = dw + (int64_t)(blockIdx.z * OG + output) * K + (tap.row * KW + tap.column) * CG +
                tap.channel;
    *to = tile[thread % 8][thread / 8] + (add ? *to : 0.0f);
}
