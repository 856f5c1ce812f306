// GEMM at the accuracy of FP32 by TF32 tensor cores (compute capability 8.0 and later: mma.sync, cp.async).
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// A block computes a BLK_M x BLK_N tile of C, BLK_K steps of k at a time, each of its warps a part of WARP_M x WARP_N:
//
//     global --cp.async--> shared --fragments--> registers --split, mma.sync--> sums --FADD--> totals --store--> global
//
// An operand lies in shared memory as in global memory, whatever its op: with k as the slow index, or as the fast one.
// Elements are split when they are in registers, x = high + low, where TF32 has 11 bits of either (Ootomo and Yokota 2022):
//
//     a * b = high_a * high_b + (high_a * low_b + low_a * high_b)        up to 2^-21
//
// `high` is rounded: were it cut, all low parts would have the sign of x, and what is left out would add up. Tensor cores
// truncate where they accumulate, so their sums are added to totals in FP32 every PROMOTE_K steps of k.
//
// An element of C is computed again, from the operands and in FP32, where that is not what FP32 would have given: where it
// is not finite (infinity * 0 of a low part is NaN), where it is small and operands have elements so small that their low
// parts vanish, and where sums have less than LEAST_K products, whose few roundings in FP32 are less than what is left out.
//
// Tiles inside the matrices run in a loop whose copies have neither tests nor branches. A second, rolled loop takes the
// other tiles, with zeros for what lies outside, and operands that are not aligned for wide copies.
//
// With SPLIT_K > 1 as many blocks share a tile of C, each with its part of k. Their totals meet in the workspace, where the
// block that comes last adds them up, in the order of the parts, so that the bits are the same in every run.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or a fact of the problem
// (PRECISION 0 or 2 for S and C; TRANS_A, TRANS_B; CONJ_A, CONJ_B; BATCHED, of many products: one for each blockIdx.z).

typedef float Real;
#if PRECISION == 0
typedef Real T;
constexpr int PARTS = 1;
#else
struct alignas(8) T { Real x, y; };
constexpr int PARTS = 2;
#endif

constexpr int WARP = 32;
constexpr int WARPS_M = BLK_M / WARP_M;
constexpr int THREADS = WARP * WARPS_M * (BLK_N / WARP_N);
constexpr int MI = WARP_M / 16;        // mma of a warp along m, two halves of 8 rows each ...
constexpr int NJ = WARP_N / 8;         // ... and along n

constexpr bool A_ALONG_K = TRANS_A == 1;  // k is the fast index
constexpr bool B_ALONG_K = TRANS_B == 0;
// A vector along k gives a lane the neighbours k, k + 1: they belong to two products, whose k are then 0 2 4 6 and 1 3 5 7.
constexpr bool PAIRED = (VEC_A == 2 && A_ALONG_K) || (VEC_B == 2 && B_ALONG_K);
constexpr int STEP_K = 8;                // k of the fragments that are loaded at once
constexpr int QUADS = STEP_K / 4;        // an mma of MMA_K is MMA_K / 4 products of depth 4
constexpr int STEPS = BLK_K / STEP_K;
constexpr int GROUP = PROMOTE_K / STEP_K;  // steps until sums are added to the totals
static_assert(BLK_K % PROMOTE_K == 0 && PROMOTE_K % STEP_K == 0, "a tile's sums are added to the totals at its end");

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T at[COUNT]; };

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

template <int BYTES>
__device__ __forceinline__ void cp_async(void* shared, const void* global) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (BYTES == 16)  // past L1; other widths exist only through it
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(BYTES) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(BYTES) : "memory");
}

// Copies the first `valid` of BYTES bytes, and fills the others with zeros.
template <int BYTES>
__device__ __forceinline__ void cp_async_part(void* shared, const void* global, int valid) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(global), "n"(BYTES), "r"(valid) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

__device__ __forceinline__ unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned warp_ballot(bool value) { return __ballot_sync(0xffffffff, value); }

// Loads of what other blocks have written: past L1.
__device__ __forceinline__ float load_shared_by_blocks(const float* from) { return __ldcg(from); }
__device__ __forceinline__ unsigned load_shared_by_blocks(const unsigned* from) { return __ldcg(from); }

// No access to memory moves across.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }

