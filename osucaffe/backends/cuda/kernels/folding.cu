// Owns the folding of strided images with few channels into smaller ones with many (space to depth).
//
// C, SH, SW, PH, PW, KH, KW: channels, stride, padding and kernel of the convolution; BW = SW *
// PIXELS: the width of a block; FOLDED: channels of the folded image, (dh, dw, c) and padding; FH, FW:
// its extents; FKH, FKW: the folded kernel. S, T: element types of the source and the target.

#define INSIDE (SH * BW * C)

// y (N, FH, FW, FOLDED) = x, whose neighbours along n, c, h, w are so many elements apart.
extern "C" __global__ void fold_images(const S* x, T* y, int64_t count, int h, int w, int64_t sn,
                                       int64_t sc, int64_t sh, int64_t sw) {
    FOR_EACH(count) {
        constexpr int GROUPS = FOLDED / VEC;
        int first = id % GROUPS * VEC;
        int64_t place = id / GROUPS;
        int j = place % FW, i = place / FW % FH;
        const S* image = x + place / (FW * FH) * sn;
        float values[VEC];
#pragma unroll
        for (int lane = 0; lane < VEC; ++lane) {
            int channel = first + lane;
            int c = channel % C, dw = channel / C % BW, dh = channel / (C * BW);
            int row = i * SH + dh - PH, column = j * BW + dw - PW;
            bool inside = channel < INSIDE && row >= 0 && row < h && column >= 0 && column < w;
            values[lane] = inside ? to_float(image[c * sc + row * sh + column * sw]) : 0.0f;
        }
        store<T, VEC>(y + id * VEC, values);
    }
}

// Where the weight of a folded filter (of output p * outputs + o) comes from: its kernel row and
// column, or -1.
__device__ __forceinline__ int kernel_row(int i, int channel) {
    int row = i * SH + channel / (C * BW);
    return channel < INSIDE && row < KH ? row : -1;
}

__device__ __forceinline__ int kernel_column(int j, int channel, int p) {
    int column = j * BW + channel / C % BW - p * SW;
    return column >= 0 && column < KW ? column : -1;
}

// y (PIXELS * outputs, FKH, FKW, FOLDED) = w, whose neighbours along o, c, h, w lie so far apart.
extern "C" __global__ void fold_filters(const S* w, T* y, int outputs, int64_t so, int64_t sc,
                                        int64_t sh, int64_t sw) {
    FOR_EACH(PIXELS * outputs * FKH * FKW * FOLDED) {
        int channel = id % FOLDED, j = id / FOLDED % FKW, i = id / (FOLDED * FKW) % FKH;
        int output = id / (FOLDED * FKW * FKH);
        int row = kernel_row(i, channel);
        int column = kernel_column(j, channel, output / outputs);
        int64_t from = output % outputs * so + channel % C * sc + row * sh + column * sw;
        y[id] = from_float<T>(row >= 0 && column >= 0 ? to_float(w[from]) : 0.0f);
    }
}

// The reverse for gradients: what the pixels of a block add to a weight is summed up.
extern "C" __global__ void unfold_filters(const S* folded, float* w, int outputs, int64_t so,
                                          int64_t sc, int64_t sh, int64_t sw, int accumulate) {
    FOR_EACH(outputs * C * KH * KW) {
        int c = id % C, column = id / C % KW, row = id / (C * KW) % KH, o = id / (C * KW * KH);
        float sum = 0;
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) {
            int shifted = column + p * SW;
            int channel = (row % SH * BW + shifted % BW) * C + c;
            int64_t tap = ((int64_t)(p * outputs + o) * FKH + row / SH) * FKW + shifted / BW;
            sum += to_float(folded[tap * FOLDED + channel]);
        }
        float* to = w + o * so + c * sc + row * sh + column * sw;
        *to = sum + (accumulate ? *to : 0.0f);
    }
}
