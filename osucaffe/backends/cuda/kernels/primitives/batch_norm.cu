// Batch normalization of a matrix of pixels (rows) by channels (columns).
//
// T: element type of the blobs; VEC: elements that a thread loads at once; C: channels, a multiple
// of VEC; GROUPS: vectors of a row that a block treats; LANES: rows that it treats at once. The grid
// is (groups of channels, parts of the rows), a block GROUPS x LANES threads. Rows are dealt out in
// turn, in some passes from the last on: the cache still has what the one before ended with, and
// the next one, a convolution, begins with the first.
// DOWN, RIGHT, H, W, if there are: rows are those pixels of images (H, W) that such steps reach.

#define AT_ONCE 4

typedef Vector<T, VEC> Piece;
typedef int64_t Offsets[AT_ONCE];

__device__ __forceinline__ Piece piece(const T* x, int64_t at) {
    return *reinterpret_cast<const Piece*>(x + at);
}

// The number of a row among all pixels.
__device__ __forceinline__ int64_t pixel(int64_t row) {
#ifdef DOWN
    constexpr int HIGH = (H + DOWN - 1) / DOWN, WIDE = (W + RIGHT - 1) / RIGHT;
    int64_t line = row / WIDE;
    return (line / HIGH * H + line % HIGH * DOWN) * W + row % WIDE * RIGHT;
#else
    return row;
#endif
}

// Call work(offsets of this thread's pieces in AT_ONCE rows, those among all pixels, how many rows
// there are).
template <bool BACK, class Work>
__device__ __forceinline__ void for_pieces(int64_t rows, int column, Work work) {
    int lane = threadIdx.x / GROUPS;
    int64_t chunks = (rows + LANES * AT_ONCE - 1) / (LANES * AT_ONCE);
    for (int64_t i = blockIdx.y; i < chunks; i += gridDim.y) {
        int64_t row = (BACK ? chunks - 1 - i : i) * (LANES * AT_ONCE) + lane;
        Offsets at, of_all;
        int count = 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            at[j] = (row + j * LANES) * C + column;
            of_all[j] = pixel(row + j * LANES) * C + column;
            count += row + j * LANES < rows;
        }
        work(at, of_all, count);
    }
}

// The sums over a block's rows of each channel, of two numbers for each: into partial, which lies
// as (2, parts, C).
__device__ __forceinline__ void sum_block(float (&first)[VEC], float (&second)[VEC],
                                          float* partial) {
    __shared__ float shared[LANES][GROUPS * VEC];
    int lane = threadIdx.x / GROUPS, group = threadIdx.x % GROUPS;
#pragma unroll
    for (int number = 0; number < 2; ++number) {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < VEC; ++j) shared[lane][group * VEC + j] = number ? second[j] : first[j];
        __syncthreads();
        for (int i = threadIdx.x; i < GROUPS * VEC; i += GROUPS * LANES) {
            int column = blockIdx.x * GROUPS * VEC + i;
            if (column >= C) break;
            float total = 0;
#pragma unroll 8
            for (int row = 0; row < LANES; ++row) total += shared[row][i];
            partial[(number * (int64_t)gridDim.y + blockIdx.y) * C + column] = total;
        }
    }
}

__device__ __forceinline__ int own_column() {
    return (blockIdx.x * GROUPS + threadIdx.x % GROUPS) * VEC;
}

// A number near the mean of each channel of this thread, of which x is at the first: the mean of four
// rows, as a single one may lie far from all others.
__device__ __forceinline__ void near_mean(const T* x, int64_t rows, float (&mean)[VEC]) {
    float values[4][VEC];
#pragma unroll
    for (int i = 0; i < 4; ++i) load<T, VEC>(x + rows * i / 4 * C, values[i]);
#pragma unroll
    for (int j = 0; j < VEC; ++j)
        mean[j] = ((values[0][j] + values[1][j]) + (values[2][j] + values[3][j])) * 0.25f;
}

