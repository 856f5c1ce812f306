// GEMM on the tensor cores for double precision.
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// A block computes a BLK_M x BLK_N tile of C, BLK_K steps of k at a time, each of its warps a part of WARP_M x WARP_N:
//
//     global --cp.async--> shared --fragments--> registers --mma.sync--> accumulators --store--> global
//
// An operand lies in shared memory as in global memory, whatever its op: with k as the slow index, or as the fast one. So
// copies are wide, and nothing is transposed: a lane of an mma takes single elements, which it finds in either layout. Tiles
// inside the matrices run in a loop whose copies have neither tests nor branches, so that the compiler spreads them between
// the mma: on an H200, whose power limits its clock here, a test for each copy costs 10 % of the speed. A second, rolled loop
// takes the end of k, with zeros for what lies outside, matrices smaller than a tile, and operands that are not aligned for
// wide copies. A tile that would stick out of C moves inwards: it computes again some of its neighbour's elements, and does not
// store them.
//
// With STREAM_K the blocks stay. Whole waves of tiles go one to a block; the steps of the tiles that are left are divided
// evenly among all blocks, and parts of a tile meet in the workspace. (Osama, Merrill, Cecka, Garland, Owens: "Stream-K:
// Work-centric parallel decomposition for dense matrix-matrix multiplication on the GPU", PPoPP 2023.)
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or a fact of the problem
// (PRECISION 1 or 3 for D and Z; TRANS_A, TRANS_B; CONJ_A, CONJ_B; BATCHED, of many products: one for each blockIdx.z).

typedef double Real;
#if PRECISION == 1
typedef Real T;
constexpr int PARTS = 1;
#else
struct alignas(16) T { Real x, y; };
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
constexpr int STEP_K = PAIRED && MMA_K < 8 ? 8 : MMA_K;  // k of the fragments that are loaded at once
constexpr int QUADS = STEP_K / 4;                        // an mma of MMA_K is MMA_K / 4 products of depth 4
constexpr int STEPS = BLK_K / STEP_K;

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

// c += a b for 16 rows or 8, 8 columns and a depth of 4, 8 or 16. Lane 4 g + t has of a the rows g and g + 8 at k = t + 4 q,
// of b the column g at the same k, of c the rows g and g + 8 of the columns 2 t and 2 t + 1.
template <int ROWS, int DEPTH>
__device__ __forceinline__ void mma(Real* c, const Real* a, const Real* b) {
  if constexpr (ROWS == 8)
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[0]), "+d"(c[1])
                 : "d"(a[0]), "d"(b[0]));
  else if constexpr (DEPTH == 4)
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(b[0]));
  else if constexpr (DEPTH == 8)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
          "d"(b[2]), "d"(b[3]));
}

// No access to memory moves across.
__device__ __forceinline__ void keep_order() { asm volatile("" ::: "memory"); }

