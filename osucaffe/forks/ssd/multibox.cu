// The matching and mining of boxes and their losses, in row-major float32 tensors.
//
// Sums are made in one order and ties fall to the first, so that each run has the same bits.
#include "boxes.cuh"

#define MIN_OVERLAP 1e-6f

// What a thread has found best: the greatest value, and of equals the first.
struct Best { float value; int at; };

__device__ __forceinline__ Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

__device__ __forceinline__ Best warp_best(Best x) {
#pragma unroll
    for (int step = 16; step; step >>= 1)
        x = better(x, {__shfl_xor_sync(0xffffffff, x.value, step),
                       __shfl_xor_sync(0xffffffff, x.at, step)});
    return x;
}

__device__ __forceinline__ Best block_best(Best x) {
    __shared__ Best partial[32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    x = warp_best(x);
    __syncthreads();
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return warp_best(lane < (blockDim.x + 31) >> 5 ? partial[lane] : Best{0, 0x7fffffff});
}

// A block for each item and box of a prior; rows, best_value, best_at: for each, room for all ground truth.
extern "C" __global__ void __launch_bounds__(1024) match_boxes(
    const float* priors, const float* ground_truth, const float* location, float* match, float* iou,
    int* rows, float* best_value, int* best_at, int count, int wide, int known, int background,
    int difficult, float threshold, int inside) {
    PDL_BEGIN;
    int item = blockIdx.x / wide, number = blockIdx.x % wide;
    match += (int64_t)blockIdx.x * count, iou += (int64_t)blockIdx.x * count;
    rows += (int64_t)blockIdx.x * known;
    best_value += (int64_t)blockIdx.x * known, best_at += (int64_t)blockIdx.x * known;
    auto box_at = [&](int p) {
        const float* prior = priors + 4 * p;
        if (!location) return load_box(prior);
        return decode(location + (((int64_t)item * count + p) * wide + number) * 4, prior,
                      prior + 4 * count);
    };
    int mine = 0;
    bool none = wide > 1 && number == background;
    for (int first = 0; first < known; first += blockDim.x) {
        int row = first + threadIdx.x, found;
        const float* at = ground_truth + 8 * row;
        bool is_mine = row < known && !none && at[0] == item && (difficult || at[7] == 0) &&
                       (wide == 1 || at[1] == number);
        int place = block_rank(is_mine, found);
        if (is_mine) rows[mine + place] = row;
        mine += found;
    }
    __syncthreads();
    for (int p = threadIdx.x; p < count; p += blockDim.x)
        match[p] = !mine || (inside && beyond_image(box_at(p))) ? -2.0f : -1.0f;
    __syncthreads();
    // For each ground truth its best box that is free; the best of these is matched, over and over.
    auto look = [&](int t) {
        Box goal = load_box(ground_truth + 8 * rows[t] + 3);
        Best best = {0, 0x7fffffff};
        for (int p = threadIdx.x; p < count; p += blockDim.x) {
            if (match[p] != -1) continue;
            float shared = box_iou(box_at(p), goal);
            if (shared > MIN_OVERLAP) best = better(best, {shared, p});
        }
        best = block_best(best);
        if (threadIdx.x == 0) best_value[t] = best.value, best_at[t] = best.at;
        __syncthreads();
    };
    for (int t = 0; t < mine; ++t) look(t);
    for (int left = mine; left > 0; --left) {
        // Of equal overlaps the first box, and of one box the first ground truth.
        Best best = {0, 0x7fffffff};
        for (int t = threadIdx.x; t < mine; t += blockDim.x)
            if (best_value[t] > 0) best = better(best, {best_value[t], best_at[t]});
        best = block_best(best);
        if (best.value == 0) break;
        Best first = {0, 0x7fffffff};
        for (int t = threadIdx.x; t < mine; t += blockDim.x)
            if (best_value[t] == best.value && best_at[t] == best.at) first = better(first, {1, t});
        int chosen = block_best(first).at;
        if (threadIdx.x == 0) {
            match[best.at] = rows[chosen], iou[best.at] = best.value;
            best_value[chosen] = 0;
        }
        __syncthreads();
        for (int t = 0; t < mine; ++t)
            if (best_value[t] > 0 && best_at[t] == best.at) look(t);
    }
    for (int p = threadIdx.x; p < count; p += blockDim.x) {
        if (match[p] > -1) continue;
        Best best = {0, -1};
        if (match[p] == -1)
            for (int t = 0; t < mine; ++t) {
                float shared = box_iou(box_at(p), load_box(ground_truth + 8 * rows[t] + 3));
                if (shared > MIN_OVERLAP && shared > best.value) best = {shared, t};
            }
        iou[p] = best.value;
        if (best.at >= 0 && threshold >= 0 && best.value >= threshold) match[p] = rows[best.at];
    }
}

#ifdef SMOOTH
// What the kernels below need of a box's match: its ground truth's label, and how each coordinate errs.
struct Target {
    int label, wide;  // the label in the ground truth, and which of a prior's boxes it is
    float error[4];
};

__device__ __forceinline__ Target target_of(const float* location, const float* priors,
                                            const float* ground_truth, float match, int item, int p,
                                            int count, int wide) {
    const float* row = ground_truth + 8 * (int)match;
    const float *prior = priors + 4 * p, *variance = prior + 4 * count;
    Target target;
    target.label = whole_number(row[1]);
    target.wide = wide > 1 && target.label >= 0 && target.label < wide ? target.label : 0;
    const float* code = location + (((int64_t)item * count + p) * wide + target.wide) * 4;
    float goal[4];
    encode(row + 3, prior, goal);
    float box[4] = {0, 0, 0, 0};
    if (BOUNDED) {
        Box place = BOUNDED == 1 ? load_box(prior) : decode(code, prior, variance);
        box[0] = place.xmin, box[1] = place.ymin, box[2] = place.xmax, box[3] = place.ymax;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float scaled = SCALED ? code[i] : code[i] / variance[i];
        target.error[i] = scaled - goal[i] / variance[i];
        if (BOUNDED && (box[i] < 0 || box[i] > 1)) target.error[i] = 0;
    }
    return target;
}

// The class that a ground truth's label stands for; -1: none that there is.
__device__ __forceinline__ int class_of(int label, int classes) {
    int found = AGNOSTIC ? BACKGROUND + 1 : label;
    return found < 0 || found >= classes || found == BACKGROUND ? -1 : found;
}

// The greatest of some scores, and the sum of the exponentials of what they are less.
__device__ __forceinline__ float exponentials(const float* x, int classes, float& top) {
    float sum = 0;
    top = x[0];
    for (int c = 1; c < classes; ++c) top = fmaxf(top, x[c]);
    for (int c = 0; c < classes; ++c) sum += expf(x[c] - top);
    return sum;
}

// A thread for each prior. WIDE: boxes of a prior; MATCHES: matches of each, at most one a class.
extern "C" __global__ void multibox_losses(const float* location, const float* confidence,
                                           const float* priors, const float* ground_truth,
                                           const float* match, float* location_loss,
                                           float* confidence_loss, int items, int count, int classes) {
    PDL_BEGIN;
    FOR_EACH((int64_t)items * count) {
        int item = id / count, p = id % count, label = BACKGROUND;
        bool matched = false, wrong = false;
        float boxes = 0, scores = 0, hits = 0;
        const float* x = confidence + id * classes;
        for (int number = 0; number < MATCHES; ++number) {
            float own = match[((int64_t)item * MATCHES + number) * count + p];
            if (!(own > -1)) continue;
            Target target = target_of(location, priors, ground_truth, own, item, p, count, WIDE);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float size = fabsf(target.error[i]);
                boxes += SMOOTH && size >= 1 ? size - 0.5f : 0.5f * size * size;
            }
            matched = true;
            label = class_of(target.label, classes);
            wrong |= label < 0;
            if (label >= 0) hits += x[label];
        }
        if (SOFTMAX) {
            float top, sum = exponentials(x, classes, top);
            float own = label >= 0 && label < classes ? x[label] : 0;
            scores = bounded_loss(fmaxf(top + logf(sum) - own, 0));
        } else {
            if (!matched && !MATCHED_ONLY && BACKGROUND < classes) hits = x[BACKGROUND];
            for (int c = 0; c < classes; ++c)
                scores += fmaxf(x[c], 0) + log1pf(expf(-fabsf(x[c])));
            scores -= hits;
        }
        location_loss[id] = boxes;
        confidence_loss[id] = wrong ? NAN : scores;
    }
}

