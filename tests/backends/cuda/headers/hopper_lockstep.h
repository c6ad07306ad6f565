// A stand-in for the instructions of hopper.cuh, as documented, for kernels as plain C++.
//
// What is asynchronous is done as late as it may be: copies to shared memory when LATE_COPIES,
// otherwise products and copies from there; the others are done at once.
#include "lockstep.h"
#define __grid_constant__
#define __align__(bytes)
template <typename T> struct List {
    T* first;
    int count, room;
    void add(T value) {
        if (count == room) first = (T*)realloc(first, (room = 2 * room + 8) * sizeof(T));
        first[count++] = value;
    }
    void drop(int some) { memmove(first, first + some, (count -= some) * sizeof(T)); }
};
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

// What wgrad_16bit.cu has of common.cuh.
inline float warp_sum(float x) {
    for (int lanes = 16; lanes; lanes /= 2) x += exchange(x, running ^ lanes);
    return x;
}

inline uint32_t shared_address(const void* at) { return (const char*)at - (const char*)::shared; }

// -- numbers: whole ones are what they are in tf32, and small ones what they are in 16 bits

inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
struct bfloat16 { uint16_t bits; };
inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
inline void put(float& to, float value) { to = value; }
inline void put(bfloat16& to, float value) {
    uint32_t bits = __float_as_uint(value);
    to.bits = bits + 0x7fff + (bits >> 16 & 1) >> 16;
}
template <typename T, int N> void unpack(const Vector<T, N>& v, float (&to)[N]) {
    for (int i = 0; i < N; ++i) to[i] = to_float(v.element[i]);
}
template <typename T, int N> void load(const T* from, float (&to)[N]) {
    unpack(*reinterpret_cast<const Vector<T, N>*>(from), to);
}
template <typename T, int N> Vector<T, N> pack(const float (&from)[N]) {
    Vector<T, N> v;
    for (int i = 0; i < N; ++i) put(v.element[i], from[i]);
    return v;
}
// To global memory alone, as common.cuh's.
template <typename T, int N> void store(T* to, const float (&from)[N]) {
    if ((char*)to >= (char*)::shared && (char*)to < (char*)::shared + sizeof ::shared) abort();
    *reinterpret_cast<Vector<T, N>*>(to) = pack<T>(from);
}

// -- products: d (64 x N, of 128 threads) += a b, which are ELEMENTs

// ROWS: of so many vectors, permuted; TURNED: the same, which are summed over.
enum Order { PLANES_OF_VECTORS, ROWS_OF_VECTORS, TURNED };
struct MatrixDescriptor {
    const uint4* first;
    int plane, vectors;
    Order order;
    MatrixDescriptor operator+(int more) const { return {first + more, plane, vectors, order}; }
};
inline MatrixDescriptor matrix_descriptor(const void* first, int plane, int eights = 8) {
    return {static_cast<const uint4*>(first), plane, eights, PLANES_OF_VECTORS};
}
inline MatrixDescriptor rows_descriptor(const void* first, int vectors) {
    return {static_cast<const uint4*>(first), 0, vectors, ROWS_OF_VECTORS};
}
inline MatrixDescriptor transposed_rows_descriptor(const void* first, int vectors, int blocks) {
    return {static_cast<const uint4*>(first), blocks, vectors, TURNED};
}
inline int permuted(int vector, int vectors) { return vector ^ (vector >> 3 & vectors - 1); }
inline float number(const MatrixDescriptor& from, int row, int k) {
    constexpr int length = 16 / sizeof(ELEMENT);
    const uint4* all = reinterpret_cast<const uint4*>(::shared);
    int vector = from.first - all, element = k % length, vectors = from.vectors;
    if (from.order == PLANES_OF_VECTORS) {
        vector += row / 8 * vectors + row % 8 + k / length * from.plane;
    } else if (from.order == ROWS_OF_VECTORS) {
        vector = permuted(vector + row * vectors + k / length, vectors);
    } else {
        int wide = vectors * length;
        vector += row / wide * from.plane + row % wide / length + k * vectors;
        vector = permuted(vector, vectors);
        element = row % length;
    }
    return to_float(reinterpret_cast<const ELEMENT*>(all + vector)[element]);
}
static void multiply(float* d, int count, const MatrixDescriptor& a, const MatrixDescriptor& b) {
    int thread = threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    for (int i = 0; i < count; ++i)
        for (int k = 0; k < 32 / (int)sizeof(ELEMENT); ++k)
            d[i] += number(a, thread / 32 * 16 + i / 2 % 2 * 8 + g, k) *
                    number(b, i / 4 * 8 + 2 * t + i % 2, k);
}

