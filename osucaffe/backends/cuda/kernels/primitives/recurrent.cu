// The recurrence over time: one step of a cell, with the matrix product that it waits for in
// front of it on tensor cores (UNITS is defined), or after a library has computed that (it is not).
//
// T: element type of gates, states and weights; c and what flows back are float. N items of D units
// with K gates each; GATES, GIVEN: `float x0 = gate[0]; ...` and the reverse; FORWARD or BACKWARD:
// the cell's formula in C.

#ifdef FORWARD
#define PARTS K
#define LENGTH D
#else
#define PARTS 1
#define LENGTH (K * D)
#endif

#ifdef UNITS
// A block computes the sums of ROWS items and UNITS units, PARTS columns each; its WARPS share the
// terms out among them. VEC: elements in 16 bytes; MMA: see mma.cuh.
#define DOWN (ROWS / 16)
#define ACROSS (UNITS * PARTS / 8)
// An odd multiple of 8 floats: no two lanes of a warp meet in a bank.
#define PITCH ((ACROSS | 1) * 8)

// VEC elements as four words: floats are rounded to tf32.
__device__ __forceinline__ void load_words(const T* from, bool there, uint32_t (&words)[4]) {
    uint4 v = there ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
#if VEC == 4
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = word(__uint_as_float(words[i]), 0);
#endif
}

// sums[warp][row][column] = this warp's terms of a (N, LENGTH) times b (PARTS * D, LENGTH) transposed.
//
// Lane 4 g + q of an instruction holds rows g and g + 8 of a, column g of b, and terms q and q + 4:
// any two words will do, as long as they are the same for both. So each lane loads 16 bytes.
__device__ __forceinline__ void multiply(const T* a, const T* b, float* sums) {
    int warp = threadIdx.x >> 5, group = (threadIdx.x & 31) >> 2, quad = threadIdx.x & 3;
    int first = blockIdx.y * ROWS + group, unit = blockIdx.x * UNITS;
    float sum[DOWN][ACROSS][4] = {};
#pragma unroll 2
    for (int chunk = warp * 4; chunk * VEC < LENGTH; chunk += WARPS * 4) {
        int k = (chunk + quad) * VEC;
        uint32_t left[DOWN][2][4], right[ACROSS][4];
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int row = first + i * 16 + half * 8;
                load_words(a + (int64_t)row * LENGTH + k, k < LENGTH && row < N, left[i][half]);
            }
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            int column = j * 8 + group, of = unit + column / PARTS;
            int64_t row = (int64_t)(column % PARTS) * D + of;
            load_words(b + row * LENGTH + k, k < LENGTH && of < D, right[j]);
        }
#pragma unroll
        for (int w = 0; w < 4; w += 2)
#pragma unroll
            for (int i = 0; i < DOWN; ++i)
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    const uint32_t rows[4] = {left[i][0][w], left[i][1][w], left[i][0][w + 1],
                                              left[i][1][w + 1]};
                    multiply(sum[i][j], rows, right[j][w], right[j][w + 1]);
                }
    }
#pragma unroll
    for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int row = warp * ROWS + i * 16 + half * 8 + group;
                float2* to = reinterpret_cast<float2*>(sums + row * PITCH + j * 8 + quad * 2);
                *to = make_float2(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
}
#endif

// Runs cell(n, d, sum) for each unit of each item, sum being its part of the product of a and b:
// b are the weights as `multiply` wants them, or else (N, PARTS * D), that product. Null: zeros.
template <typename Cell>
__device__ __forceinline__ void for_each_unit(const T* a, const void* b, Cell cell) {
#ifdef UNITS
    extern __shared__ float sums[];
    if (a) {
        multiply(a, (const T*)b, sums);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < ROWS * UNITS; i += blockDim.x) {
        int row = i / UNITS, unit = i % UNITS;
        int n = blockIdx.y * ROWS + row, d = blockIdx.x * UNITS + unit;
        if (n >= N || d >= D) continue;
        float sum[PARTS] = {};
        for (int warp = 0; a && warp < WARPS; ++warp)
#pragma unroll
            for (int j = 0; j < PARTS; ++j)
                sum[j] += sums[(warp * ROWS + row) * PITCH + unit * PARTS + j];
        cell(n, d, sum);
    }
#else
    FOR_EACH(N * D) {
        int n = id / D, d = id % D;
        float sum[PARTS] = {};
        for (int j = 0; b && j < PARTS; ++j) sum[j] = ((const float*)b)[(n * PARTS + j) * D + d];
        cell(n, d, sum);
    }
#endif
}

