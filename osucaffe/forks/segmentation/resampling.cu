// Unpooling by noted places, and resize_bilinear with corners on corners.
//
// Unpooling works on row-major float32: planes of `small` elements, and of `large`. ResizeBilinear
// takes images as they lie: X_T, Y_T are the element types of the image with H x W pixels and of
// that with OH x OW; XN XC XH XW and YN YC YH YW their distances along each axis, C their channels.

extern "C" __global__ void no_owners(int* owner, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) owner[id] = -1;
}

// owner (planes * large), -1 before: the last element that goes to each place. What is out of range
// owns the first place of its plane, as number 0x7fffffff.
extern "C" __global__ void find_owners(const float* index, int* owner, int64_t count, int small,
                                       int large) {
    PDL_BEGIN;
    FOR_EACH(count) {
        int64_t first = id / small * large;
        float place = index[id];
        bool inside = place >= 0 && place < large;
        atomicMax(owner + first + (inside ? (int)place : 0), inside ? (int)(id % small) : 0x7fffffff);
    }
}

extern "C" __global__ void unpooling(const float* x, const int* owner, float* y, int64_t count,
                                     int small, int large) {
    PDL_BEGIN;
    FOR_EACH(count) {
        int from = owner[id];
        y[id] = from == 0x7fffffff ? NAN : from < 0 ? 0.0f : x[id / large * small + from];
    }
}

extern "C" __global__ void unpooling_backward(const float* dy, const float* index, float* dx,
                                              int64_t count, int small, int large) {
    PDL_BEGIN;
    FOR_EACH(count) {
        float place = index[id];
        bool inside = place >= 0 && place < large;
        dx[id] = inside ? dy[id / small * large + (int)place] : 0.0f;
    }
}

#ifdef X_T
// n, c, h, w of an element of an image of this size, in the order in which it lies in memory.
#if CHANNELS_LAST
#define PLACES(number, height, width) \
    int64_t rest = number; \
    int64_t c = rest % C; rest /= C; \
    int w = rest % (width); rest /= (width); \
    int h = rest % (height); \
    int64_t n = rest / (height);
#else
#define PLACES(number, height, width) \
    int64_t rest = number; \
    int w = rest % (width); rest /= (width); \
    int h = rest % (height); rest /= (height); \
    int64_t c = rest % C, n = rest / C;
#endif

// A point of the larger grid on the smaller one: the pixel before it, and how far after that.
struct Point {
    int left;
    float part;
};

__device__ __forceinline__ Point locate(int at, int small, int large) {
    if (large == 1) return {0, 0.0f};
    int64_t scaled = (int64_t)at * (small - 1);
    int left = (int)(scaled / (large - 1));
    return {left, (float)(scaled - (int64_t)left * (large - 1)) / (large - 1)};
}

extern "C" __global__ void resize_bilinear(const X_T* x, Y_T* y, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACES(id, OH, OW)
        Point row = locate(h, H, OH), column = locate(w, W, OW);
        int below = row.part > 0, right = column.part > 0;
        const X_T* from = x + n * XN + c * XC + (int64_t)row.left * XH + (int64_t)column.left * XW;
        float top = to_float(from[0]) * (1 - column.part) + to_float(from[right * XW]) * column.part;
        from += below * XH;
        float bottom = to_float(from[0]) * (1 - column.part) + to_float(from[right * XW]) * column.part;
        y[n * YN + c * YC + h * YH + w * YW] =
            from_float<Y_T>(top * (1 - row.part) + bottom * row.part);
    }
}

// The share of pixel `at` of the smaller grid in a point of the larger one.
__device__ __forceinline__ float share(int at, int point, int small, int large) {
    Point found = locate(point, small, large);
    return found.left == at ? 1 - found.part : found.left + 1 == at ? found.part : 0.0f;
}

// The points of the larger grid that may have a share of pixel `at`: from the first to the last.
__device__ __forceinline__ int first_point(int at, int small, int large) {
    return at == 0 || small == 1 ? 0 : (int)((int64_t)(at - 1) * (large - 1) / (small - 1));
}
__device__ __forceinline__ int last_point(int at, int small, int large) {
    if (small == 1 || at == small - 1) return large - 1;
    return min(large - 1, (int)((int64_t)(at + 1) * (large - 1) / (small - 1)));
}

// y: the gradient of the output; x: that of the input, each of whose elements adds in order.
extern "C" __global__ void resize_bilinear_backward(const Y_T* y, X_T* x, int64_t count) {
    PDL_BEGIN;
    FOR_EACH(count) {
        PLACES(id, H, W)
        int last_row = last_point(h, H, OH), last_column = last_point(w, W, OW);
        float sum = 0;
        for (int i = first_point(h, H, OH); i <= last_row; ++i) {
            float part = share(h, i, H, OH);
            if (part == 0) continue;
            float line = 0;
            for (int j = first_point(w, W, OW); j <= last_column; ++j)
                line += share(w, j, W, OW) * to_float(y[n * YN + c * YC + i * YH + j * YW]);
            sum += part * line;
        }
        x[n * XN + c * XC + h * XH + w * XW] = from_float<X_T>(sum);
    }
}
#endif
