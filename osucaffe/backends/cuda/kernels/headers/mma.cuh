// Products of tiles by a warp's tensor cores, for kernels with MMA among their macros.
//
// MMA: the instruction. A word is a float (rounded to tf32, in which 16-bit numbers are exact), or
// PAIR = 2 neighbours of 16 bits of type T along the axis that is summed over.

__device__ __forceinline__ uint32_t word(float low, float high) {
    uint32_t bits;
#if PAIR == 2
    bits = from_float<T>(low).bits | (uint32_t)from_float<T>(high).bits << 16;
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(low));
#endif
    return bits;
}

// d (16 x 8) += a (16 x 8 words) b (8 words x 8). Lane 4 g + t holds a[g][t], a[g + 8][t],
// a[g][t + 4], a[g + 8][t + 4]; b[t][g], b[t + 4][g]; d[g][2 t], d[g][2 t + 1], d[g + 8][2 t] ...
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    asm(MMA " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