// A flag that another block waits for: what was written before it is raised is seen once it is found raised.
__device__ __forceinline__ void raise(unsigned* flag, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ bool is_raised(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value != 0;
}

#endif

// ---- Copies from global to shared memory, one operand each.

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

  // Go to the tile that begins at row or column `start` of `extent`; the first to fetch is number `first` along k. Returns
  // whether it is aligned for wide copies.
  __device__ __forceinline__ bool begin(const T* matrix, long long ld, long long start, long long extent, int first) {
    inside = static_cast<int>(min(extent - start, static_cast<long long>(BLK)));
    const long long k = static_cast<long long>(first) * BLK_K;
    const T* const tile = matrix + (ALONG_K ? k + start * ld : start + k * ld);
    next = tile + threadIdx.x % ACROSS * COPY + threadIdx.x / ACROSS * ld;
    return COPY == 1 || (ld % COPY == 0 && reinterpret_cast<unsigned long long>(tile) % BYTES == 0);
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

  // The same for any tile, of which `depth` steps of k lie in the matrix, COUNT elements at a time. Rolled: it must cost
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
__device__ __forceinline__ constexpr int k_of(int q) { return PAIRED ? q / 2 * 8 + q % 2 : q * 4; }

__device__ __forceinline__ void take(Real& x, Real& y, const T& value) {
#if PRECISION == 1
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

typedef Real Accumulator[PARTS][MI][NJ][4];  // of a lane: rows g and g + 8 (or 2 g and 2 g + 1), two columns of each

// One real product of all fragments: part `c` of the sums += part `p` of A times b.
__device__ __forceinline__ void multiply_parts(Accumulator& sum, int c, const FragmentA& a, int p, const Real (&b)[NJ][QUADS]) {
#pragma unroll
  for (int q = 0; q < QUADS; q += MMA_K / 4)
#pragma unroll
    for (int outer = 0; outer < (ORDER == 0 ? MI : NJ); outer++)
#pragma unroll
      for (int inner = 0; inner < (ORDER == 0 ? NJ : MI); inner++) {
        // Serpentine: at the turn an operand stays in the register reuse cache.
        const int turned = outer % 2 ? (ORDER == 0 ? NJ : MI) - 1 - inner : inner;
        const int i = ORDER == 0 ? outer : turned, j = ORDER == 0 ? turned : outer;
        if constexpr (MMA_M == 8) {
          mma<8, 4>(&sum[c][i][j][0], &a.at[p][i][q][0], &b[j][q]);
          mma<8, 4>(&sum[c][i][j][2], &a.at[p][i][q][1], &b[j][q]);
        } else {
          mma<16, MMA_K>(sum[c][i][j], &a.at[p][i][q][0], &b[j][q]);
        }
      }
}

// The imaginary part of a complex sum is accumulated with the sign of op(A)'s: it is changed once, at the end.
__device__ __forceinline__ void multiply(Accumulator& sum, const FragmentA& a, const FragmentB& b) {
  multiply_parts(sum, 0, a, 0, b.at[0]);
#if PRECISION == 3
  Real negative[NJ][QUADS];
#pragma unroll
  for (int j = 0; j < NJ; j++)
#pragma unroll
    for (int q = 0; q < QUADS; q++) negative[j][q] = -b.at[1][j][q];
#if CONJ_A == CONJ_B  // the product of the imaginary parts is subtracted
  multiply_parts(sum, 1, a, 0, b.at[1]);
  multiply_parts(sum, 0, a, 1, negative);
#else
  multiply_parts(sum, 1, a, 0, negative);
  multiply_parts(sum, 0, a, 1, b.at[1]);
#endif
  multiply_parts(sum, 1, a, 1, b.at[0]);
#endif
}

// ---- The result.

__device__ __forceinline__ bool is_zero(T value) {
#if PRECISION == 1
  return value == Real(0);
#else
  return value.x == Real(0) && value.y == Real(0);
#endif
}

__device__ __forceinline__ T result(T alpha, const Accumulator& sum, int i, int j, int e) {
#if PRECISION == 1
  return alpha * sum[0][i][j][e];
#else
  const Real x = sum[0][i][j][e], y = CONJ_A ? -sum[1][i][j][e] : sum[1][i][j][e];
  return T{alpha.x * x - alpha.y * y, alpha.x * y + alpha.y * x};
#endif
}

__device__ __forceinline__ T plus_scaled(T value, T beta, T old) {
#if PRECISION == 1
  return value + beta * old;
#else
  return T{value.x + (beta.x * old.x - beta.y * old.y), value.y + (beta.x * old.y + beta.y * old.x)};
#endif
}

// Where a tile begins: inwards by what would stick out of C, if C has room for it.
__device__ __forceinline__ long long inwards(long long start, int block, long long extent) {
  return max(min(start, extent - block), 0ll);
}

// Its first rows or columns that belong to the tile before.
__device__ __forceinline__ int overlap(long long start, int block, long long extent) {
  return start + block == extent ? static_cast<int>((extent + block - 1) / block * block - extent) : 0;
}

// `tile` is the warp's first element of C, `rows` and `columns` what is left of C from there. The block stores what is at least
// -own_row and -own_column from there.
__device__ __forceinline__ void store_tile(const Accumulator& sum, T alpha, T beta, T* tile, long long ldc, long long rows,
                                           long long columns, int own_row, int own_column, int g, int t) {
  const bool reads = !is_zero(beta);
#pragma unroll
  for (int j = 0; j < NJ; j++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int column = B_NEIGHBOURS ? j / 2 * 16 + j % 2 + 4 * t + 2 * e : j * 8 + 2 * t + e;
      T* const line = tile + column * ldc;
#pragma unroll
      for (int i = 0; i < MI; i++) {
        const int row = i * 16 + (A_NEIGHBOURS ? 2 * g : g);
        constexpr int NEXT = A_NEIGHBOURS ? 1 : 8;
        if (row < rows && column < columns && ((row + own_row) | (column + own_column)) >= 0) {
          const T value = result(alpha, sum, i, j, e);
          line[row] = reads ? plus_scaled(value, beta, line[row]) : value;
        }
        if (row + NEXT < rows && column < columns && ((row + NEXT + own_row) | (column + own_column)) >= 0) {
          const T value = result(alpha, sum, i, j, 2 + e);
          line[row + NEXT] = reads ? plus_scaled(value, beta, line[row + NEXT]) : value;
        }
      }
    }
}

// ---- Stream-K: parts of a tile, which meet in the workspace: a flag and a tile of sums for each block of the grid.

constexpr int SUMS = PARTS * MI * NJ * 4;  // of a thread

__device__ __forceinline__ Real* part_of(void* workspace, unsigned block) {
  const unsigned long long flags = (gridDim.x * sizeof(unsigned) + 255) / 256 * 256;
  return reinterpret_cast<Real*>(static_cast<char*>(workspace) + flags) + static_cast<unsigned long long>(block) * SUMS * THREADS +
         threadIdx.x;
}

__device__ __forceinline__ void leave_part(void* workspace, const Accumulator& sum) {
  Real* const part = part_of(workspace, blockIdx.x);
#pragma unroll
  for (int e = 0; e < SUMS; e++) part[e * THREADS] = (&sum[0][0][0][0])[e];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) raise(static_cast<unsigned*>(workspace) + blockIdx.x, 1);
}

// Only blocks of smaller numbers are waited for: they started earlier, and leave their parts before all else.
__device__ __forceinline__ void add_part(void* workspace, Accumulator& sum, unsigned block) {
  unsigned* const flag = static_cast<unsigned*>(workspace) + block;
  if (threadIdx.x == 0)
    while (!is_raised(flag)) {
    }
  __syncthreads();
  const Real* const part = part_of(workspace, block);
#pragma unroll
  for (int e = 0; e < SUMS; e++) {
    (&sum[0][0][0][0])[e] += part[e * THREADS];
    if (e % 4 == 3) keep_order();  // or all loads would be in flight, each in registers of its own
  }
  __syncthreads();
  if (threadIdx.x == 0) raise(flag, 0);
}

// The work of a block: parts of tiles, one after the other. Steps of k are numbered through all tiles that are divided.
struct Work {
  int tiles, per_tile;  // steps of k of a tile
  int whole;            // the next tile that is not divided
  long long end;        // of the steps that are left to this block: the last ones come first
  int tile, first, last;  // the part: steps of a tile

  __device__ __forceinline__ Work(int tiles_, int per_tile_) : tiles(tiles_), per_tile(per_tile_) {
    whole = divided() + blockIdx.x;
    end = min((blockIdx.x + 1) * share(), static_cast<long long>(divided()) * per_tile);
  }

  // Tiles that are divided: the first ones, such that the others fill whole waves.
  __device__ __forceinline__ int divided() const {
    const int blocks = gridDim.x, waves = tiles / blocks;
    return !STREAM_K || waves * blocks == tiles || per_tile == 0 ? 0 : tiles - (waves > 1 ? waves - 1 : 0) * blocks;
  }

  // Steps of every block but the last.
  __device__ __forceinline__ long long share() const {
    constexpr long long LEAST = 4;  // that are worth a meeting
    return max((static_cast<long long>(divided()) * per_tile + gridDim.x - 1) / gridDim.x, LEAST);
  }

  __device__ __forceinline__ bool next() {
    const long long begin = STREAM_K ? blockIdx.x * share() : end;
    if (begin < end) {
      tile = static_cast<int>((end - 1) / per_tile);
      const long long start = static_cast<long long>(tile) * per_tile;
      last = static_cast<int>(end - start);
      first = static_cast<int>(max(begin - start, 0ll));
      end = start + first;
      return true;
    }
    tile = whole;
    whole += gridDim.x;
    first = 0;
    last = per_tile;
    return tile < tiles;
  }
};

// Parts of a tile meet as in a binary tree, each with earlier ones alone, so that the last waits for the logarithm of their
// number: of parts 0 to 7, part 5 adds part 4, and part 7 adds 6, 5 and 3, which hold the sums of 1, 2 and 4. Returns whether the
// tile is complete.
__device__ __forceinline__ bool meet(const Work& work, void* workspace, Accumulator& sum) {
  const bool is_last = work.last == work.per_tile;
  const int before = static_cast<int>((work.first + work.share() - 1) / work.share());  // parts of the tile
#pragma unroll 1
  for (int held = 1; held <= before && (before & held || is_last); held *= 2)
    if (before & held) add_part(workspace, sum, blockIdx.x - before + (before & -held) - 1);
  if (!is_last) leave_part(workspace, sum);
  return is_last;
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
  Work work(tiles_m * tiles_n, static_cast<int>((depth + BLK_K - 1) / BLK_K));
  const int rest = static_cast<int>(depth - static_cast<long long>(work.per_tile - 1) * BLK_K);  // k of a last tile
#pragma unroll 1
  while (work.next()) {
    // Tiles run down groups of raster_group tile rows, column by column, so that a wave of blocks covers a compact patch of C.
    const long long group_tiles = static_cast<long long>(raster_group) * tiles_n;
    const int group = static_cast<int>(work.tile / group_tiles), within = static_cast<int>(work.tile % group_tiles);
    const int height = min(raster_group, tiles_m - group * raster_group);
    const long long block_m = inwards(static_cast<long long>(group * raster_group + within % height) * BLK_M, BLK_M, m);
    const long long block_n = inwards(static_cast<long long>(within / height) * BLK_N, BLK_N, n);

    OperandA a;
    OperandB b;
    const bool aligned_a = a.begin(A, lda, block_m, m, work.first), aligned_b = b.begin(B, ldb, block_n, n, work.first);
    const bool aligned = aligned_a && aligned_b;
    int tile = work.first, fetched = tile, writing = 0, reading = 0;
    auto turn = [](int& stage) { stage = stage == STAGES - 1 ? 0 : stage + 1; };

    Accumulator sum;
#pragma unroll
    for (int e = 0; e < SUMS; e++) (&sum[0][0][0][0])[e] = Real(0);

    FragmentA fa[FRAGMENTS];
    FragmentB fb[FRAGMENTS];
    auto load = [&](int buffer, int step) {
      load_fragment(fa[buffer], from_a + reading * OperandA::STAGE + place<A_ALONG_K, OperandA::ROW>(0, step * STEP_K));
      load_fragment(fb[buffer], from_b + reading * OperandB::STAGE + place<B_ALONG_K, OperandB::ROW>(0, step * STEP_K));
    };
    auto land = [] {
      cp_async_wait<STAGES - 2>();
      __syncthreads();  // the tile is complete for all, and all have left the stage to write
    };

    // Tiles that lie inside the matrices.
    const bool inside = aligned && a.inside == BLK_M && b.inside == BLK_N;
    const int end = inside ? min(work.last, rest == BLK_K ? work.per_tile : work.per_tile - 1) : tile;
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
#endif
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#if FRAGMENTS == 1
          load(0, step);
          multiply(sum, fa[0], fb[0]);
#else
          if (step == STEPS - 1) {
            land();
            turn(reading);
          }
          if (step < STEPS - 1 || tile + 1 < end) load((step + 1) % 2, (step + 1) % STEPS);
          if (step == 0) fetch();
          multiply(sum, fa[step % 2], fb[step % 2]);
#endif
        }
#if FRAGMENTS == 1
        turn(reading);
#endif
      }
      __syncthreads();  // all have left the stages
    }

    // The others.
    if (tile < work.last) {
      fetched = tile;
      writing = reading = 0;
      auto fetch_any = [&] {
        if (fetched < work.last) {
          const int steps = fetched == work.per_tile - 1 ? rest : BLK_K;
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
      for (; tile < work.last; tile++) {
        land();
        fetch_any();
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
          load(0, step);
          multiply(sum, fa[0], fb[0]);
        }
        turn(reading);
      }
    }

#if STREAM_K
    if (meet(work, workspace, sum)) {
#endif
      const long long row = block_m + warp_m, column = block_n + warp_n;
      store_tile(sum, alpha, beta, C + row + column * ldc, ldc, m - row, n - column, warp_m - overlap(block_m, BLK_M, m),
                 warp_n - overlap(block_n, BLK_N, n), g, t);
#if STREAM_K
    }
    __syncthreads();  // all have left the stages
#endif
  }
}
