// mma.sync for double precision and for TF32: the lanes of a warp meet, and each gets its sums from the fragments of all.
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

// ---- TF32, as tensor cores compute: they ignore the 13 low bits of an operand, multiply exactly, shift all terms of a sum
// and what it is added to to the exponent of the largest, cut off what lies below one bit beyond FP32, and cut off the sum
// (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7, 2021). Denormal
// numbers count as what they are.

UNCHECKED inline unsigned long long bits_of_double(double value) {
  unsigned long long bits;
  __builtin_memcpy(&bits, &value, 8);
  return bits;
}

UNCHECKED inline double double_of_bits(unsigned long long bits) {
  double value;
  __builtin_memcpy(&value, &bits, 8);
  return value;
}

UNCHECKED inline double from_tf32(unsigned bits) {
  bits &= 0xffffe000;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

// A multiple of 2^exponent, towards zero.
UNCHECKED inline double cut(double value, int exponent) {
  const int kept = static_cast<int>(bits_of_double(value) >> 52 & 0x7ff) - 1023 - exponent;  // bits behind the first one
  if (kept < 0) return 0;
  return kept >= 52 ? value : double_of_bits(bits_of_double(value) >> (52 - kept) << (52 - kept));
}

// The sum of `count` terms, each of which a double holds exactly.
UNCHECKED inline float sum_of_tensor_core(const double* terms, int count) {
  double plain = 0;
  int largest = -2000;
  for (int i = 0; i < count; i++) {
    plain += terms[i];
    const int exponent = static_cast<int>(bits_of_double(terms[i]) >> 52 & 0x7ff) - 1023;
    if (terms[i] != 0 && exponent > largest) largest = exponent;
  }
  if (!(plain - plain == 0)) return static_cast<float>(plain);  // infinite, or not a number
  double sum = 0;
  for (int i = 0; i < count; i++) sum += cut(terms[i], largest - 24);
  const int exponent = static_cast<int>(bits_of_double(sum) >> 52 & 0x7ff) - 1023 - 23;
  return static_cast<float>(cut(sum, exponent < -149 ? -149 : exponent));
}

struct MmaLaneTf32 {
  float* sum;
  const unsigned *a, *b;
  bool fresh;
};

// Fragments as the PTX ISA has them for m16n8k4 and m16n8k8 with .tf32.
template <int Depth>
UNCHECKED void mma_tf32_together(void* const* lanes) {
  for (int lane = 0; lane < 32; lane++)
    for (int half = 0; half < 2; half++)
      for (int e = 0; e < 2; e++) {
        const int row = lane / 4, column = lane % 4 * 2 + e;
        const MmaLaneTf32& mine = *static_cast<MmaLaneTf32*>(lanes[lane]);
        double terms[Depth + 1];
        for (int k = 0; k < Depth; k++)
          terms[k] = from_tf32(static_cast<MmaLaneTf32*>(lanes[row * 4 + k % 4])->a[k / 4 * 2 + half]) *
                     from_tf32(static_cast<MmaLaneTf32*>(lanes[column * 4 + k % 4])->b[k / 4]);
        terms[Depth] = mine.fresh ? 0 : mine.sum[half * 2 + e];
        mine.sum[half * 2 + e] = sum_of_tensor_core(terms, Depth + 1);
      }
}

template <int Depth>
inline void mma(float (&sum)[4], const unsigned* a, const unsigned* b, bool fresh, int line = __builtin_LINE()) {
  static_assert(Depth == 4 || Depth == 8, "an mma for TF32");
  MmaLaneTf32 mine{sum, a, b, fresh};
  emulation_collective(&mine, mma_tf32_together<Depth>, line);
}

#undef UNCHECKED