// sum = a b, or += a b, for 16 rows, 8 columns and a depth of 4 or 8. Lane 4 g + t has of a the rows g and g + 8 at
// k = t + 4 q, of b the column g at the same k, of the sum the rows g and g + 8 of the columns 2 t and 2 t + 1. Operands
// are TF32: their 13 low bits are ignored.
template <int DEPTH>
__device__ __forceinline__ void mma(float (&sum)[4], const unsigned* a, const unsigned* b, bool fresh) {
  const float c[4] = {fresh ? 0.0f : sum[0], fresh ? 0.0f : sum[1], fresh ? 0.0f : sum[2], fresh ? 0.0f : sum[3]};
  if constexpr (DEPTH == 4)
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
                 : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

#endif

// ---- Copies from global to shared memory, one operand each.

// Bits of the smallest modulus but zero, twice and less one: those of zero are then the largest. Below TINY, 2^-100, low
// parts may be denormal numbers of TF32, or none.
constexpr unsigned TINY = 27u << 24;
__device__ __forceinline__ void survey(unsigned& least, const T& value) {
#if PRECISION == 0
  least = min(least, 2 * bits_of(value) - 1);
#else
  least = min(least, min(2 * bits_of(value.x) - 1, 2 * bits_of(value.y) - 1));
#endif
}

constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

// One operand of the product. SPAN is the tile's extent along the index that is contiguous in memory, LINES its extent along
// the other.
template <bool ALONG_K, int BLK, int PAD>
struct Operand {
  static constexpr int SPAN = ALONG_K ? BLK_K : BLK;
  static constexpr int LINES = ALONG_K ? BLK : BLK_K;
  static constexpr int ROW = SPAN + PAD;
  static constexpr int STAGE = LINES * ROW;
  static constexpr int BYTES = COPY * sizeof(T);
  static constexpr int ACROSS = common_divisor(SPAN / COPY, THREADS);  // threads along a line ...
  static constexpr int DOWN = THREADS / ACROSS;                        // ... and lines at a time
  static constexpr int PER_LINE = SPAN / COPY / ACROSS;
  static constexpr int PER_THREAD = (LINES + DOWN - 1) / DOWN;

  const T* next;  // this thread's first element of the tile to fetch
  int inside;     // rows of op(A), or columns of op(B), of the tile that lie in the matrix

  static __device__ __forceinline__ bool aligned(const T* matrix, long long ld) {
    return ld % COPY == 0 && reinterpret_cast<unsigned long long>(matrix) % BYTES == 0;
  }

  // Go to the tile that begins at row or column `start` of `extent`; the first to fetch is number `first` along k.
  __device__ __forceinline__ void begin(const T* matrix, long long ld, long long start, long long extent, int first) {
    inside = static_cast<int>(min(extent - start, static_cast<long long>(BLK)));
    const long long k = static_cast<long long>(first) * BLK_K;
    next = matrix + (ALONG_K ? k + start * ld : start + k * ld) + threadIdx.x % ACROSS * COPY + threadIdx.x / ACROSS * ld;
  }

  // Start the copy of the next tile, which lies inside the matrix, to a stage.
  __device__ __forceinline__ void fetch(long long ld, T* stage) {
    T* const to = stage + threadIdx.x % ACROSS * COPY + threadIdx.x / ACROSS * ROW;
    const T* from = next;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
#pragma unroll
      for (int j = 0; j < PER_LINE; j++)
        if (LINES % DOWN == 0 || i * DOWN + static_cast<int>(threadIdx.x) / ACROSS < LINES)
          cp_async<BYTES>(to + i * DOWN * ROW + j * ACROSS * COPY, from + j * ACROSS * COPY);
      from += DOWN * ld;
    }
    next += BLK_K * (ALONG_K ? 1 : ld);
  }

  // Look at the elements of a stage that this thread has copied there.
  static __device__ __forceinline__ void look(unsigned& least, const T* stage) {
    const T* const at = stage + threadIdx.x % ACROSS * COPY + threadIdx.x / ACROSS * ROW;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
      for (int j = 0; j < PER_LINE; j++)
        if (LINES % DOWN == 0 || i * DOWN + static_cast<int>(threadIdx.x) / ACROSS < LINES) {
          const auto copied = *reinterpret_cast<const Vector<COPY>*>(at + i * DOWN * ROW + j * ACROSS * COPY);
#pragma unroll
          for (int e = 0; e < COPY; e++) survey(least, copied.at[e]);
        }
  }

  // Start the copy of any tile, of which `depth` steps of k lie in the matrix, COUNT elements at a time. Rolled: it must cost
  // neither registers nor time to compile.
  template <int COUNT>
  __device__ __forceinline__ void fetch_any(long long ld, int depth, T* stage) {
    const T* const tile = next - (threadIdx.x % ACROSS * COPY + threadIdx.x / ACROSS * ld);
    const int span = ALONG_K ? depth : inside, lines = ALONG_K ? inside : depth;
#pragma unroll 1
    for (int at = threadIdx.x; at < SPAN / COUNT * LINES; at += THREADS) {
      const int s = at % (SPAN / COUNT) * COUNT, l = at / (SPAN / COUNT);
      const int valid = l < lines ? max(0, min(COUNT, span - s)) : 0;
      cp_async_part<COUNT * sizeof(T)>(stage + s + l * ROW, tile + s + l * ld, valid * static_cast<int>(sizeof(T)));
    }
    next += BLK_K * (ALONG_K ? 1 : ld);
  }

  // Look at this thread's share of a stage, whoever copied it.
  static __device__ __forceinline__ void look_any(unsigned& least, const T* stage) {
#pragma unroll 1
    for (int at = threadIdx.x; at < SPAN * LINES; at += THREADS) survey(least, stage[at % SPAN + at / SPAN * ROW]);
  }

  // Bits of the largest finite modulus among this thread's share of the block's rows of op(A), or columns of op(B).
  __device__ __forceinline__ unsigned largest(const T* matrix, long long ld, long long start, long long depth) const {
    const T* const panel = matrix + (ALONG_K ? start * ld : start);
    const long long span = ALONG_K ? depth : inside, count = depth * inside;
    unsigned most = 0;
    auto add = [&](Real part) {
      const unsigned bits = bits_of(part) & 0x7fffffff;
      if (bits < 0x7f800000) most = max(most, bits);
    };
#pragma unroll 1
    for (long long at = threadIdx.x; at < count; at += THREADS) {
      const T value = panel[at % span + at / span * ld];
#if PRECISION == 0
      add(value);
#else
      add(value.x);
      add(value.y);
#endif
    }
    return most;
  }
};

