// Comparison of outputs with what is expected, by words of type WORD and EXPECTED.
#define FIRST ((long long)blockIdx.x * blockDim.x + threadIdx.x)
#define STEP ((long long)gridDim.x * blockDim.x)

struct half { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
template <typename T> __device__ double value(T word) { return (double)word; }
template <> __device__ double value(half word) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(word.bits));
  return wide;
}
template <> __device__ double value(bfloat16 word) { return __uint_as_float((unsigned int)word.bits << 16); }

// A value is the sum of TERMS words. With a bound for every word, a negative one marks what must be as before.
// results: the largest share of the bound, as bits; the number of wrong values; where the first one is; the number of
// bytes that were changed though they must not be
extern "C" __global__ void compare(const WORD* output, const WORD* before, const EXPECTED* expected,
                                   const double* bound, long long count, double tolerance, double absolute,
                                   const double* squares, unsigned long long* results) {
  __shared__ unsigned long long found[4];
  if (threadIdx.x < 4) found[threadIdx.x] = threadIdx.x == 2 ? ~0ULL : 0;
  __syncthreads();
  const double infinity = __longlong_as_double(0x7ff0000000000000LL);
  const double least = bound ? 0 : absolute + tolerance * sqrt(*squares / (double)count);
  double worst = 0;
  unsigned long long wrong = 0, first = ~0ULL, outside = 0;
  for (long long i = FIRST; i < count; i += STEP) {
    const double allowed = bound ? bound[TERMS * i] : tolerance * fabs(value(expected[TERMS * i])) + least;
    bool same = true;
    double difference = 0;
    for (long long word = TERMS * i; word < TERMS * i + TERMS; word++) {
      const double now = value(output[word]);
      if (allowed < 0) {  // NaN included, whatever is written here differs from the word before
        if (now != value(before[word])) outside += sizeof(WORD);
        continue;
      }
      const double right = value(expected[word]);
      same = same && (now == right || (now != now && right != right));
      difference += now - right;
    }
    if (allowed < 0) continue;
    const double error = fabs(difference);
    double share = same || error == 0 ? 0 : error / allowed;
    if (!(share < infinity)) share = infinity;
    if (share > 1) {
      ++wrong;
      if (i < first) first = i;
    }
    if (share > worst) worst = share;
  }
  if (worst > 0) atomicMax(&found[0], (unsigned long long)__double_as_longlong(worst));  // ordered as their bits
  if (wrong) {
    atomicAdd(&found[1], wrong);
    atomicMin(&found[2], first);
  }
  if (outside) atomicAdd(&found[3], outside);
  __syncthreads();
  if (threadIdx.x > 0) return;
  if (found[0]) atomicMax(&results[0], found[0]);
  if (found[1]) {
    atomicAdd(&results[1], found[1]);
    atomicMin(&results[2], found[2]);
  }
  if (found[3]) atomicAdd(&results[3], found[3]);
}

// The sum of the squares of all finite words.
extern "C" __global__ void square(const WORD* words, long long count, double* squares) {
  double sum = 0;
  for (long long i = FIRST; i < count; i += STEP) {
    const double word = value(words[i]);
    if (fabs(word) < 1e300) sum += word * word;
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(squares, sum);
}