// Sums of x and x^2, less a number near the mean of the channel (else large means cancel digits); that
// number, and how many there are: into sums (4, parts, C).
extern "C" __global__ void sum_squares(const T* x, float* sums, int64_t rows) {
    PDL_BEGIN;
    int column = own_column();
    float sum[VEC] = {}, square[VEC] = {}, shift[VEC];
    if (column < C) {
        near_mean(x + column, rows, shift);
        for_pieces<true>(rows, column, [&](const Offsets& at, const Offsets& of_all, int count) {
            Piece xs[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (i < count) xs[i] = piece(x, at[i]);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (i >= count) break;
                float values[VEC];
                unpack(xs[i], values);
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    float value = values[j] - shift[j];
                    sum[j] += value;
                    square[j] = fmaf(value, value, square[j]);
                }
            }
        });
    }
    sum_block(sum, square, sums);
    if (threadIdx.x >= GROUPS || column >= C) return;
    // The part that is dealt out first has the last rows, of which there are fewer.
    int64_t at_once = LANES * AT_ONCE, chunks = (rows + at_once - 1) / at_once;
    int64_t count = (chunks - blockIdx.y + gridDim.y - 1) / gridDim.y * at_once;
    if (blockIdx.y == 0) count -= chunks * at_once - rows;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
        sums[(2 * (int64_t)gridDim.y + blockIdx.y) * C + column + j] = shift[j];
        sums[(3 * (int64_t)gridDim.y + blockIdx.y) * C + column + j] = count;
    }
}

// The sums of both numbers over the rows of threads, for the channel of threadIdx.x; true in one thread
// each.
__device__ __forceinline__ bool sum_over_rows(float& first, float& second) {
    __shared__ float shared[2][32][32];
    shared[0][threadIdx.y][threadIdx.x] = first;
    shared[1][threadIdx.y][threadIdx.x] = second;
    __syncthreads();
    first = second = 0;
    if (threadIdx.y) return false;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        first += shared[0][i][threadIdx.x];
        second += shared[1][i][threadIdx.x];
    }
    return true;
}

// Mean and inv_std from sums, and what the past gets of them.
extern "C" __global__ void finish_statistics(const float* sums, float* mean, float* inv_std,
                                             float* running_mean, float* running_variance,
                                             float* running_weight, int parts, float share,
                                             float unbiased, float eps, float momentum) {
    PDL_BEGIN;
    int column = blockIdx.x * 32 + threadIdx.x;
    int64_t step = parts * (int64_t)C;
    float sum = 0, square = 0, shift = 0;
    if (column < C) {
        shift = sums[2 * step + column];  // near the mean of all, too
#pragma unroll 8
        for (int part = threadIdx.y; part < parts; part += 32) {
            const float* at = sums + part * (int64_t)C + column;
            float count = at[3 * step], one = at[0], two = at[step], apart = at[2 * step] - shift;
            if (count == 0) one = two = apart = 0;  // there is nothing
            sum += fmaf(count, apart, one);
            square += fmaf(apart, fmaf(count, apart, 2 * one), two);
        }
    }
    if (!sum_over_rows(sum, square) || column >= C) return;
    float centre = sum * share, variance = fmaxf(square * share - centre * centre, 0.0f);
    float value = shift + centre;
    mean[column] = value;
    inv_std[column] = 1 / sqrtf(variance + eps);
    running_mean[column] = momentum * running_mean[column] + value;
    running_variance[column] = momentum * running_variance[column] + unbiased * variance;
    if (column == 0) *running_weight = momentum * *running_weight + 1;
}