// a: of a warp's lanes: 16 rows, of 8 numbers. Lanes come and wait for one another.
static uint32_t operands[1024][4];
static void multiply(float* d, int count, const uint32_t (&a)[4], const MatrixDescriptor& b) {
    int lane = threadIdx.x % 32, warp = threadIdx.x - lane, g = lane / 4, t = lane % 4;
    memcpy(operands[threadIdx.x], a, 16);
    meet();
    auto left = [&](int row, int k) {
        float result;
        memcpy(&result, &operands[warp + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2], 4);
        return result;
    };
    for (int i = 0; i < count; ++i)
        for (int k = 0; k < 8; ++k)
            d[i] += left(i / 2 % 2 * 8 + g, k) * number(b, i / 4 * 8 + 2 * t + i % 2, k);
    meet();
}

// Of a thread, in groups: each begins with one that has no sums.
struct Product { float* d; int count; MatrixDescriptor a, b; };
static List<Product> products[1024];
static int groups[1024];
template <int COUNT>
void begin_product(float (&d)[COUNT], const MatrixDescriptor& a, const MatrixDescriptor& b) {
    if (LATE_COPIES) return multiply(d, COUNT, a, b);
    products[threadIdx.x].add({d, COUNT, a, b});
}
template <int COUNT>
void begin_product(float (&d)[COUNT], const uint32_t (&a)[4], const MatrixDescriptor& b) {
    multiply(d, COUNT, a, b);
}
#define MULTIPLY(d, a, b) begin_product(d, a, b)
#define ADD_UP(d, a, b) begin_product(d, a, b)
template <int TILES, int SUMS> void pin(float (&)[TILES][SUMS]) {}
inline void wgmma_fence() { products[threadIdx.x].add({}), ++groups[threadIdx.x]; }
template <typename E> void wgmma_fence(E&) { wgmma_fence(); }
inline void wgmma_commit() {}
template <int LEFT> void wgmma_wait() {
    auto& mine = products[threadIdx.x];
    int done = 0;
    for (int& left = groups[threadIdx.x]; left > LEFT; --left)
        for (++done; done < mine.count && mine.first[done].d; ++done) {
            const Product& product = mine.first[done];
            multiply(product.d, product.count, product.a, product.b);
        }
    mine.drop(done);
}
template <int LEFT, typename E> void wgmma_wait(E&) { wgmma_wait<LEFT>(); }

// -- barriers and copies

// Of a map: the address, and what the two copies say of it.
struct TensorMap { uint64_t words[16]; };

// Copies from a map, from this place on; gives how many bytes.
struct Copy {
    int (*perform)(char* to, const uint64_t* words, const int* place);
    void* to;
    TensorMap map;  // of a thread that may have ended since
    int place[5];
    int done() const {
        if (shared_address(to) % 128) abort();
        return perform(static_cast<char*>(to), map.words, place);
    }
};

// late: copies that are done as late as may be.
struct Barrier {
    uint32_t address;
    int expected, missing, bytes, phase;
    List<Copy> late;
    void settle() {
        if (missing < 0) abort();
        if (missing || bytes || late.count) return;
        missing = expected;
        phase ^= 1;
    }
};
static Barrier all_barriers[64];
inline Barrier& slot(uint32_t address) {
    int i = 0;
    while (all_barriers[i].expected && all_barriers[i].address != address) ++i;
    return all_barriers[i];
}
inline Barrier& barrier_at(uint32_t address) {
    if (!slot(address).expected) abort();
    return slot(address);
}

inline void mbarrier_init(uint32_t at, int arrivals) { slot(at) = {at, arrivals, arrivals}; }
inline void mbarrier_arrive_expect_tx(uint32_t at, int bytes) {
    Barrier& barrier = barrier_at(at);
    barrier.bytes += bytes;
    --barrier.missing;
    barrier.settle();
}
inline void mbarrier_arrive(uint32_t at) { mbarrier_arrive_expect_tx(at, 0); }
inline void mbarrier_wait(uint32_t at, int parity) {
    Barrier& barrier = barrier_at(at);
    for (int tries = 0; barrier.phase == parity; ++tries) {
        if (!barrier.missing) {
            for (int i = 0; i < barrier.late.count; ++i) barrier.bytes -= barrier.late.first[i].done();
            barrier.late.count = 0;
            barrier.settle();
        }
        if (barrier.phase != parity) break;
        if (tries == 1 << 16) abort();
        meet();
    }
}
inline void mbarrier_wait_opaque(uint32_t at, int parity) { mbarrier_wait(at, parity); }
template <int THREADS> void sync_consumers() {
    static int come;
    int phase = come++ / THREADS;
    while (come < (phase + 1) * THREADS) meet();
}
inline void fence_proxy_async() {}
inline void fence_mbarrier_init() {}

