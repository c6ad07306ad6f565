// What comes out of a detector: non-maximum suppression of boxes, the rows of results, and which of them are true.
#include "boxes.cuh"

// A block for each list of boxes: an item's of one class (`classes` lists an item), of which the
// background's stays empty. scores (N, count, classes), boxes (N or 1, count, wide, 4). Keeps at most
// `room` of each list: kept (N, classes, room), highest first. listed: (N, classes, count), scratch;
// ordered: (N, classes, room), scratch.
extern "C" __global__ void nms(const float* boxes, const float* scores, int* kept,
                                      int* kept_count, int* listed, int* ordered, int count,
                                      int classes, int wide, int shared_boxes, int room,
                                      int background, float least, float threshold, float eta,
                                      float smallest) {
    PDL_BEGIN;
    int item = blockIdx.x / classes, label = blockIdx.x % classes;
    kept += (int64_t)blockIdx.x * room, ordered += (int64_t)blockIdx.x * room;
    listed += (int64_t)blockIdx.x * count;
    scores += (int64_t)item * count * classes + label;
    boxes += ((shared_boxes ? 0 : (int64_t)item * count * wide) + (wide > 1 ? label : 0)) * 4;
    auto box_at = [&](int p) { return load_box(boxes + (int64_t)p * wide * 4); };
    int eligible = 0;
    if (label != background)
        for (int first = 0; first < count; first += blockDim.x) {
            int p = first + threadIdx.x, found;
            bool is = p < count && scores[(int64_t)p * classes] > least;
            int place = block_rank(is, found);
            if (is) listed[eligible + place] = p;
            eligible += found;
        }
    __syncthreads();
    // Each one's place in the order is how many are before it.
    for (int i = threadIdx.x; i < eligible; i += blockDim.x) {
        float own = scores[(int64_t)listed[i] * classes];
        int rank = 0;
        for (int j = 0; j < eligible; ++j) {
            float other = scores[(int64_t)listed[j] * classes];
            rank += other > own || (other == own && j < i);
        }
        if (rank < room) ordered[rank] = listed[i];
    }
    __syncthreads();
    int number = 0;
    for (int i = 0; i < min(eligible, room); ++i) {
        Box own = box_at(ordered[i]);
        if (smallest > 0 && area(own) < smallest) continue;
        bool covered = false;
        for (int j = threadIdx.x; j < number; j += blockDim.x)
            covered |= box_iou(own, box_at(kept[j])) > threshold;
        if (__syncthreads_or(covered)) continue;
        if (threadIdx.x == 0) kept[number] = ordered[i];
        __syncthreads();
        ++number;
        if (eta < 1 && threshold > 0.5f) threshold *= eta;
    }
    if (threadIdx.x == 0) kept_count[blockIdx.x] = number;
}

// A block for each item: of its kept boxes only the `most` highest of all classes stay. As each class
// is in order, those are the first ones of each: counts (N, classes) tells how many.
extern "C" __global__ void __launch_bounds__(1024) keep_highest(
    const float* scores, const int* kept, const int* kept_count, int* counts, int count, int classes,
    int room, int most) {
    PDL_BEGIN;
    scores += (int64_t)blockIdx.x * count * classes;
    kept += (int64_t)blockIdx.x * classes * room;
    kept_count += blockIdx.x * classes, counts += blockIdx.x * classes;
    int total = 0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        counts[c] = most < 0 ? kept_count[c] : 0;
        total += kept_count[c];
    }
    total = block_sum(total);
    __syncthreads();
    if (most < 0) return;
    for (int i = threadIdx.x; i < classes * room; i += blockDim.x) {
        int label = i / room, at = i % room, rank = 0;
        if (at >= kept_count[label]) continue;
        float own = scores[(int64_t)kept[i] * classes + label];
        if (total > most)
            for (int c = 0; c < classes; ++c)
                for (int j = 0; j < kept_count[c]; ++j) {
                    float other = scores[(int64_t)kept[c * room + j] * classes + c];
                    if (other < own) break;
                    rank += other > own || c < label || (c == label && j < at);
                }
        if (rank < most) atomicAdd(&counts[label], 1);
    }
}

