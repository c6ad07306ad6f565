// Pooling of regions (rois), in row-major float32 tensors.
//
// x: (images, C, H, W); y: (regions, C or D, BH, BW); rois: five numbers a region, the image first.
// All are constants of the text but the numbers of images and regions. The backward kernels gather:
// each element of dx adds what the regions over it send, in their order, so that results do not
// depend on how threads are scheduled. Nothing is contracted to fused multiply-adds where an edge
// of a bin is computed: the edges are the same on every device. A region that is not finite is NaN,
// and sends no gradient.

struct Span {
    int low, high;
};

__device__ __forceinline__ int clamp(int value, int high) { return min(max(value, 0), high); }

// The element of y (regions, channels, BH, BW) that a thread computes, and its region and image (or -1).
#define OUTPUT_PLACE(channels) \
    int w = id % BW, h = id / BW % BH, c = id / (BW * BH) % channels; \
    const float* roi = rois + id / ((int64_t)BW * BH * channels) * 5; \
    int image = image_of(roi, images); \
    float none = is_finite(roi) ? 0.0f : NAN;

// The element of dx (images, C, H, W) that a thread computes.
#define INPUT_PLACE \
    int w = id % W, h = id / W % H, c = id / (W * H) % C, image = id / ((int64_t)W * H * C);

// Runs what follows for each region `roi`, number r, of the thread's image.
#define FOR_EACH_REGION \
    for (int r = 0; r < regions; ++r) \
        if (const float* roi = rois + r * 5; image_of(roi, image + 1) == image)

__device__ __forceinline__ bool is_finite(const float* roi) {
    bool finite = true;
    for (int i = 0; i < 5; ++i) finite &= fabsf(roi[i]) < INFINITY;
    return finite;
}

// The image of a region, or -1 where it is none of the batch, or not finite.
__device__ __forceinline__ int image_of(const float* roi, int images) {
    return roi[0] >= 0 && roi[0] < images && is_finite(roi) ? (int)roi[0] : -1;
}

// A corner of a region on one axis (0: x, 1: y), moved outwards by PAD of the extent.
__device__ __forceinline__ float corner(const float* roi, int axis, bool end) {
    float a = roi[1 + axis], b = roi[3 + axis];
    float grown = __fmul_rn(b - a + 1.0f, PAD);
    return end ? b + grown : a - grown;
}

// Bin i of BINS of ROIPooling on one axis.
__device__ __forceinline__ Span max_bin(const float* roi, int axis, int i, int bins, int extent) {
    int start = (int)roundf(corner(roi, axis, false) * SCALE);
    int end = (int)roundf(corner(roi, axis, true) * SCALE);
    float size = (float)max(end - start + 1, 1) / bins;
    int low = (int)floorf(__fmul_rn(i, size)), high = (int)ceilf(__fmul_rn(i + 1, size));
    return {clamp(low + start, extent), clamp(high + start, extent)};
}

// Bin i of PSROIPooling on one axis.
__device__ __forceinline__ Span average_bin(const float* roi, int axis, int i, int bins,
                                            int extent) {
    float start = __fmul_rn(roundf(roi[1 + axis]), SCALE);
    float end = __fmul_rn(roundf(roi[3 + axis]) + 1.0f, SCALE);
    float size = fmaxf(end - start, 0.1f) / bins;
    return {clamp((int)floorf(__fadd_rn(__fmul_rn(i, size), start)), extent),
            clamp((int)ceilf(__fadd_rn(__fmul_rn(i + 1, size), start)), extent)};
}

extern "C" __global__ void roi_max_pooling(const float* x, const float* rois, float* y, int* index,
                                           int images, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        OUTPUT_PLACE(C)
        int where = -1;
        float best = none;
        if (image >= 0) {
            const float* plane = x + ((int64_t)image * C + c) * (H * W);
            Span rows = max_bin(roi, 1, h, BH, H), columns = max_bin(roi, 0, w, BW, W);
            for (int i = rows.low; i < rows.high; ++i)
                for (int j = columns.low; j < columns.high; ++j) {
                    float value = plane[i * W + j];
                    if (where < 0 || value > best || value != value)
                        best = value, where = i * W + j;
                }
        }
        y[id] = best;
        index[id] = where;
    }
}

extern "C" __global__ void roi_max_pooling_backward(const float* dy, const float* rois,
                                                    const int* index, float* dx, int regions,
                                                    int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        INPUT_PLACE
        float sum = 0;
        FOR_EACH_REGION {
            int64_t plane = ((int64_t)r * C + c) * (BH * BW);
            for (int i = 0; i < BH; ++i) {
                Span rows = max_bin(roi, 1, i, BH, H);
                if (h < rows.low || h >= rows.high) continue;
                for (int j = 0; j < BW; ++j)
                    if (index[plane + i * BW + j] == h * W + w) sum += dy[plane + i * BW + j];
            }
        }
        dx[id] = sum;
    }
}

// Of D outputs; C is D * BH * BW.
extern "C" __global__ void psroi_pooling(const float* x, const float* rois, float* y,
                                               int images, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        OUTPUT_PLACE(D)
        float sum = 0;
        Span rows = average_bin(roi, 1, h, BH, H), columns = average_bin(roi, 0, w, BW, W);
        int area = (rows.high - rows.low) * (columns.high - columns.low);
        if (image >= 0) {
            const float* plane = x + ((int64_t)image * C + (c * BH + h) * BW + w) * (H * W);
            for (int i = rows.low; i < rows.high; ++i)
                for (int j = columns.low; j < columns.high; ++j) sum += plane[i * W + j];
        }
        y[id] = image >= 0 && area > 0 ? sum / area : none;
    }
}