// Copies that a thread has begun of 16 bytes.
struct Transfer { void* to; const void* from; bool there; };
static List<Transfer> copied[1024];
static void perform(const Transfer& each) {
    if ((uintptr_t)each.to % 16 || (uintptr_t)each.from % 16) abort();
    if (each.there) memcpy(each.to, each.from, 16);
    else memset(each.to, 0, 16);
}
inline void cp_async_16_bytes(uint4* to, const void* from, bool there) {
    if (LATE_COPIES) copied[threadIdx.x].add({to, from, there});
    else perform({to, from, there});
}
inline void cp_async_wait() {
    auto& mine = copied[threadIdx.x];
    for (int i = 0; i < mine.count; ++i) perform(mine.first[i]);
    mine.count = 0;
}

static void begin(const Copy& copy, uint32_t at) {
    Barrier& barrier = barrier_at(at);
    if (LATE_COPIES) return barrier.late.add(copy);
    barrier.bytes -= copy.done();
    barrier.settle();
}

// An element comes to its place, permuted if rows of so many vectors are.
inline void put_copied(ELEMENT* to, int vectors, ELEMENT value) {
    constexpr int length = 16 / sizeof(ELEMENT);
    ELEMENT* all = reinterpret_cast<ELEMENT*>(::shared);
    int place = to - all;
    if (vectors) to = all + permuted(place / length, vectors) * length + place % length;
    *to = value;
}

// Extents, strides in elements but the first, extents of a box; vectors of a permuted row.
static int copy_box(char* to, const uint64_t* words, const int* first) {
    const uint64_t *extents = words + 1, *strides = words + 6, *box = words + 10;
    const ELEMENT* from = reinterpret_cast<const ELEMENT*>(words[0]);
    int count = box[0] * box[1] * box[2] * box[3] * box[4];
    for (int each = 0; each < count; ++each) {
        int rest = each, at;
        bool real = true;
        int64_t offset = 0;
        for (int axis = 0; axis < 5; ++axis) {
            at = first[axis] + rest % (int)box[axis], rest /= (int)box[axis];
            real &= at >= 0 && at < (int64_t)extents[axis];
            offset += at * (axis ? (int64_t)strides[axis - 1] : 1);
        }
        put_copied(reinterpret_cast<ELEMENT*>(to) + each, words[15], real ? from[offset] : ELEMENT{});
    }
    return count * sizeof(ELEMENT);
}
inline void tma_load(void* to, const TensorMap& map, int i, int j, int k, int l, int m,
                      uint32_t barrier) {
    begin({copy_box, to, map, {i, j, k, l, m}}, barrier);
}

// N, C, H, W; rows and pixels before; channels and pixels of a run.
static int copy_pixels(char* to, const uint64_t* words, const int* first) {
    const ELEMENT* from = reinterpret_cast<const ELEMENT*>(words[0]);
    int given[8], channel = first[0], column = first[1], row = first[2], image = first[3];
    for (int i = 0; i < 8; ++i) given[i] = words[1 + i];
    auto [n, c, h, w, above, before, channels, pixels] = given;
    if (column < -before || column >= w || row < -above || row >= h) abort();
    for (int pixel = 0; pixel < pixels; ++pixel) {
        for (int i = 0; i < channels; ++i) {
            bool real = image < n && row >= 0 && column >= 0 && channel + i < c;
            put_copied(reinterpret_cast<ELEMENT*>(to) + pixel * channels + i,
                       channels * (int)sizeof(ELEMENT) / 16,
                       real ? from[((image * h + row) * w + column) * c + channel + i] : ELEMENT{});
        }
        if (++column == w) column = -before, ++row;
        if (row == h) row = -above, ++image;
    }
    return pixels * channels * sizeof(ELEMENT);
}
inline void tma_load_pixels(void* to, const TensorMap& map, int channel, int column, int row, int image,
                            uint32_t barrier) {
    begin({copy_pixels, to, map, {channel, column, row, image}}, barrier);
}

template <int COUNT> void setmaxnreg_inc() {}
template <int COUNT> void setmaxnreg_dec() {}