#ifdef ADDEND
// y = (x - mean) * inv_std * scale + bias + addend, and its ReLU if RELU.
extern "C" __global__ void normalize(const T* x, const float* mean, const float* inv_std,
                                     const float* scale, const float* bias, const T* addend, T* y,
                                     int64_t rows) {
    PDL_BEGIN;
    int column = own_column();
    if (column >= C) return;
    float centre[VEC], factor[VEC], shift[VEC], scales[VEC];
    channels(mean, column, 0, centre);
    channels(inv_std, column, 1, factor);
    channels(scale, column, 1, scales);
    channels(bias, column, 0, shift);
#pragma unroll
    for (int j = 0; j < VEC; ++j) factor[j] *= scales[j];
    for_pieces<true>(rows, column, [&](const Offsets& at, const Offsets& of_all, int count) {
        Piece xs[AT_ONCE], added[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (i >= count) break;
            xs[i] = piece(x, of_all[i]);
            if (ADDEND) added[i] = piece(addend, of_all[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (i >= count) break;
            float values[VEC], more[VEC];
            unpack(xs[i], values);
            if (ADDEND) unpack(added[i], more);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                float value = fmaf(values[j] - centre[j], factor[j], shift[j]);
                if (ADDEND) value += more[j];
                values[j] = RELU && value < 0 ? 0.0f : value;
            }
            store<T, VEC>(y + at[i], values);
        }
    });
}
#endif

#ifdef PARTS
// The gradient after the ReLU: the sum of PARTS gradients, zero where RELU and `relu_output` (if
// POSITIVE) or what was computed from x is not. Where SUMS: sums of it and of it times x - mean,
// and `whole` (if there is one) gets it. Else dx = factor * (it - less - (x - mean) * slope).
extern "C" __global__ void gradients(const T* x, const T* dy, const T* other, const T* relu_output,
                                     const float* mean, const float* inv_std, const float* scale,
                                     const float* bias, const float* averages, T* to,
                                     float* partial, int64_t rows) {
    PDL_BEGIN;
    constexpr bool FROM_X = RELU && !POSITIVE, READ_X = SUMS || FROM_X || AVERAGES;
    int column = own_column();
    float sum[VEC] = {}, product[VEC] = {};
    if (column < C) {
        float centre[VEC], factor[VEC], scales[VEC], shift[VEC], less[VEC], slope[VEC];
        channels(mean, column, 0, centre);
        channels(inv_std, column, 1, factor);
        channels(scale, column, 1, scales);
        channels(FROM_X ? bias : 0, column, 0, shift);
        channels(AVERAGES ? averages : 0, column, 0, less);
        channels(AVERAGES ? averages + C : 0, column, 0, slope);
#pragma unroll
        for (int j = 0; j < VEC; ++j) factor[j] *= scales[j];
        for_pieces<SUMS>(rows, column, [&](const Offsets& at, const Offsets& of_all, int count) {
            Piece xs[AT_ONCE], ones[AT_ONCE], twos[AT_ONCE], masks[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (i >= count) break;
                ones[i] = piece(dy, at[i]);
                if (READ_X) xs[i] = piece(x, of_all[i]);
                if (PARTS > 1) twos[i] = piece(other, at[i]);
                if (POSITIVE) masks[i] = piece(relu_output, at[i]);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                if (i >= count) break;
                float values[VEC], from_x[VEC], more[VEC], mask[VEC];
                unpack(ones[i], values);
                if (READ_X) unpack(xs[i], from_x);
                if (PARTS > 1) unpack(twos[i], more);
                if (POSITIVE) unpack(masks[i], mask);
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    float value = values[j];
                    if (PARTS > 1) value += more[j];
                    float apart = READ_X ? from_x[j] - centre[j] : 0.0f;
                    if (POSITIVE) value = relu_backward(value, mask[j]);
                    if (FROM_X) value = relu_backward(value, fmaf(apart, factor[j], shift[j]));
                    if (SUMS) {
                        sum[j] += value;
                        product[j] = fmaf(value, apart, product[j]);
                        values[j] = value;
                    } else {
                        values[j] = factor[j] * (value - less[j] - apart * slope[j]);
                    }
                }
                if (!SUMS || WHOLE) store<T, VEC>(to + of_all[i], values);
            }
        });
    }
    if (SUMS) sum_block(sum, product, partial);
}
#endif

// The gradients of scale and bias, and the averages that `gradients` takes off, from its sums.
extern "C" __global__ void finish_gradients(const float* partial, const float* inv_std, float* dscale,
                                            float* dbias, float* averages, int parts, float share,
                                            int add_scale, int add_bias) {
    PDL_BEGIN;
    int column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0, product = 0;
#pragma unroll 8
    for (int part = threadIdx.y; part < parts && column < C; part += 32) {
        sum += partial[part * (int64_t)C + column];
        product += partial[(parts + part) * (int64_t)C + column];
    }
    if (!sum_over_rows(sum, product) || column >= C) return;
    float factor = inv_std ? inv_std[column] : 1.0f;
    if (dscale) dscale[column] = product * factor + (add_scale ? dscale[column] : 0.0f);
    if (dbias) dbias[column] = sum + (add_bias ? dbias[column] : 0.0f);
    averages[column] = sum * share;
    averages[C + column] = product * share * factor * factor;
}