typedef Operand<A_ALONG_K, BLK_M, PAD_A> OperandA;
typedef Operand<B_ALONG_K, BLK_N, PAD_B> OperandB;

// ---- Fragments: what a lane multiplies. Lane 4 g + t.

// Rows of op(A) that a lane has: g and g + 8 of every 16 or, loaded as vectors, 2 g and 2 g + 1. Columns of op(B) alike.
constexpr bool A_NEIGHBOURS = VEC_A == 2 && !A_ALONG_K;
constexpr bool B_NEIGHBOURS = VEC_B == 2 && !B_ALONG_K;

struct FragmentA { Real at[PARTS][MI][QUADS][2]; };
struct FragmentB { Real at[PARTS][NJ][QUADS]; };

// Place of a row or column `index` at depth k in a stage.
template <bool ALONG_K, int ROW>
__device__ __forceinline__ constexpr int place(int index, int k) { return ALONG_K ? index * ROW + k : k * ROW + index; }

// k of product q that lane t = 0 has; the others are 1, or 2 when paired, from lane to lane.
__device__ __forceinline__ constexpr int k_of(int q) { return PAIRED ? q : q * 4; }

__device__ __forceinline__ void take(Real& x, Real& y, const T& value) {
#if PRECISION == 0
  x = value;
#else
  x = value.x;
  y = value.y;
#endif
}

__device__ __forceinline__ void load_fragment(FragmentA& a, const T* mine) {
  constexpr int ROW = OperandA::ROW;
#pragma unroll
  for (int i = 0; i < MI; i++)
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if constexpr (A_NEIGHBOURS) {
          if (h == 0) {
            const auto both = *reinterpret_cast<const Vector<VEC_A>*>(mine + place<false, ROW>(i * 16, k_of(q)));
            take(a.at[0][i][q][0], a.at[PARTS - 1][i][q][0], both.at[0]);
            take(a.at[0][i][q][1], a.at[PARTS - 1][i][q][1], both.at[VEC_A - 1]);
          }
        } else if constexpr (VEC_A == 2) {
          if (q % 2 == 0) {
            const auto both = *reinterpret_cast<const Vector<VEC_A>*>(mine + place<true, ROW>(i * 16 + h * 8, k_of(q)));
            take(a.at[0][i][q][h], a.at[PARTS - 1][i][q][h], both.at[0]);
            take(a.at[0][i][q + 1][h], a.at[PARTS - 1][i][q + 1][h], both.at[VEC_A - 1]);
          }
        } else {
          take(a.at[0][i][q][h], a.at[PARTS - 1][i][q][h], mine[place<A_ALONG_K, ROW>(i * 16 + h * 8, k_of(q))]);
        }
      }
}

