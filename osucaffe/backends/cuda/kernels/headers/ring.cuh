// Places in shared memory that some threads fill and others empty, in turn.

// One barrier of each place says that it is full, one that it is empty.
template <int PLACES> struct Ring {
    uint32_t barriers;
    int place, round;

    __device__ __forceinline__ explicit Ring(uint32_t at) : barriers(at), place(0), round(0) {}
    __device__ __forceinline__ uint32_t full() const { return barriers + place * 8; }
    __device__ __forceinline__ uint32_t empty() const { return full() + PLACES * 8; }
    __device__ __forceinline__ void advance() {
        if (++place == PLACES) {
            place = 0;
            round ^= 1;
        }
    }
    __device__ __forceinline__ void init(int fillers, int emptiers) {
        do {
            mbarrier_init(full(), fillers);
            mbarrier_init(empty(), emptiers);
            advance();
        } while (place);
        round = 0;
    }
    __device__ __forceinline__ void wait_full() const { mbarrier_wait(full(), round); }
    __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty(), round ^ 1); }
};