extern "C" __global__ void multibox_losses_backward(const float* location, const float* confidence,
                                                    const float* priors, const float* ground_truth,
                                                    const float* match, const float* chosen,
                                                    const float* dloss, float* dlocation,
                                                    float* dconfidence, int items, int count,
                                                    int classes, float weight) {
    PDL_BEGIN;
    float scale = *dloss;
    FOR_EACH((int64_t)items * count) {
        int item = id / count, p = id % count, label = BACKGROUND;
        bool matched = false, wrong = false;
        const float* x = confidence + id * classes;
        float *dbox = dlocation + id * WIDE * 4, *dx = dconfidence + id * classes;
        if (dlocation)
            for (int i = 0; i < WIDE * 4; ++i) dbox[i] = 0;
        if (dconfidence && !SOFTMAX)
            for (int c = 0; c < classes; ++c) dx[c] = scale / (1 + expf(-x[c]));
        for (int number = 0; number < MATCHES; ++number) {
            float own = match[((int64_t)item * MATCHES + number) * count + p];
            if (!(own > -1)) continue;
            Target target = target_of(location, priors, ground_truth, own, item, p, count, WIDE);
            if (dlocation)
                for (int i = 0; i < 4; ++i) {
                    float error = target.error[i];
                    if (SMOOTH) error = fmaxf(-1, fminf(1, error));
                    dbox[target.wide * 4 + i] += weight * scale * error;
                }
            matched = true;
            label = class_of(target.label, classes);
            wrong |= label < 0;
            if (dconfidence && !SOFTMAX && label >= 0) dx[label] -= scale;
        }
        if (!dconfidence) continue;
        if (!matched && chosen && !(chosen[id] > 0)) {
            for (int c = 0; c < classes; ++c) dx[c] = 0;
            continue;
        }
        if (SOFTMAX) {
            float top, sum = exponentials(x, classes, top);
            for (int c = 0; c < classes; ++c)
                dx[c] = scale * (expf(x[c] - top) / sum - (c == label));
        } else if (!matched && !MATCHED_ONLY && BACKGROUND < classes) {
            dx[BACKGROUND] -= scale;
        }
        if (wrong) dx[0] = NAN;
    }
}
#endif