// What step 0 gets. copy: where the product wants it too, or null.
extern "C" __global__ void begin(const float* keep, const float* h_first, T* h_in, T* copy) {
    PDL_BEGIN;
    FOR_EACH(N * D) {
        T h = from_float<T>(h_first ? keep[id / D] * h_first[id] : 0.0f);
        h_in[id] = h;
        if (copy) copy[id] = h;
    }
}

#ifdef FORWARD
// One step. copy: where the next step's product wants h_in too, or null.
extern "C" __global__ void forward(const T* x, const float* keeps, const float* c_first, T* gates,
                                   T* h_in, T* copy, T* h_out, float* c_out, const void* product,
                                   int steps, int t) {
    PDL_BEGIN;
    const T* before = h_in ? h_in + (int64_t)t * N * D : nullptr;
    for_each_unit(before, product, [&](int n, int d, const float(&sum)[K]) {
        int64_t at = ((int64_t)t * N + n) * K * D + d, here = ((int64_t)t * N + n) * D + d;
        float keep = keeps[t * N + n], gate[K], h, c = 0;
        float c_in = !c_out ? 0.0f : t ? c_out[here - N * D] : c_first ? c_first[n * D + d] : 0.0f;
#pragma unroll
        for (int i = 0; i < K; ++i) gate[i] = to_float(x[at + i * D]) + sum[i];
        {
            GATES
            { FORWARD }
            GIVEN
        }
#pragma unroll
        for (int i = 0; i < K; ++i) gates[at + i * D] = from_float<T>(gate[i]);
        h_out[here] = from_float<T>(h);
        if (c_out) c_out[here] = c;
        if (h_in && t + 1 < steps) {
            T next = from_float<T>(keeps[(t + 1) * N + n] * h);
            h_in[here + N * D] = next;
            if (copy) copy[n * D + d] = next;
        }
    });
}
#endif

#ifdef BACKWARD
// One step, the last one first; after step 0, as t = -1, what h_first gets.
// copy: where the next product wants dgates too, or null. cell_flow: what c[t - 1] gets from step t.
extern "C" __global__ void backward(const float* keeps, const float* c_first, const T* gates,
                                    const float* c_out, const T* dh_out, const float* dh_last,
                                    const float* dc_last, T* dgates, T* copy, float* dh_first,
                                    float* dc_first, float* cell_flow, const void* product,
                                    int steps, int t) {
    PDL_BEGIN;
    bool last = t + 1 == steps;
    const T* after = last ? nullptr : dgates + (int64_t)(t + 1) * N * K * D;
    for_each_unit(after, last ? nullptr : product, [&](int n, int d, const float(&sum)[1]) {
        int unit = n * D + d;
        float flow = !last ? keeps[(t + 1) * N + n] * sum[0] : dh_last ? dh_last[unit] : 0.0f;
        if (t < 0) {
            dh_first[unit] = flow;
            return;
        }
        int64_t at = ((int64_t)t * N + n) * K * D + d, here = ((int64_t)t * N + n) * D + d;
        float keep = keeps[t * N + n], dh = to_float(dh_out[here]) + flow, gate[K], dgate[K];
        float c = c_out ? c_out[here] : 0.0f;
        float c_in = !c_out ? 0.0f : t ? c_out[here - N * D] : c_first ? c_first[unit] : 0.0f;
        float dc = !last ? cell_flow[unit] : dc_last ? dc_last[unit] : 0.0f;
#pragma unroll
        for (int i = 0; i < K; ++i) gate[i] = to_float(gates[at + i * D]);
        {
            GATES
            { BACKWARD }
            GIVEN
        }
#pragma unroll
        for (int i = 0; i < K; ++i) {
            T value = from_float<T>(dgate[i]);
            dgates[at + i * D] = value;
            if (copy) copy[(n * K + i) * D + d] = value;
        }
        cell_flow[unit] = dc;
        if (t == 0 && dc_first) dc_first[unit] = dc;
    });
}
#endif