__device__ __forceinline__ void load_fragment(FragmentB& b, const T* mine) {
  constexpr int ROW = OperandB::ROW;
#pragma unroll
  for (int j = 0; j < NJ; j++)
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
      if constexpr (B_NEIGHBOURS) {
        if (j % 2 == 0) {
          const auto both = *reinterpret_cast<const Vector<VEC_B>*>(mine + place<false, ROW>(j * 8, k_of(q)));
          take(b.at[0][j][q], b.at[PARTS - 1][j][q], both.at[0]);
          take(b.at[0][j + 1][q], b.at[PARTS - 1][j + 1][q], both.at[VEC_B - 1]);
        }
      } else if constexpr (VEC_B == 2) {
        if (q % 2 == 0) {
          const auto both = *reinterpret_cast<const Vector<VEC_B>*>(mine + place<true, ROW>(j * 8, k_of(q)));
          take(b.at[0][j][q], b.at[PARTS - 1][j][q], both.at[0]);
          take(b.at[0][j][q + 1], b.at[PARTS - 1][j][q + 1], both.at[VEC_B - 1]);
        }
      } else {
        take(b.at[0][j][q], b.at[PARTS - 1][j][q], mine[place<B_ALONG_K, ROW>(j * 8, k_of(q))]);
      }
    }
}

// ---- Products.

// A number in two of TF32; of the low one tensor cores see 11 bits. Where `high` is not finite, neither is `low`, nor any sum
// of products with both.
__device__ __forceinline__ void split(Real x, unsigned& high, unsigned& low) {
  high = (bits_of(x) + 0x1000) & 0xffffe000;
  low = bits_of(x - float_of(high));
}

// 16 rows of A and 8 columns of B, split: [high, low]. Of B there is also the negative imaginary part.
struct SplitA { unsigned at[2][PARTS][QUADS][2]; };
struct SplitB { unsigned at[2][PARTS == 1 ? 1 : 3][QUADS]; };

__device__ __forceinline__ void split_rows(SplitA& to, const FragmentA& a, int i) {
#pragma unroll
  for (int p = 0; p < PARTS; p++)
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
      for (int h = 0; h < 2; h++) split(a.at[p][i][q][h], to.at[0][p][q][h], to.at[1][p][q][h]);
}

__device__ __forceinline__ void split_columns(SplitB& to, const FragmentB& b, int j) {
#pragma unroll
  for (int q = 0; q < QUADS; q++) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) split(b.at[p][j][q], to.at[0][p][q], to.at[1][p][q]);
#if PRECISION == 2
#pragma unroll
    for (int low = 0; low < 2; low++) to.at[low][2][q] = to.at[low][1][q] ^ 0x80000000;
#endif
  }
}

// Which part of B is multiplied by part `p` of A for part `c` of the sum: 0 real, 1 imaginary, 2 negative imaginary. The
// imaginary part of a sum is accumulated with the sign of op(A)'s: it is changed once, at the end.
__device__ __forceinline__ constexpr int part_of_b(int p, int c) {
  return p == c ? 0 : (p == 0) == (CONJ_A == CONJ_B) ? 1 : 2;
}

typedef Real Accumulator[PARTS][MI][NJ][4];  // of a lane: rows g and g + 8 (or 2 g and 2 g + 1), two columns of each

// sum += a b, or = a b if it is the `first` step of a group; after the `last` one the sum is added to the total.
__device__ __forceinline__ void multiply(Accumulator& total, Accumulator& sum, const FragmentA& a, const FragmentB& b, bool first,
                                         bool last) {
  constexpr int OUTER = ORDER == 0 ? MI : NJ, INNER = ORDER == 0 ? NJ : MI;
  SplitA rows[ORDER == 0 ? 1 : MI];
  SplitB columns[ORDER == 0 ? NJ : 1];
#pragma unroll
  for (int inner = 0; inner < INNER; inner++) {
    if constexpr (ORDER == 0)
      split_columns(columns[inner], b, inner);
    else
      split_rows(rows[inner], a, inner);
  }
  int sweep = 0;
#pragma unroll
  for (int outer = 0; outer < OUTER; outer++) {
    if constexpr (ORDER == 0)
      split_rows(rows[0], a, outer);
    else
      split_columns(columns[0], b, outer);
#pragma unroll
    for (int product = 0; product < 3; product++)  // the small ones first: they lose less while the sum is small
#pragma unroll
      for (int q = 0; q < QUADS; q += MMA_K / 4)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int c = 0; c < PARTS; c++) {
#pragma unroll
            for (int inner = 0; inner < INNER; inner++) {
              // Serpentine: at the turn an operand stays in the register reuse cache.
              const int turned = sweep % 2 ? INNER - 1 - inner : inner;
              const int i = ORDER == 0 ? outer : turned, j = ORDER == 0 ? turned : outer;
              mma<MMA_K>(sum[c][i][j], &rows[ORDER == 0 ? 0 : i].at[product == 0][p][q][0],
                         &columns[ORDER == 0 ? j : 0].at[product == 1][part_of_b(p, c)][q],
                         first && product == 0 && q == 0 && p == 0);
            }
            sweep++;
          }
    if (last) {
#pragma unroll
      for (int c = 0; c < PARTS; c++)
#pragma unroll
        for (int inner = 0; inner < INNER; inner++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int i = ORDER == 0 ? outer : inner, j = ORDER == 0 ? inner : outer;
            total[c][i][j][e] += sum[c][i][j][e];
          }
    }
  }
}

