// Windows over any number of spatial axes, in row-major float32 tensors: the general forms of
// pooling, and im2col.
//
// AXES; IN, OUT, KERNEL, STRIDE, PAD, DILATION: lists of as many numbers; INS, OUTS, TAPS: the
// products of the first, second and third; COUNT: elements that threads work on.
// large: (planes, *IN); small: (planes, *OUT). All sums are made in a fixed order.

__device__ __constant__ const int in_[] = IN, out_[] = OUT, kernel_[] = KERNEL, stride_[] = STRIDE,
                                  pad_[] = PAD, dilation_[] = DILATION;

// The place of a tap of window `window` in its plane of `large`, or -1 in the padding.
__device__ __forceinline__ int tap_place(int window, int tap) {
    int place = 0, step = 1;
    bool inside = true;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
        int o = window % out_[axis], t = tap % kernel_[axis];
        window /= out_[axis], tap /= kernel_[axis];
        int at = o * stride_[axis] - pad_[axis] + t * dilation_[axis];
        inside &= at >= 0 && at < in_[axis];
        place += at * step, step *= in_[axis];
    }
    return inside ? place : -1;
}

// The window whose tap `tap` stands at `place` of the plane, or -1 if there is none.
__device__ __forceinline__ int window_at(int place, int tap) {
    int window = 0, step = 1;
    bool inside = true;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
        int at = place % in_[axis], t = tap % kernel_[axis];
        place /= in_[axis], tap /= kernel_[axis];
        int from = at + pad_[axis] - t * dilation_[axis];
        int o = from / stride_[axis];
        inside &= from >= 0 && from % stride_[axis] == 0 && o < out_[axis];
        window += o * step, step *= out_[axis];
    }
    return inside ? window : -1;
}

// Runs what follows for each tap of a window, which stands at `place` of the plane.
#define FOR_EACH_TAP(window) \
    for (int tap = 0, place; tap < TAPS; ++tap) \
        if ((place = tap_place(window, tap)) >= 0)

// Runs what follows for each window over a place, by its taps.
#define FOR_EACH_WINDOW(place) \
    for (int tap = 0, window; tap < TAPS; ++tap) \
        if ((window = window_at(place, tap)) >= 0)

// The area of a window inside the padded image, as Caffe counts it.
__device__ __forceinline__ float area(int window) {
    int result = 1;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
        int from = window % out_[axis] * stride_[axis] - pad_[axis];
        window /= out_[axis];
        result *= min(from + kernel_[axis], in_[axis] + pad_[axis]) - from;
    }
    return result;
}

// RELU: x came out of one, so maxima are noted only where they are positive (-1 elsewhere).
extern "C" __global__ void max_pooling(const float* x, float* y, int* index) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        const float* plane = x + id / OUTS * INS;
        float best = -INFINITY;
        int where = -1;
        FOR_EACH_TAP(id % OUTS)
            if (where < 0 || plane[place] > best || plane[place] != plane[place])
                best = plane[place], where = place;
        y[id] = best;
        if (index) index[id] = RELU && !(best > 0) ? -1 : where;
    }
}

// addend, relu_output (may be null): what is added; no gradient where it is not positive.
#define FINISH(sum) \
    float total = addend ? (sum) + addend[id] : (sum); \
    dx[id] = relu_output ? relu_backward(total, relu_output[id]) : total

extern "C" __global__ void max_pooling_backward(float* dx, const float* dy, const int* index,
                                                const float* addend, const float* relu_output) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        int64_t plane = id / INS * OUTS;
        int place = id % INS;
        float sum = 0;
        FOR_EACH_WINDOW(place)
            if (index[plane + window] == place) sum += dy[plane + window];
        FINISH(sum);
    }
}

extern "C" __global__ void average_pooling(const float* x, float* y) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        const float* plane = x + id / OUTS * INS;
        float sum = 0;
        FOR_EACH_TAP(id % OUTS) sum += plane[place];
        y[id] = sum / area(id % OUTS);
    }
}

extern "C" __global__ void average_pooling_backward(float* dx, const float* dy, const float* addend,
                                                    const float* relu_output) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        const float* plane = dy + id / INS * OUTS;
        float sum = 0;
        FOR_EACH_WINDOW(id % INS) sum += plane[window] / area(window);
        FINISH(sum);
    }
}

// Drawn with probability x / sum by 24 random bits: the first element at which the running sum
// passes the threshold; a window of zeros gives its first element.
extern "C" __global__ void stochastic_pooling(const float* x, float* y, int* index,
                                              const uint64_t* step, uint64_t key) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        const float* plane = x + id / OUTS * INS;
        float total = 0;
        FOR_EACH_TAP(id % OUTS) total += plane[place];
        float drawn = (squares32((step[0] << 32) + step[1] * COUNT + id, key) >> 8) * 0x1p-24f;
        float threshold = drawn * total, sum = 0, value = total == total ? 0 : total;
        int where = tap_place(id % OUTS, 0);
        FOR_EACH_TAP(id % OUTS) {
            sum += plane[place];
            if (sum > threshold) { value = plane[place], where = place; break; }
        }
        y[id] = value;
        index[id] = where;
    }
}

extern "C" __global__ void expected_pooling(const float* x, float* y) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        const float* plane = x + id / OUTS * INS;
        float total = 0, squares = 0;
        FOR_EACH_TAP(id % OUTS) total += plane[place], squares += plane[place] * plane[place];
        y[id] = total <= 0 ? 0.0f : squares / total;
    }
}

// columns: (N, C * TAPS, *OUT).
extern "C" __global__ void im2col(const float* x, float* columns) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        int64_t row = id / OUTS;  // of N * C * TAPS
        int place = tap_place(id % OUTS, row % TAPS);
        columns[id] = place >= 0 ? x[row / TAPS * INS + place] : 0.0f;
    }
}

extern "C" __global__ void im2col_backward(float* dx, const float* columns) {
    PDL_BEGIN;
    FOR_EACH(COUNT) {
        const float* plane = columns + id / INS * TAPS * OUTS;
        float sum = 0;
        FOR_EACH_WINDOW(id % INS) sum += plane[(int64_t)tap * OUTS + window];
        dx[id] = sum;
    }
}