// A block for each item writes its rows (7) after those of the items before it; y holds -1 so far.
extern "C" __global__ void __launch_bounds__(1024) write_detections(
    const float* boxes, const float* scores, const int* kept, const int* counts, float* y,
    float* length, int items, int count, int classes, int wide, int room) {
    PDL_BEGIN;
    int before = 0, all = 0;
    for (int i = threadIdx.x; i < items * classes; i += blockDim.x) {
        before += i < blockIdx.x * classes ? counts[i] : 0;
        all += counts[i];
    }
    before = block_sum(before), all = block_sum(all);
    if (blockIdx.x == 0 && threadIdx.x == 0) *length = all ? all : items;
    if (!all && threadIdx.x == 0) y[7 * blockIdx.x] = blockIdx.x;
    int item = blockIdx.x;
    for (int label = 0; label < classes; ++label) {
        int list = item * classes + label;
        for (int i = threadIdx.x; i < counts[list]; i += blockDim.x) {
            int p = kept[(int64_t)list * room + i];
            float* row = y + 7 * (int64_t)(before + i);
            int64_t at = (int64_t)item * count + p;
            const float* box = boxes + (at * wide + (wide > 1 ? label : 0)) * 4;
            row[0] = item, row[1] = label, row[2] = scores[at * classes + label];
            row[3] = box[0], row[4] = box[1], row[5] = box[2], row[6] = box[3];
        }
        before += counts[list];
    }
}

// A thread for each row of found: which ground truth it overlaps most (-1: none enough), and whether
// there is any of its image and label.
extern "C" __global__ void look_up_ground_truth(
    const float* found, const float* ground_truth, int* hit, int* any, int rows, int known,
    float threshold) {
    PDL_BEGIN;
    FOR_EACH(rows) {
        const float* own = found + 7 * id;
        Box box = load_box(own + 3);
        float best = -1;
        int at = -1, seen = 0;
        for (int t = 0; t < known; ++t) {
            const float* goal = ground_truth + 8 * t;
            if (goal[0] == -1 || goal[0] != own[0] || goal[1] != own[1]) continue;
            float shared = box_iou(box, load_box(goal + 3));
            seen = 1;
            if (shared > best) best = shared, at = t;
        }
        hit[id] = best >= threshold ? at : -1;
        any[id] = seen;
    }
}

// A thread for each row of found finds its place, and whether one before it has hit the same ground truth.
// y holds -1 so far; its first rows, one a class, are written too.
extern "C" __global__ void match_detections(
    const float* found, const float* ground_truth, const int* hit, const int* any, float* y,
    float* length, int rows, int known, int classes, int background, int difficult) {
    PDL_BEGIN;
    int labels = classes - (background >= 0 && background < classes);
    FOR_EACH(rows > classes ? rows : classes) {
        if (id < classes && id != background) {
            float* row = y + 5 * (id - (background >= 0 && id > background));
            int sum = 0;
            for (int t = 0; t < known; ++t) {
                const float* goal = ground_truth + 8 * t;
                sum += goal[0] != -1 && goal[1] == id && (difficult || goal[7] == 0);
            }
            row[1] = id, row[2] = sum;
        }
        if (id == 0) {
            int valid = 0;
            for (int j = 0; j < rows; ++j) valid += found[7 * j] != -1 && found[7 * j + 1] != -1;
            *length = labels + valid;
        }
        if (id >= rows) continue;
        const float* own = found + 7 * id;
        if (own[0] == -1 || own[1] == -1) continue;
        int place = labels;
        bool late = false;
        for (int j = 0; j < rows; ++j) {
            const float* other = found + 7 * j;
            if (other[0] == -1 || other[1] == -1 || j == id) continue;
            bool same = other[0] == own[0] && other[1] == own[1];
            bool ranked = same && any[id] && other[2] != own[2];
            bool first = other[0] != own[0]   ? other[0] < own[0]
                         : other[1] != own[1] ? other[1] < own[1]
                         : ranked             ? other[2] > own[2]
                                              : j < id;
            place += first;
            late |= same && first && hit[j] == hit[id];
        }
        float* row = y + 5 * place;
        bool is_hit = hit[id] >= 0;
        bool counts = !is_hit || difficult || ground_truth[8 * hit[id] + 7] == 0;
        row[0] = own[0], row[1] = own[1], row[2] = own[2];
        row[3] = is_hit && counts && !late;
        row[4] = counts && (!is_hit || late);
    }
}