// ---- The result.

__device__ __forceinline__ bool is_zero(T value) {
#if PRECISION == 0
  return value == Real(0);
#else
  return value.x == Real(0) && value.y == Real(0);
#endif
}

__device__ __forceinline__ T scaled(T alpha, T value) {
#if PRECISION == 0
  return alpha * value;
#else
  return T{alpha.x * value.x - alpha.y * value.y, alpha.x * value.y + alpha.y * value.x};
#endif
}

__device__ __forceinline__ T plus_scaled(T value, T beta, T old) {
#if PRECISION == 0
  return value + beta * old;
#else
  return T{value.x + (beta.x * old.x - beta.y * old.y), value.y + (beta.x * old.y + beta.y * old.x)};
#endif
}

constexpr int ELEMENTS = MI * NJ * 4;  // of C, of a thread
constexpr int LEAST_K = 16;
constexpr int MANY = 8;     // lanes above which each computes its own element again
constexpr int AT_ONCE = 4;  // steps of k whose loads are in flight then

// Where the four elements of a lane are in 16 rows and in 8 columns (or in every other of 16): number 2 half + e.
__device__ __forceinline__ int row_of(int element, int g) { return A_NEIGHBOURS ? 2 * g + element / 2 : g + 8 * (element / 2); }
__device__ __forceinline__ int column_of(int element, int t) {
  return B_NEIGHBOURS ? 4 * t + 2 * (element % 2) : 2 * t + element % 2;
}

struct Product {
  long long m, n, k;
  T alpha;
  const T* A;
  long long lda;
  const T* B;
  long long ldb;
  T beta;
  T* C;
  long long ldc;

  // The part of an element's sum that begins at `start`, every `stride` steps of k, in FP32.
  __device__ __forceinline__ T dot(long long row, long long column, int start, int stride) const {
    const T* a = A + (A_ALONG_K ? start + row * lda : row + start * lda);
    const T* b = B + (B_ALONG_K ? start + column * ldb : column + start * ldb);
    const long long step_a = A_ALONG_K ? stride : stride * lda, step_b = B_ALONG_K ? stride : stride * ldb;
    T sum{};
#pragma unroll 1
    for (long long step = start; step < k; step += AT_ONCE * stride) {
      T x[AT_ONCE], y[AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        const bool there = step + u * stride < k;
        x[u] = there ? a[u * step_a] : T{};
        y[u] = there ? b[u * step_b] : T{};
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
#if PRECISION == 0
        sum += x[u] * y[u];
#else
        const Real ai = CONJ_A ? -x[u].y : x[u].y, bi = CONJ_B ? -y[u].y : y[u].y;
        sum.x += x[u].x * y[u].x;
        sum.x -= ai * bi;
        sum.y += x[u].x * bi;
        sum.y += ai * y[u].x;
#endif
      }
      a += AT_ONCE * step_a;
      b += AT_ONCE * step_b;
    }
    return sum;
  }

  __device__ __forceinline__ void store(T* to, T value, T old) const {
    value = scaled(alpha, value);
    *to = is_zero(beta) ? value : plus_scaled(value, beta, old);
  }

