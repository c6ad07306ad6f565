// Space to depth: strided images with few channels become smaller ones with many.
// What it is worth: see the tables of make bench-kernels, benchmarks/results/kernels-*.md.
//
// C, SH, SW, PH, PW, KH, KW: channels, stride, padding and kernel of the convolution, whose blocks are
// SH x SW; FOLDED: channels of the folded image, (dh, dw, c) and padding; FH, FW: its extents; FKH,
// FKW: the folded kernel. S, T: element types of the source and the target.

#define INSIDE (SH * SW * C)

// What a thread copies of a pixel: as many of its rows as fill whole vectors.
#define RUN (INSIDE == FOLDED && SW * C % VEC == 0 ? 1 : SH)
#define RUNS (SH / RUN)
#define LENGTH (FOLDED / RUNS)

// y (N, FH, FW, FOLDED) = x, whose neighbours along n, c, h, w are that many elements apart.
// It is the arithmetic that takes the time: the fewer threads, the fewer places to find.
extern "C" __global__ void fold_images(const S* x, T* y, int64_t pixels, int h, int w, int64_t sn,
                                       int64_t sc, int64_t sh, int64_t sw) {
    PDL_BEGIN;
    FOR_EACH(pixels * RUNS) {
        unsigned place = id / RUNS;
        int row = place / FW % FH * SH + id % RUNS * RUN - PH, column = place % FW * SW - PW;
        const S* corner = x + place / (FW * FH) * sn + row * sh + column * sw;
        float values[LENGTH];
#pragma unroll
        for (int i = 0; i < LENGTH; ++i) {
            int c = i % C, dw = i / C % SW, dh = i / (C * SW);
            bool inside = dh < RUN && (unsigned)(row + dh) < h && (unsigned)(column + dw) < w;
            values[i] = inside ? to_float(corner[c * sc + dh * sh + dw * sw]) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < LENGTH; i += VEC) {
            float part[VEC];
#pragma unroll
            for (int lane = 0; lane < VEC; ++lane) part[lane] = values[i + lane];
            store<T, VEC>(y + id * LENGTH + i, part);
        }
    }
}

// Where the weight of a folded filter comes from: its kernel row and column, or -1.
__device__ __forceinline__ int kernel_row(int i, int channel) {
    int row = i * SH + channel / (C * SW);
    return channel < INSIDE && row < KH ? row : -1;
}

__device__ __forceinline__ int kernel_column(int j, int channel) {
    int column = j * SW + channel / C % SW;
    return column < KW ? column : -1;
}

// y (outputs, FKH, FKW, FOLDED) = w, whose neighbours along o, c, h, w lie so far apart.
extern "C" __global__ void fold_filters(const S* w, T* y, int outputs, int64_t so, int64_t sc,
                                        int64_t sh, int64_t sw) {
    PDL_BEGIN;
    FOR_EACH(outputs * FKH * FKW * FOLDED) {
        int channel = id % FOLDED, j = id / FOLDED % FKW, i = id / (FOLDED * FKW) % FKH;
        int row = kernel_row(i, channel), column = kernel_column(j, channel);
        int64_t from = id / (FOLDED * FKW * FKH) * so + channel % C * sc + row * sh + column * sw;
        y[id] = from_float<T>(row >= 0 && column >= 0 ? to_float(w[from]) : 0.0f);
    }
}

// The reverse, for gradients.
extern "C" __global__ void unfold_filters(const S* folded, float* w, int outputs, int64_t so,
                                          int64_t sc, int64_t sh, int64_t sw, int accumulate) {
    PDL_BEGIN;
    FOR_EACH(outputs * C * KH * KW) {
        int c = id % C, column = id / C % KW, row = id / (C * KW) % KH, o = id / (C * KW * KH);
        int channel = (row % SH * SW + column % SW) * C + c;
        int64_t tap = ((int64_t)o * FKH + row / SH) * FKW + column / SW;
        float* to = w + o * so + c * sc + row * sh + column * sw;
        *to = to_float(folded[tap * FOLDED + channel]) + (accumulate ? *to : 0.0f);
    }
}