extern "C" __global__ void decode_boxes(const float* location, const float* priors, float* boxes,
                                        int64_t total, int count, int wide) {
    PDL_BEGIN;
    FOR_EACH(total) {
        int p = id / wide % count;
        Box box = decode(location + 4 * id, priors + 4 * p, priors + 4 * (p + count));
        float* at = boxes + 4 * id;
        at[0] = box.xmin, at[1] = box.ymin, at[2] = box.xmax, at[3] = box.ymax;
    }
}

// The bits that the k-th highest of the block's keys has: of those that `eligible` tells. `more`: how many
// of the keys that are equal to it are among the k.
template <typename Eligible>
__device__ uint32_t radix_select(const float* values, int count, int k, int& more, Eligible eligible) {
    __shared__ int histogram[256];
    __shared__ uint32_t found;
    __shared__ int left;
    if (threadIdx.x == 0) found = 0, left = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) histogram[i] = 0;
        __syncthreads();
        for (int p = threadIdx.x; p < count; p += blockDim.x) {
            uint32_t key = ordered_bits(values[p]);
            bool same = shift == 24 || key >> (shift + 8) == found >> (shift + 8);
            if (same && eligible(p)) atomicAdd(&histogram[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            while (digit > 0 && histogram[digit] < left) left -= histogram[digit--];
            found |= (uint32_t)digit << shift;
        }
        __syncthreads();
    }
    more = left;
    return found;
}

// A block for each item: the k highest losses, by the digits of their bits, of equals the first.
extern "C" __global__ void __launch_bounds__(1024) mine_boxes(
    const float* loss, float* match, const float* iou, float* negative, int count, int hard,
    float ratio, float most_overlap, int size) {
    PDL_BEGIN;
    loss += (int64_t)blockIdx.x * count, match += (int64_t)blockIdx.x * count;
    iou += (int64_t)blockIdx.x * count, negative += (int64_t)blockIdx.x * count;
    auto eligible = [&](int p) { return hard || (match[p] == -1 && iou[p] < most_overlap); };
    int own = 0, candidates = 0;
    for (int p = threadIdx.x; p < count; p += blockDim.x) {
        own += match[p] > -1;
        candidates += eligible(p);
    }
    own = block_sum(own), candidates = block_sum(candidates);
    int k = min(hard ? size : (int)(own * ratio), candidates), more = 0;
    uint32_t least = k ? radix_select(loss, count, k, more, eligible) : 0;
    int equal = 0;
    for (int first = 0; first < count; first += blockDim.x) {
        int p = first + threadIdx.x, found;
        bool can = p < count && k && eligible(p);
        uint32_t key = can ? ordered_bits(loss[p]) : 0;
        int place = equal + block_rank(can && key == least, found);
        equal += found;
        if (p >= count) continue;
        bool picked = can && (key > least || (key == least && place < more));
        negative[p] = picked && match[p] == -1;
        if (hard && match[p] > -1 && !picked) match[p] = -1;
    }
}

// After `nms`: those kept, `size` of them, are what hard mining picks.
extern "C" __global__ void __launch_bounds__(1024) pick_thinned(
    float* match, float* negative, const int* kept, const int* kept_count, int count, int room,
    int size) {
    PDL_BEGIN;
    match += (int64_t)blockIdx.x * count, negative += (int64_t)blockIdx.x * count;
    kept += (int64_t)blockIdx.x * room;
    for (int p = threadIdx.x; p < count; p += blockDim.x) negative[p] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < min(kept_count[blockIdx.x], size); i += blockDim.x)
        negative[kept[i]] = 1;
    __syncthreads();
    for (int p = threadIdx.x; p < count; p += blockDim.x) {
        bool picked = negative[p] > 0;
        negative[p] = picked && match[p] == -1;
        if (match[p] > -1 && !picked) match[p] = -1;
    }
}