  // Computes in FP32 what is `wrong`, a bit for each of a lane's four elements: each lane its own, or all lanes one after
  // the other.
  __device__ __forceinline__ void correct(unsigned wrong, long long row0, long long column0) const {
    const int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int element = 0; element < 4; element++) {
      const bool mine = wrong >> element & 1;
      const unsigned lanes = warp_ballot(mine);
      const bool each = __popc(lanes) > MANY;
      unsigned left = each ? 1 : lanes;
#pragma unroll 1
      for (int other = 0; left != 0; other++, left >>= 1) {
        if ((left & 1) == 0) continue;
        const int whose = each ? lane : other;
        const long long row = row0 + row_of(element, whose / 4), column = column0 + column_of(element, whose % 4);
        T value{};
        if (!each || mine) value = dot(row, column, each ? 0 : lane, each ? 1 : WARP);
#pragma unroll 1
        for (int distance = each ? 0 : WARP / 2; distance > 0; distance /= 2) {
#if PRECISION == 0
          value += __shfl_xor_sync(0xffffffff, value, distance);
#else
          value.x += __shfl_xor_sync(0xffffffff, value.x, distance);
          value.y += __shfl_xor_sync(0xffffffff, value.y, distance);
#endif
        }
        T* const to = C + row + column * ldc;
        if (each ? mine : lane == other) store(to, value, is_zero(beta) ? T{} : *to);
      }
    }
  }
};

// A warp's tile, which begins at row0 and column0, by loops that stay loops: unrolled they take seconds to compile. Registers
// have no index, so totals move to those that are read. Elements whose modulus is below the threshold are computed again.
__device__ __forceinline__ void store_tile(const Accumulator& total, const Product& product, long long row0, long long column0,
                                           Real threshold) {
  const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
  const bool few = product.k > 0 && product.k < LEAST_K, adds = !is_zero(product.beta);
#pragma unroll 1
  for (int j = 0; j < NJ; j++) {
    Real mine[PARTS][MI][4];
#pragma unroll
    for (int other = 0; other < NJ; other++)
      if (other == j) {
#pragma unroll
        for (int n = 0; n < PARTS * MI * 4; n++) mine[n / (MI * 4)][n / 4 % MI][n % 4] = total[n / (MI * 4)][n / 4 % MI][other][n % 4];
      }
#pragma unroll 1
    for (int i = 0; i < MI; i++) {
      const long long row = row0 + i * 16, column = column0 + (B_NEIGHBOURS ? j / 2 * 16 + j % 2 : j * 8);
      T* to[4];
      T old[4];
      bool there[4];
#pragma unroll
      for (int element = 0; element < 4; element++) {
        const long long r = row + row_of(element, g), c = column + column_of(element, t);
        to[element] = product.C + r + c * product.ldc;
        there[element] = r < product.m && c < product.n;
        old[element] = adds && there[element] ? *to[element] : T{};
      }
      unsigned wrong = 0;
#pragma unroll
      for (int element = 0; element < 4; element++) {
        if (there[element]) {
          constexpr Real LARGEST = 0x1.fffffep127f;
#if PRECISION == 0
          const T value = mine[0][0][element];
          const Real size = fabsf(value);
          const bool right = size >= threshold && size <= LARGEST;
#else
          const T value{mine[0][0][element], CONJ_A ? -mine[1][0][element] : mine[1][0][element]};
          const Real x = fabsf(value.x), y = fabsf(value.y);
          const bool right = x >= threshold && y >= threshold && x <= LARGEST && y <= LARGEST;
#endif
          if (right && !few)
            product.store(to[element], value, old[element]);
          else
            wrong |= 1u << element;
        }
      }
      if (warp_ballot(wrong != 0) != 0) product.correct(wrong, row, column);
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int next = 1; next < MI; next++)
#pragma unroll
          for (int element = 0; element < 4; element++) mine[p][next - 1][element] = mine[p][next][element];
    }
  }
}

// ---- Parts of k, which meet in the workspace: counters of each tile, then the totals of each part.

struct Meeting { unsigned arrived, small; };  // blocks; whether one of them has found an element below TINY

// Leaves the totals of a part; in the block that comes last they are those of all parts, and `small` is that of all.
__device__ __forceinline__ bool meet(void* workspace, unsigned tiles, unsigned tile, unsigned part, Accumulator& total, bool& small,
                                     unsigned* slots) {
  Meeting* const meeting = static_cast<Meeting*>(workspace) + tile;
  const unsigned long long counters = (tiles * sizeof(Meeting) + 255) / 256 * 256;
  constexpr int SUMS = PARTS * ELEMENTS;
  Real* const first = reinterpret_cast<Real*>(static_cast<char*>(workspace) + counters) +
                      static_cast<unsigned long long>(tile) * SPLIT_K * SUMS * THREADS + threadIdx.x;
  Real* const mine = first + part * SUMS * THREADS;
#pragma unroll
  for (int e = 0; e < SUMS; e++) mine[e * THREADS] = (&total[0][0][0][0])[e];
  if (small) atomicMax(&meeting->small, 1u);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) slots[0] = atomicAdd(&meeting->arrived, 1u);
  __syncthreads();
  if (slots[0] != SPLIT_K - 1) return false;
  __threadfence();