// A channel of dx belongs to one bin alone.
extern "C" __global__ void psroi_pooling_backward(const float* dy, const float* rois,
                                                        float* dx, int regions, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        INPUT_PLACE
        int j = c % BW, i = c / BW % BH;
        float sum = 0;
        FOR_EACH_REGION {
            Span rows = average_bin(roi, 1, i, BH, H), columns = average_bin(roi, 0, j, BW, W);
            if (h < rows.low || h >= rows.high || w < columns.low || w >= columns.high) continue;
            int area = (rows.high - rows.low) * (columns.high - columns.low);
            sum += dy[(int64_t)r * C + c] / area;  // dy is (regions, D, BH, BW), as C is
        }
        dx[id] = sum;
    }
}

// Where the points of a region stand on one axis of x.
struct Points {
    float start, step;
    bool any;
};

__device__ __forceinline__ Points points_of(const float* roi, int axis, int points) {
    if (WARP) {
        float start = roundf(__fmul_rn(corner(roi, axis, false), SCALE));
        float end = roundf(__fmul_rn(corner(roi, axis, true), SCALE));
        return {start, fmaxf(end - start, 0.0f) / points, true};
    }
    float start = __fadd_rn(__fmul_rn(corner(roi, axis, false), SCALE), -0.5f);
    float end = __fadd_rn(__fmul_rn(corner(roi, axis, true), SCALE), -0.5f);
    return {start, (end - start) / (points - 1), end > start};
}

// Point i of these, or NaN where it is outside of x.
__device__ __forceinline__ float place_of(Points points, int i, int extent) {
    float at = __fadd_rn(__fmul_rn(i, points.step), points.start);
    return at >= -0.5f && at <= extent - 0.5f ? fminf(fmaxf(at, 0.0f), extent - 1) : NAN;
}

extern "C" __global__ void roi_align(const float* x, const float* rois, float* y, int images,
                                        int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        OUTPUT_PLACE(C)
        Points rows = points_of(roi, 1, BH), columns = points_of(roi, 0, BW);
        float y_at = place_of(rows, h, H), x_at = place_of(columns, w, W), value = none;
        if (image >= 0 && rows.any && columns.any && y_at == y_at && x_at == x_at) {
            const float* plane = x + ((int64_t)image * C + c) * (H * W);
            int top = (int)y_at, left = (int)x_at;
            int bottom = min(top + 1, H - 1), right = min(left + 1, W - 1);
            float down = y_at - top, over = x_at - left;
            float upper = plane[top * W + left] * (1 - over) + plane[top * W + right] * over;
            float lower = plane[bottom * W + left] * (1 - over) + plane[bottom * W + right] * over;
            value = upper * (1 - down) + lower * down;
        }
        y[id] = value;
    }
}

extern "C" __global__ void roi_align_backward(const float* dy, const float* rois, float* dx,
                                                 int regions, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        INPUT_PLACE
        float sum = 0;
        FOR_EACH_REGION {
            Points rows = points_of(roi, 1, BH), columns = points_of(roi, 0, BW);
            if (!rows.any || !columns.any) continue;
            const float* plane = dy + ((int64_t)r * C + c) * (BH * BW);
            for (int i = 0; i < BH; ++i) {
                float down = 1 - fabsf(place_of(rows, i, H) - h);
                if (!(down > 0)) continue;
                for (int j = 0; j < BW; ++j) {
                    float over = 1 - fabsf(place_of(columns, j, W) - w);
                    if (over > 0) sum += plane[i * BW + j] * down * over;
                }
            }
        }
        dx[id] = sum;
    }
}

// The sums over `count` elements of dy (regions, C, BH, BW), a block for each region: of the slope of
// x at each point times how the point moves with the first corner, and with the second.
extern "C" __global__ void roi_warping_rois_backward(const float* x, const float* rois,
                                                     const float* dy, float* drois, int images,
                                                     int64_t count) {
    PDL_BEGIN;
    int regions = count / (C * BH * BW);
    for (int r = blockIdx.x; r < regions; r += gridDim.x) {
        const float* roi = rois + r * 5;
        int image = image_of(roi, images), each = C * BH * BW;
        Points rows = points_of(roi, 1, BH), columns = points_of(roi, 0, BW);
        float corners[4] = {0, 0, 0, 0};
        for (int id = threadIdx.x; image >= 0 && id < each; id += blockDim.x) {
            int j = id % BW, i = id / BW % BH, c = id / (BW * BH);
            float h = place_of(rows, i, H), w = place_of(columns, j, W);
            if (!(h + 1 < H && w + 1 < W)) continue;
            int top = (int)h, left = (int)w;
            const float* at = x + (((int64_t)image * C + c) * H + top) * W + left;
            float down = h - top, over = w - left, sent = SCALE * dy[(int64_t)r * each + id];
            float across = ((at[1] - at[0]) * (1 - down) + (at[W + 1] - at[W]) * down) * sent;
            float along = ((at[W] - at[0]) * (1 - over) + (at[W + 1] - at[1]) * over) * sent;
            float u = (w - columns.start) / (columns.step * BW + 1);
            float v = (h - rows.start) / (rows.step * BH + 1);
            corners[0] += across * (1 - u), corners[1] += along * (1 - v);
            corners[2] += across * u, corners[3] += along * v;
        }
        for (int i = 0; i < 4; ++i) {
            float sum = block_sum(corners[i]);
            if (threadIdx.x == 0) drois[r * 5 + 1 + i] = sum;
        }
        if (threadIdx.x == 0) drois[r * 5] = 0;
    }
}
