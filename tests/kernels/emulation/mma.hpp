// mma.sync for double precision: the lanes of a warp meet, and each gets its sums from the fragments of all.
#pragma once

extern "C" void emulation_collective(void* mine, void (*together)(void* const* lanes), int line);

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))  // it reads what other threads own

struct MmaLane {
  double* c;
  const double *a, *b;
};

// Fragments as the PTX ISA has them for .f64: m8n8k4, and m16n8k4, m16n8k8 and m16n8k16, which have 8 more rows.
template <int ROWS, int DEPTH>
UNCHECKED void mma_together(void* const* lanes) {
  for (int lane = 0; lane < 32; lane++)
    for (int half = 0; half < ROWS / 8; half++)
      for (int e = 0; e < 2; e++) {
        const int row = lane / 4, column = lane % 4 * 2 + e;
        double& sum = static_cast<MmaLane*>(lanes[lane])->c[half * 2 + e];
        for (int k = 0; k < DEPTH; k++) {
          const double a = static_cast<MmaLane*>(lanes[row * 4 + k % 4])->a[k / 4 * (ROWS / 8) + half];
          const double b = static_cast<MmaLane*>(lanes[column * 4 + k % 4])->b[k / 4];
          sum = __builtin_fma(a, b, sum);
        }
      }
}

template <int ROWS, int DEPTH>
inline void mma(double* c, const double* a, const double* b, int line = __builtin_LINE()) {
  static_assert((ROWS == 8 && DEPTH == 4) || (ROWS == 16 && (DEPTH == 4 || DEPTH == 8 || DEPTH == 16)), "an mma for doubles");
  MmaLane mine{c, a, b};
  emulation_collective(&mine, mma_together<ROWS, DEPTH>, line);
}

#undef UNCHECKED