#pragma unroll
  for (int e = 0; e < SUMS; e++) (&total[0][0][0][0])[e] = Real(0);
#pragma unroll 1
  for (int other = 0; other < SPLIT_K; other++) {
    const Real* const part_of_other = first + other * SUMS * THREADS;
#pragma unroll
    for (int e = 0; e < SUMS; e++) {
      (&total[0][0][0][0])[e] += load_shared_by_blocks(&part_of_other[e * THREADS]);
      if (e % 8 == 7) keep_order();  // or all loads would be in flight, each in registers of its own
    }
  }
  small = load_shared_by_blocks(&meeting->small) != 0;
  __syncthreads();  // all have read the meeting
  if (threadIdx.x == 0) *meeting = Meeting{};  // as the next launch expects it
  return true;
}

// ---- The kernel.

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B, long long ldb, T beta, T* C,
     long long ldc,
#ifdef BATCHED
     long long stride_a, long long stride_b, long long stride_c, long long,
#endif
     int raster_group, void* workspace) {
#ifdef BATCHED
  A += blockIdx.z * stride_a;
  B += blockIdx.z * stride_b;
  C += blockIdx.z * stride_c;
#endif
  extern __shared__ __align__(16) unsigned char shared_storage[];
  T* const shared_a = reinterpret_cast<T*>(shared_storage);
  T* const shared_b = shared_a + STAGES * OperandA::STAGE;

  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int g = lane / 4, t = lane % 4;
  const int warp_m = warp % WARPS_M * WARP_M, warp_n = warp / WARPS_M * WARP_N;
  const int lane_k = PAIRED ? 2 * t : t;
  const T* const from_a = shared_a + place<A_ALONG_K, OperandA::ROW>(warp_m + (A_NEIGHBOURS ? 2 * g : g), lane_k);
  const T* const from_b = shared_b + place<B_ALONG_K, OperandB::ROW>(warp_n + (B_NEIGHBOURS ? 2 * g : g), lane_k);

  const long long depth = is_zero(alpha) ? 0 : k;
  const int tiles_m = static_cast<int>((m + BLK_M - 1) / BLK_M), tiles_n = static_cast<int>((n + BLK_N - 1) / BLK_N);
  const int all_k = static_cast<int>((depth + BLK_K - 1) / BLK_K), share = (all_k + SPLIT_K - 1) / SPLIT_K;
  const unsigned number = blockIdx.x / SPLIT_K, part = blockIdx.x % SPLIT_K;
  const int tiles_k = min(all_k, static_cast<int>(part + 1) * share);  // where this part ends
  const int rest = static_cast<int>(depth - static_cast<long long>(all_k - 1) * BLK_K);  // k of the last tile
  const bool aligned = COPY == 1 || (OperandA::aligned(A, lda) && OperandB::aligned(B, ldb));

  // Tiles run down groups of raster_group tile rows, column by column, so that a wave of blocks covers a compact patch of C.
  const long long group_tiles = static_cast<long long>(raster_group) * tiles_n;
  const int group = static_cast<int>(number / group_tiles), within = static_cast<int>(number % group_tiles);
  const int height = min(raster_group, tiles_m - group * raster_group);
  const long long block_m = static_cast<long long>(group * raster_group + within % height) * BLK_M;
  const long long block_n = static_cast<long long>(within / height) * BLK_N;

  OperandA a;
  OperandB b;
  int tile = min(tiles_k, static_cast<int>(part) * share), fetched = tile, writing = 0, reading = 0;
  a.begin(A, lda, block_m, m, tile);
  b.begin(B, ldb, block_n, n, tile);
  auto turn = [](int& stage) { stage = stage == STAGES - 1 ? 0 : stage + 1; };

  Accumulator total, sum;
#pragma unroll
  for (int e = 0; e < PARTS * ELEMENTS; e++) (&total[0][0][0][0])[e] = (&sum[0][0][0][0])[e] = Real(0);

  FragmentA fa[FRAGMENTS];
  FragmentB fb[FRAGMENTS];
  auto load = [&](int buffer, int step) {
    load_fragment(fa[buffer], from_a + reading * OperandA::STAGE + place<A_ALONG_K, OperandA::ROW>(0, step * STEP_K));
    load_fragment(fb[buffer], from_b + reading * OperandB::STAGE + place<B_ALONG_K, OperandB::ROW>(0, step * STEP_K));
  };
  unsigned least = 0xffffffff;
  auto look = [&] {
    OperandA::look(least, shared_a + reading * OperandA::STAGE);
    OperandB::look(least, shared_b + reading * OperandB::STAGE);
  };
  auto land = [] {
    cp_async_wait<STAGES - 2>();
    __syncthreads();  // the tile is complete for all, and all have left the stage to write
  };

  // Tiles that lie inside the matrices.
  const bool inside = aligned && a.inside == BLK_M && b.inside == BLK_N;
  const int end = inside ? min(tiles_k, rest == BLK_K ? all_k : all_k - 1) : 0;
  auto fetch = [&] {
    if (fetched < end) {
      a.fetch(lda, shared_a + writing * OperandA::STAGE);
      b.fetch(ldb, shared_b + writing * OperandB::STAGE);
    }
    cp_async_commit();
    fetched++;
    turn(writing);
  };
  if (tile < end) {
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) fetch();
#if FRAGMENTS == 2  // the fragments of a step are loaded during the step before, also across tiles
    land();
    load(0, 0);
#endif
#pragma unroll 1
    for (; tile < end; tile++) {
#if FRAGMENTS == 1
      land();
      fetch();
      look();
#endif
#pragma unroll
      for (int step = 0; step < STEPS; step++) {
        const bool first = step % GROUP == 0, last = step % GROUP == GROUP - 1;
#if FRAGMENTS == 1
        load(0, step);
        multiply(total, sum, fa[0], fb[0], first, last);
#else
        if (step == STEPS - 1) {
          land();
          turn(reading);
        }
        if (step < STEPS - 1 || tile + 1 < end) load((step + 1) % 2, (step + 1) % STEPS);
        if (step == 0) {
          fetch();
          look();
        }
        multiply(total, sum, fa[step % 2], fb[step % 2], first, last);
#endif
      }
#if FRAGMENTS == 1
      turn(reading);
#endif
    }
    __syncthreads();  // all have left the stages
  }

  // The others.
  if (tile < tiles_k) {
    fetched = tile;
    writing = reading = 0;
    auto fetch_any = [&] {
      if (fetched < tiles_k) {
        const int steps = fetched == all_k - 1 ? rest : BLK_K;
        T* const to_a = shared_a + writing * OperandA::STAGE;
        T* const to_b = shared_b + writing * OperandB::STAGE;
        if (aligned) {
          a.template fetch_any<COPY>(lda, steps, to_a);
          b.template fetch_any<COPY>(ldb, steps, to_b);
        } else {
          a.template fetch_any<1>(lda, steps, to_a);
          b.template fetch_any<1>(ldb, steps, to_b);
        }
      }
      cp_async_commit();
      fetched++;
      turn(writing);
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) fetch_any();
#pragma unroll 1
    for (; tile < tiles_k; tile++) {
      land();
      fetch_any();
      OperandA::look_any(least, shared_a + reading * OperandA::STAGE);
      OperandB::look_any(least, shared_b + reading * OperandB::STAGE);
#pragma unroll 1
      for (int step = 0; step < STEPS; step++) {
        load(0, step);
        multiply(total, sum, fa[0], fb[0], true, true);
      }
      turn(reading);
    }
  }

  // Of elements below TINY up to 2^-125 is lost: in a sum k * 2^-124 times the largest element, for each of its products.
  Real threshold = 0;
  unsigned* const slots = reinterpret_cast<unsigned*>(shared_storage);
  __syncthreads();  // all have left the stages
  if (threadIdx.x == 0) slots[1] = slots[2] = 0;
  __syncthreads();
  if (least < TINY) atomicMax(&slots[1], 1u);
  __syncthreads();
  bool small = slots[1] != 0;
  if (SPLIT_K > 1 && !meet(workspace, static_cast<unsigned>(tiles_m * tiles_n), number, part, total, small, slots)) return;
  if (small) {  // rare
    atomicMax(&slots[2], max(a.largest(A, lda, block_m, depth), b.largest(B, ldb, block_n, depth)));
    __syncthreads();
    threshold = float_of(slots[2]) * 0x1p-100f * static_cast<Real>(depth) * PARTS;
  }
  const Product product{m, n, depth, alpha, A, lda, B, ldb, beta, C, ldc};
  store_tile(total, product, block_m + warp_m, block_n + warp_n, threshold);
}
