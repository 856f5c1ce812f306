// The ASTRA GEMM stencil (LAPACK Working Note 267), modernised.
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
// A block of DIM_X x DIM_Y threads computes a BLK_M x BLK_N tile of C, BLK_K steps of k at a time, through shared memory:
//
//     global --copy--> shared [k][m], [k][n] --fragments--> registers --multiply--> accumulators --store--> global
//
// Both operands lie in shared memory with k as the slow index, so an operand that is contiguous along k in global memory
// (A when op(A) != N, B when op(B) = N) is transposed by its copy. A tile that would stick out of C moves inwards: it computes
// again some of its neighbour's elements, and does not store them. Where BLK_K does not divide k, the end of k comes first, as
// a tile that moves inwards likewise: its steps that another tile has are not multiplied. Matrices smaller than a tile, and
// operands whose address or leading dimension forbids wide loads, take a copy that works element by element and fills with zeros.
//
// Unless SPLIT_K is 1, several blocks share the depth of a tile: gridDim.y of them, or with SPLIT_K = 0 as many as it takes to
// give all blocks of the launch the same work (Stream-K). Their sums meet in the workspace, in pairs, and the last part stores
// them.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or a fact of the problem
// (PRECISION 0 to 3 for S, D, C, Z; TRANS_A, TRANS_B; CONJ_A, CONJ_B; BATCHED, of many products: one for each blockIdx.z).

#if PRECISION == 0 || PRECISION == 2
typedef float Real;
#else
typedef double Real;
#endif
#if PRECISION < 2
typedef Real T;
constexpr int PARTS = 1;
#else
struct alignas(2 * sizeof(Real)) T { Real x, y; };
constexpr int PARTS = 2;
#endif

constexpr int WARP = 32;
constexpr int THREADS = DIM_X * DIM_Y;
constexpr int THR_M = BLK_M / DIM_X;
constexpr int THR_N = BLK_N / DIM_Y;
constexpr int LANE_Y = WARP / LANE_X;
constexpr int ROW_A = BLK_M + PAD_A;  // elements from one k to the next in shared memory
constexpr int ROW_B = BLK_N + PAD_B;
constexpr int STAGE_A = BLK_K * ROW_A;
constexpr int STAGE_B = BLK_K * ROW_B;

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T at[COUNT]; };

struct Yes { static constexpr bool value = true; };
struct No { static constexpr bool value = false; };

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

template <int BYTES, int CACHE>
__device__ __forceinline__ void cp_async(void* shared, const void* global) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (CACHE == 1 && BYTES == 16)  // past L1; other widths exist only through it
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(BYTES) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(global), "n"(BYTES) : "memory");
}

template <int BYTES>
__device__ __forceinline__ void cp_async_or_zero(void* shared, const void* global, bool valid) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? BYTES : 0;  // what is not read is filled with zeros
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(global), "n"(BYTES), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

template <int COUNT>
__device__ __forceinline__ Vector<COUNT> load_global(const Vector<COUNT>* from) {
#if READ == 1  // the non-coherent path: what ASTRA used texture reads for
  Vector<COUNT> value;
  if constexpr (sizeof(value) == 16) {
    uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
    value = reinterpret_cast<Vector<COUNT>&>(bits);
  } else if constexpr (sizeof(value) == 8) {
    uint2 bits = __ldg(reinterpret_cast<const uint2*>(from));
    value = reinterpret_cast<Vector<COUNT>&>(bits);
  } else {
    unsigned bits = __ldg(reinterpret_cast<const unsigned*>(from));
    value = reinterpret_cast<Vector<COUNT>&>(bits);
  }
  return value;
#else
  return *from;
#endif
}

// Indices that are read again: what follows from them need not wait in registers during the main loop.
__device__ __forceinline__ unsigned block_again() {
  unsigned value;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(value));
  return value;
}

__device__ __forceinline__ int thread_again() {
  int value;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(value));
  return value;
}

__device__ __forceinline__ unsigned again(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
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

// Blocks that stay read it again for each part of their work.
__device__ __forceinline__ unsigned own_thread() { return SPLIT_K == 0 ? thread_again() : threadIdx.x; }

// ---- What a block computes, and which part of it a thread.

// Where a tile of C begins. One that would stick out moves inwards, if C has room for it; its first `rows` and `columns` belong
// to the tiles before.
struct Tile {
  long long m, n;
  int rows, columns;

  // Blocks run down groups of raster_group tile rows, column by column, so that a wave of blocks covers a compact patch of C.
  __device__ __forceinline__ Tile(unsigned block, long long all_m, long long all_n, int raster_group) {
    const unsigned tiles_m = static_cast<unsigned>((all_m + BLK_M - 1) / BLK_M);
    const unsigned tiles_n = static_cast<unsigned>((all_n + BLK_N - 1) / BLK_N);
    const unsigned most = min(static_cast<unsigned>(raster_group), tiles_m);
    const unsigned group = block / (most * tiles_n), within = block % (most * tiles_n);
    const unsigned height = min(most, tiles_m - group * most);
    const long long start_m = static_cast<long long>(group * most + within % height) * BLK_M;
    const long long start_n = static_cast<long long>(within / height) * BLK_N;
    m = max(min(start_m, all_m - BLK_M), 0ll);
    n = max(min(start_n, all_n - BLK_N), 0ll);
    rows = static_cast<int>(start_m - m);
    columns = static_cast<int>(start_n - n);
  }
};

// Place of a thread in the grid of DIM_X x DIM_Y threads.
struct Lane {
  int x, y;

  __device__ __forceinline__ explicit Lane(int thread) {
    const int lane = thread % WARP, warp = thread / WARP;
#if LANE_ORDER == 0
    const int lane_x = lane % LANE_X, lane_y = lane / LANE_X;
#else  // neighbouring lanes alternate between two rows, so that eight lanes form a 4 x 2 patch
    const int lane_x = lane / 2 % LANE_X, lane_y = lane / 2 / LANE_X * 2 + lane % 2;
#endif
    x = warp % (DIM_X / LANE_X) * LANE_X + lane_x;
    y = warp / (DIM_X / LANE_X) * LANE_Y + lane_y;
  }
};

// ---- Copies from global to shared memory, one operand each.

// One operand of the product. SPAN is the tile's extent along the index that is contiguous in global memory, LINES its
// extent along the other; the thread block is reshaped to DIM_S x (THREADS / DIM_S) for reading it, VEC elements at a time.
//
// A copy has two halves, so that the tiles in flight hide its latency: `fetch` starts it, `land` ends it. An asynchronous copy
// does all its work in `fetch`; a staged one holds the elements in registers in between, which lets it transpose small
// blocks of VEC x STORE elements on their way, read and written as vectors.
template <bool K_CONTIGUOUS, bool ASYNC, int BLK, int ROW, int DIM_S, int VEC, int STORE>
struct Operand {
  static constexpr int STAGE = BLK_K * ROW;
  static constexpr int SPAN = K_CONTIGUOUS ? BLK_K : BLK;
  static constexpr int LINES = K_CONTIGUOUS ? BLK : BLK_K;
  static constexpr int DIM_L = THREADS / DIM_S;
  static constexpr int PER_LINE = SPAN / (DIM_S * VEC);
  static constexpr int PER_THREAD = LINES / DIM_L;
  static_assert(SPAN % (DIM_S * VEC) == 0 && LINES % (DIM_L * STORE) == 0 && THREADS % DIM_S == 0, "the load shape divides the tile");
  static_assert(STORE == 1 || (K_CONTIGUOUS && !ASYNC), "only a staged copy that transposes gathers vectors to store");
  static_assert(!ASYNC || !K_CONTIGUOUS || VEC == 1, "an asynchronous copy that transposes moves single elements");

  const T* tile;     // first element of this block's tile at k = 0
  const T* next;     // this thread's first element of the tile to fetch ...
  T* to;             // ... and its place in the stage to write
  long long ld;
  long long inside;  // rows of op(A), or columns of op(B), from the tile's start to the matrix's end
  bool aligned;      // whether tiles inside the matrix may be read VEC elements at once
  int wide_from;     // number of the first such tile
  Vector<VEC> staged[ASYNC ? 1 : PER_THREAD * PER_LINE];

  __device__ __forceinline__ Operand(const T* matrix, long long ld_, long long start, long long end, T* shared)
      : tile(matrix + (K_CONTIGUOUS ? start * ld_ : start)), ld(ld_), inside(end - start) {
    aligned = inside >= BLK && ld % VEC == 0 && reinterpret_cast<unsigned long long>(tile) % sizeof(Vector<VEC>) == 0;
    const unsigned thread = own_thread();
    const int span = thread % DIM_S * VEC, line = thread / DIM_S * STORE;
    next = tile + span + line * ld;
    to = shared + place(span, line);
  }

  // Whether tiles may begin at k0, wherever BLK_K divides the distance.
  __device__ __forceinline__ bool can_begin(long long k0) const { return aligned && (!K_CONTIGUOUS || k0 % VEC == 0); }

  // Begin to fetch at k0, from tile `from` on wide if that is possible.
  __device__ __forceinline__ void begin(long long k0, int from) {
    skip(k0);
    wide_from = aligned ? from : 0x7fffffff;
  }

  // Go on `steps` of k later.
  __device__ __forceinline__ void skip(long long steps) { next += K_CONTIGUOUS ? steps : steps * ld; }

  // Offset in shared memory of element (s, l) of the tile.
  static __device__ __forceinline__ int place(int s, int l) { return K_CONTIGUOUS ? s * ROW + l : l * ROW + s; }

  // The i-th line that a thread reads: its lines come in runs of STORE.
  static __device__ __forceinline__ int run(int i) { return i / STORE * STORE * DIM_L + i % STORE; }

  __device__ __forceinline__ const Vector<VEC>* source(int i, int j) const {
    return reinterpret_cast<const Vector<VEC>*>(next + run(i) * ld + j * DIM_S * VEC);
  }

  // Start the copy of tile `t`, the one after the last, which begins at k0 of k. WIDE: it is one of the wide tiles.
  template <bool WIDE>
  __device__ __forceinline__ void fetch(int t, long long k0, long long k) {
    if (WIDE || t >= wide_from) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
        for (int j = 0; j < PER_LINE; j++) {
          if constexpr (ASYNC)
            cp_async<sizeof(Vector<VEC>), READ>(to + place(j * DIM_S * VEC, run(i)), source(i, j));
          else
            staged[i * PER_LINE + j] = load_global(source(i, j));
        }
      skip(BLK_K);
    } else if constexpr (ASYNC) {
      copy_any(k0, k);
    }
  }

  // End it: the tile is complete after the next barrier (and, when asynchronous, the next wait).
  template <bool WIDE>
  __device__ __forceinline__ void land(int t, long long k0, long long k) const {
    if constexpr (!ASYNC) {
      if (WIDE || t >= wide_from)
        store_staged();
      else
        copy_any(k0, k);
    }
  }

  // Go to the next stage. A running pointer, because the compiler would compute its value anew for every tile.
  __device__ __forceinline__ void turn(bool wrap) { to += wrap ? -(STAGES - 1) * STAGE : STAGE; }

  __device__ __forceinline__ void store_staged() const {
#pragma unroll
    for (int i = 0; i < PER_THREAD; i += STORE)
#pragma unroll
      for (int j = 0; j < PER_LINE; j++) {
        T* const block = to + place(j * DIM_S * VEC, run(i));
        if constexpr (K_CONTIGUOUS) {
#pragma unroll
          for (int e = 0; e < VEC; e++) {
            Vector<STORE> column;
#pragma unroll
            for (int u = 0; u < STORE; u++) column.at[u] = staged[(i + u) * PER_LINE + j].at[e];
            *reinterpret_cast<Vector<STORE>*>(block + e * ROW) = column;
          }
        } else {
          *reinterpret_cast<Vector<VEC>*>(block) = staged[i * PER_LINE + j];
        }
      }
  }

  // Element by element, zeros where there is no matrix. Rolled: it is rare, and must cost neither registers nor compile time.
  __device__ __forceinline__ void copy_any(long long k0, long long k) const {
    const unsigned thread = own_thread();
    T* const shared = to - place(thread % DIM_S * VEC, thread / DIM_S * STORE);
#pragma unroll 1
    for (int at = thread; at < SPAN * LINES; at += THREADS) {
      const int s = at % SPAN, l = at / SPAN;
      const bool valid = (K_CONTIGUOUS ? l : s) < inside && k0 + (K_CONTIGUOUS ? s : l) < k;
      const T* from = tile + (valid ? (K_CONTIGUOUS ? k0 + s + l * ld : s + (k0 + l) * ld) : 0);
      T* const element = shared + place(s, l);
      if constexpr (ASYNC)
        cp_async_or_zero<sizeof(T)>(element, from, valid);
      else
        *element = valid ? *from : T{};
    }
  }
};

typedef Operand<TRANS_A == 1, ASYNC_A == 1, BLK_M, ROW_A, DIM_XA, VEC_A, STORE_A> OperandA;
typedef Operand<TRANS_B == 0, ASYNC_B == 1, BLK_N, ROW_B, DIM_XB, VEC_B, STORE_B> OperandB;
static_assert(STAGES > 1 || (ASYNC_A == 0 && ASYNC_B == 0), "a single stage is read while the next tile waits in registers");

// ---- Fragments and the register tile.

// Element i of a thread's fragment lies (i / VEC * DIM) * VEC + i % VEC from its first: ASTRA's stride, in vectors.
template <int THR, int DIM, int VEC>
__device__ __forceinline__ void load_fragment(Real (&fragment)[THR * PARTS], const T* mine) {
#pragma unroll
  for (int c = 0; c < THR / VEC; c++) {
    const Vector<VEC> value = *reinterpret_cast<const Vector<VEC>*>(mine + c * DIM * VEC);
#pragma unroll
    for (int e = 0; e < VEC; e++) {
#if PRECISION < 2
      fragment[c * VEC + e] = value.at[e];
#else
      fragment[(c * VEC + e) * 2] = value.at[e].x;
      fragment[(c * VEC + e) * 2 + 1] = value.at[e].y;
#endif
    }
  }
}

// One step of k. A complex register tile is a real one of twice the sides whose accumulators fold in pairs; all real parts
// go first, then all imaginary ones, so that the two additions to an accumulator lie far apart.
__device__ __forceinline__ void multiply(Real (&accumulator)[THR_M][THR_N][PARTS], const Real (&a)[THR_M * PARTS],
                                         const Real (&b)[THR_N * PARTS]) {
  auto step = [&](int r, int c) {
    const int p = r % PARTS, q = c % PARTS;  // 1: the imaginary part
    const bool negative = (p & q) ^ (p & CONJ_A) ^ (q & CONJ_B);
    Real& sum = accumulator[r / PARTS][c / PARTS][p ^ q];
    sum += (negative ? -a[r] : a[r]) * b[c];
  };
  constexpr int ROWS = THR_M * PARTS, COLUMNS = THR_N * PARTS;
#if ORDER < 2  // row by row; 1: serpentine, the turn keeps an operand in the register reuse cache
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
      step(i % THR_M * PARTS + i / THR_M, ORDER == 1 && i % 2 ? COLUMNS - 1 - j : j);
#elif ORDER == 2  // serpentine, column by column
#pragma unroll
  for (int j = 0; j < COLUMNS; j++)
#pragma unroll
    for (int i = 0; i < ROWS; i++) step(j % 2 ? ROWS - 1 - i : i, j % THR_N * PARTS + j / THR_N);
#else  // serpentine, two columns at a time
#pragma unroll
  for (int j = 0; j < COLUMNS; j += 2)
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
      for (int u = 0; u < 2; u++) {
        const int column = j + (u ^ i % 2);
        if (column < COLUMNS) step(j / 2 % 2 ? ROWS - 1 - i : i, column % THR_N * PARTS + column / THR_N);
      }
#endif
}

// Steps of k out of one stage, UNROLL of them unrolled, fragments loaded one step ahead when there are two buffers.
template <int UNROLL, int BUFFERS>
__device__ __forceinline__ void multiply_stage(Real (&accumulator)[THR_M][THR_N][PARTS], const T* a, const T* b, int first = 0,
                                               int end = BLK_K) {
  constexpr int AHEAD = BUFFERS - 1;
  Real fa[BUFFERS][THR_M * PARTS], fb[BUFFERS][THR_N * PARTS];
  if constexpr (AHEAD) {
    load_fragment<THR_M, DIM_X, VEC_M>(fa[0], a);
    load_fragment<THR_N, DIM_Y, VEC_N>(fb[0], b);
  }
#pragma unroll 1
  for (int k0 = first; k0 < end; k0 += UNROLL) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      if (u + AHEAD < UNROLL || k0 + UNROLL < end) {
        const int buffer = (u + AHEAD) % BUFFERS, k = k0 + u + AHEAD;
        load_fragment<THR_M, DIM_X, VEC_M>(fa[buffer], a + k * ROW_A);
        load_fragment<THR_N, DIM_Y, VEC_N>(fb[buffer], b + k * ROW_B);
      }
      multiply(accumulator, fa[u % BUFFERS], fb[u % BUFFERS]);
    }
  }
}

// ---- The result.

__device__ __forceinline__ bool is_zero(T value) {
#if PRECISION < 2
  return value == Real(0);
#else
  return value.x == Real(0) && value.y == Real(0);
#endif
}

__device__ __forceinline__ T as_element(const Real (&parts)[PARTS]) {
#if PRECISION < 2
  return parts[0];
#else
  return T{parts[0], parts[1]};
#endif
}

__device__ __forceinline__ T scaled(T alpha, T value) {
#if PRECISION < 2
  return alpha * value;
#else
  return T{alpha.x * value.x - alpha.y * value.y, alpha.x * value.y + alpha.y * value.x};
#endif
}

__device__ __forceinline__ T plus_scaled(T value, T beta, T old) {
#if PRECISION < 2
  return value + beta * old;
#else
  return T{value.x + (beta.x * old.x - beta.y * old.y), value.y + (beta.x * old.y + beta.y * old.x)};
#endif
}

// The largest divisor of `whole` up to `most`.
constexpr int divisor(int whole, int most) {
  while (whole % most) most--;
  return most;
}

// Stores a tile, of which `rows` and `columns` lie in C: in vectors, or in single elements where C is not aligned. If it sticks
// out, a part of it must be left out, or C is read and not aligned, it goes through shared memory, a few elements of each thread at
// a time, in a rolled loop with tests of bounds: unrolled they would be half of the machine code. What belongs to other tiles, before
// first_row and first_column, is left out if C is read. Otherwise it is stored twice with the same bits, but left out with
// SPLIT_K = 0, where those tiles are divided elsewhere and round otherwise.
__device__ __forceinline__ void store_tile(const Real (&accumulator)[THR_M][THR_N][PARTS], T alpha, T beta, T* tile, long long ldc,
                                           int first_row, int first_column, long long rows, long long columns, Lane lane,
                                           T* shared) {
  const bool reads = !is_zero(beta);
  const bool aligned = ldc % VEC_M == 0 && reinterpret_cast<unsigned long long>(tile) % sizeof(Vector<VEC_M>) == 0;
  const bool in_vectors = aligned && (SPLIT_K != 0 || (VEC_M > 1 && (first_row | first_column) == 0));
  const bool is_whole = rows >= BLK_M && columns >= BLK_N && (!reads || (aligned && (first_row | first_column) == 0));
  if (is_whole) {
    tile += lane.x * VEC_M + lane.y * VEC_N * ldc;
    unsigned own_rows[(THR_M + 31) / 32] = {};  // a bit for each
#pragma unroll
    for (unsigned i = 0; i < THR_M; i++)
      if (static_cast<int>((i / VEC_M * DIM_X + lane.x) * VEC_M + i % VEC_M) >= first_row) own_rows[i / 32] |= 1u << i % 32;
#pragma unroll
    for (int j = 0; j < THR_N; j++) {
      T* const line = tile + (j / VEC_N * DIM_Y * VEC_N + j % VEC_N) * ldc;
      const bool is_own = (j / VEC_N * DIM_Y + lane.y) * VEC_N + j % VEC_N >= first_column;
#pragma unroll
      for (int i = 0; i < THR_M; i += VEC_M) {
        T* const to = line + i * DIM_X;
        Vector<VEC_M> value;
#pragma unroll
        for (int e = 0; e < VEC_M; e++) value.at[e] = scaled(alpha, as_element(accumulator[i + e][j]));
        if (reads) {
          const Vector<VEC_M> old = *reinterpret_cast<const Vector<VEC_M>*>(to);
#pragma unroll
          for (int e = 0; e < VEC_M; e++) value.at[e] = plus_scaled(value.at[e], beta, old.at[e]);
        }
        if (in_vectors) {
          *reinterpret_cast<Vector<VEC_M>*>(to) = value;
        } else {
#pragma unroll
          for (int e = 0; e < VEC_M; e++)
            if (SPLIT_K != 0 || (is_own ? own_rows[(i + e) / 32] : 0) >> (i + e) % 32 & 1) to[e] = value.at[e];
        }
      }
    }
  } else {
    __syncthreads();  // the operands are no longer needed
    constexpr int SLOTS = STAGES * (STAGE_A + STAGE_B) / THREADS, ALL = THR_M * THR_N;
    constexpr int CHUNK = divisor(ALL, SLOTS < ALL ? SLOTS : ALL);
    T* const slot = shared + threadIdx.x;
#pragma unroll
    for (int e0 = 0; e0 < ALL; e0 += CHUNK) {
#pragma unroll
      for (int e = 0; e < CHUNK; e++) slot[e * THREADS] = as_element(accumulator[(e0 + e) % THR_M][(e0 + e) / THR_M]);
#pragma unroll 1
      for (int e = 0; e < CHUNK; e++) {
        const int i = (e0 + e) % THR_M, j = (e0 + e) / THR_M;
        const int row = (i / VEC_M * DIM_X + lane.x) * VEC_M + i % VEC_M;
        const int column = (j / VEC_N * DIM_Y + lane.y) * VEC_N + j % VEC_N;
        if (first_row <= row && row < rows && first_column <= column && column < columns) {
          T* const to = tile + row + column * ldc;
          const T value = scaled(alpha, slot[e * THREADS]);
          *to = reads ? plus_scaled(value, beta, *to) : value;
        }
      }
    }
  }
}

// ---- The work of a block: a part of a tile, or with SPLIT_K = 0 several, one after the other.

#if SPLIT_K == 0

// Stream-K (Osama et al., PPoPP 2023): the tiles that fill no whole wave of blocks, and those of one whole wave, are divided. Their
// steps of BLK_K along k are numbered through, and each block has an equal share, but for one step. Whole tiles follow.
//
// A block computes its last steps first. So it leaves a part that it cannot complete at once, and only then waits for parts of its
// next tile; or all its steps are inside of one tile, and it leaves their sum after those that it waits for. Either way it waits
// for blocks of smaller numbers alone, which started earlier: of all that run, the one of the smallest number waits for none. So
// every wait ends, however few blocks run at a time.
struct Work {
  unsigned tiles, steps;      // of C, and of a tile along k
  unsigned divided, sharers;  // tiles that are divided, and among how many blocks
  unsigned begin, end;        // of the numbered steps that are left to this block
  unsigned whole;             // the next tile that is not divided
  unsigned now, from, to;     // the part: its tile, and steps of this

  __device__ __forceinline__ Work(long long m, long long n, long long depth) {
    tiles = static_cast<unsigned>((m + BLK_M - 1) / BLK_M) * static_cast<unsigned>((n + BLK_N - 1) / BLK_N);
    steps = static_cast<unsigned>(depth / BLK_K);
    const unsigned waves = tiles / gridDim.x;  // whole ones
    divided = steps == 0 || waves * gridDim.x == tiles ? 0 : tiles - (waves > 1 ? waves - 1 : 0) * gridDim.x;
    sharers = min(gridDim.x, divided * steps);
    whole = divided + blockIdx.x;
    begin = end = 0;
    if (blockIdx.x < sharers) {
      const unsigned share = divided * steps / sharers, more = divided * steps % sharers;
      begin = blockIdx.x * share + blockIdx.x * more / sharers;
      end = (blockIdx.x + 1) * share + (blockIdx.x + 1) * more / sharers;
    }
  }

  __device__ __forceinline__ bool next() {
    if (begin < end) {
      now = (end - 1) / steps;
      const unsigned start = now * steps;
      to = end - start;
      from = max(begin, start) - start;
      end = start + from;
      return true;
    }
    now = whole;
    whole += gridDim.x;
    from = 0;
    to = steps;
    return now < tiles;
  }

  __device__ __forceinline__ unsigned tile() const { return now; }
  __device__ __forceinline__ unsigned tile_again() const { return again(now); }
  __device__ __forceinline__ bool is_whole() const { return from == 0 && is_last(); }
  __device__ __forceinline__ bool is_last() const { return to == steps; }
  __device__ __forceinline__ unsigned first(unsigned) const { return from; }
  __device__ __forceinline__ unsigned count(unsigned) const { return to - from; }

  // Parts of the tile before this one, each of another block: down to the one that has the tile's first step.
  __device__ __forceinline__ unsigned before() const {
    const unsigned at = now * sharers, fraction = at % divided * steps;
    return from == 0 ? 0 : blockIdx.x - at / divided - (fraction + sharers > divided * steps);
  }
};

#else

// One part: blocks (x, 0), (x, 1) ... share the depth of tile x evenly.
struct Work {
  __device__ __forceinline__ Work(long long, long long, long long) {}

  __device__ __forceinline__ unsigned parts() const { return SPLIT_K == 1 ? 1 : gridDim.y; }  // of the depth of a tile
  __device__ __forceinline__ unsigned before() const { return SPLIT_K == 1 ? 0 : blockIdx.y; }
  __device__ __forceinline__ unsigned tile() const { return blockIdx.x; }
  __device__ __forceinline__ unsigned tile_again() const { return block_again(); }
  __device__ __forceinline__ bool is_whole() const { return parts() < 2; }
  __device__ __forceinline__ bool is_last() const { return before() == parts() - 1; }

  // The first ones have one step more.
  __device__ __forceinline__ unsigned first(unsigned steps) const {
    return before() * (steps / parts()) + min(before(), steps % parts());
  }

  __device__ __forceinline__ unsigned count(unsigned steps) const { return steps / parts() + (before() < steps % parts()); }
};

#endif

// ---- Parts of a tile, which meet in the workspace: a flag and a tile of sums for each block but those of the last part. With
// SPLIT_K = 0 each block has them for the one part that it may leave.

constexpr int SUMS = THR_M * THR_N * PARTS;  // of a thread
constexpr int AT_ONCE = divisor(SUMS, 32);   // that are loaded together, each into a register of its own

#if SPLIT_K == 0

__device__ __forceinline__ unsigned own_number() { return blockIdx.x; }

__device__ __forceinline__ unsigned* flag_of(void* workspace, unsigned block) { return static_cast<unsigned*>(workspace) + block; }

__device__ __forceinline__ Real* sums_of(void* workspace, unsigned block) {
  const unsigned long long number = block;
  return reinterpret_cast<Real*>(flag_of(workspace, (gridDim.x + 63) / 64 * 64)) + number * SUMS * THREADS + own_thread();
}

#else

__device__ __forceinline__ unsigned own_number() { return blockIdx.y; }

__device__ __forceinline__ unsigned* flag_of(void* workspace, unsigned part) {
  const unsigned line = (gridDim.x * gridDim.z + 63) / 64 * 64;  // the flags of a part
  return static_cast<unsigned*>(workspace) + part * line + blockIdx.z * gridDim.x + blockIdx.x;
}

__device__ __forceinline__ Real* sums_of(void* workspace, unsigned part) {
  const unsigned tiles = gridDim.x * gridDim.z, flags = (gridDim.y - 1) * ((tiles + 63) / 64 * 64);
  const unsigned long long number = part * tiles + blockIdx.z * gridDim.x + blockIdx.x;
  return reinterpret_cast<Real*>(static_cast<unsigned*>(workspace) + flags) + number * SUMS * THREADS + threadIdx.x;
}

#endif

__device__ __forceinline__ void leave_part(void* workspace, const Real (&accumulator)[THR_M][THR_N][PARTS]) {
  Real* const sums = sums_of(workspace, own_number());
#pragma unroll
  for (int e = 0; e < SUMS; e++) sums[e * THREADS] = (&accumulator[0][0][0])[e];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) raise(flag_of(workspace, own_number()), 1);
}

// Blocks of earlier parts have smaller numbers, so they started earlier: to wait for them ends.
__device__ __forceinline__ void add_part(void* workspace, Real (&accumulator)[THR_M][THR_N][PARTS], unsigned number) {
  unsigned* const flag = flag_of(workspace, number);
  if (threadIdx.x == 0)
    while (!is_raised(flag)) {
    }
  __syncthreads();
  const Real* const sums = sums_of(workspace, number);
#pragma unroll 1
  for (int from = 0; from < SUMS; from += AT_ONCE)  // a loop in name only: the assembler moves no load across its branches
#pragma unroll
    for (int e = 0; e < SUMS; e += AT_ONCE)
      if (e == from)
#pragma unroll
        for (int u = e; u < e + AT_ONCE; u++) (&accumulator[0][0][0])[u] += sums[u * THREADS];
  if (threadIdx.x == 0) raise(flag, 0);  // for the next launch
}

// Parts meet as in a binary tree, each with earlier ones alone, so that the last waits for the logarithm of their number: of
// parts 0 to 7, part 5 adds part 4, and part 7 adds 6, 5 and 3, which hold the sums of 1, 2 and 4. Returns whether this part is
// the last.
__device__ __forceinline__ bool meet(const Work& work, void* workspace, Real (&accumulator)[THR_M][THR_N][PARTS]) {
  const unsigned part = work.before();
  const bool is_last = work.is_last();
#pragma unroll 1
  for (unsigned held = 1; held <= part && (part & held || is_last); held *= 2)
    if (part & held) add_part(workspace, accumulator, own_number() - part + (part & -held) - 1);
  if (!is_last) leave_part(workspace, accumulator);
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
  T* const shared_b = shared_a + STAGES * STAGE_A;

  Work work(m, n, is_zero(alpha) ? 0 : k);
#if SPLIT_K == 0
#pragma unroll 1
  while (work.next())
#endif
  {
    const Lane lane(own_thread());
    const Tile tile(work.tile(), m, n, raster_group);
    const long long depth = is_zero(alpha) ? 0 : k;
    const unsigned whole = static_cast<unsigned>(depth / BLK_K);  // tiles along k
    const long long begin = static_cast<long long>(work.first(whole)) * BLK_K;
    const int tiles = work.count(whole);

    // Where BLK_K does not divide k, the last part has a tile -1 at the end of k: the last BLK_K steps if both operands allow that,
    // of which the first belong to another tile and are not multiplied; else the `rest` alone, with zeros behind it.
    OperandA a(A, lda, tile.m, m, shared_a);
    OperandB b(B, ldb, tile.n, n, shared_b);
    const int rest = static_cast<int>(depth - static_cast<long long>(whole) * BLK_K);
    const bool inwards = whole > 0 && a.can_begin(depth) && b.can_begin(depth);
    const int first = rest > 0 && work.is_last() ? -1 : 0;
    auto start = [&](int t) {
      return t >= 0 ? begin + static_cast<long long>(t) * BLK_K : depth - (inwards ? BLK_K : rest);
    };
    a.begin(inwards ? start(first) : begin, inwards ? -1 : 0);
    b.begin(inwards ? start(first) : begin, inwards ? -1 : 0);
    const T* from_a = shared_a + lane.x * VEC_M;  // this thread's first elements of the stage to multiply
    const T* from_b = shared_b + lane.y * VEC_N;

    Real accumulator[THR_M][THR_N][PARTS];
#pragma unroll
    for (int i = 0; i < THR_M; i++)
#pragma unroll
      for (int j = 0; j < THR_N; j++)
#pragma unroll
        for (int p = 0; p < PARTS; p++) accumulator[i][j][p] = Real(0);

    const int ahead = STAGES == 1 ? 1 : STAGES - 1;  // tiles from the one multiplied to the one fetched
    auto fetch = [&](auto is_wide, int t) {
      if (t < tiles) {
        a.template fetch<is_wide.value>(t, is_wide.value ? 0 : start(t), k);
        b.template fetch<is_wide.value>(t, is_wide.value ? 0 : start(t), k);
        if (!is_wide.value && t < 0 && inwards) {
          a.skip(begin - depth);
          b.skip(begin - depth);
        }
      }
      if constexpr (ASYNC_A || ASYNC_B) cp_async_commit();
    };
    auto land = [&](auto is_wide, int t) {
      if (t < tiles) {
        a.template land<is_wide.value>(t, is_wide.value ? 0 : start(t), k);
        b.template land<is_wide.value>(t, is_wide.value ? 0 : start(t), k);
      }
    };
    auto multiply_tile = [&](auto is_main, int t) {
      if constexpr (is_main.value)
        multiply_stage<UNROLL_K, FRAGMENTS>(accumulator, from_a, from_b);
      else
        multiply_stage<1, 1>(accumulator, from_a, from_b, t < 0 && inwards ? BLK_K - rest : 0,
                             t < 0 && !inwards ? rest : BLK_K);
    };
#if STAGES == 1  // ASTRA: the next tile waits in registers while this one is multiplied; two barriers a tile
    auto step = [&](auto is_main, int t) {
      fetch(is_main, t + 1);
      multiply_tile(is_main, t);
      __syncthreads();
      land(is_main, t + 1);
      __syncthreads();
    };
    fetch(No{}, first);
    land(No{}, first);
    __syncthreads();
#else  // STAGES tiles in flight; one barrier a tile
    int reading = 0;
    auto step = [&](auto is_main, int t) {
      if constexpr (ASYNC_A || ASYNC_B) cp_async_wait<STAGES - 2>();
      __syncthreads();  // the stage to multiply is complete for all, and all have left the stage to write
      fetch(is_main, t + ahead);
      multiply_tile(is_main, t);
      land(is_main, t + ahead);
      a.turn(reading == 0);
      b.turn(reading == 0);
      const bool wrap = reading == STAGES - 1;
      from_a += wrap ? -(STAGES - 1) * STAGE_A : STAGE_A;
      from_b += wrap ? -(STAGES - 1) * STAGE_B : STAGE_B;
      reading = wrap ? 0 : reading + 1;
    };
#pragma unroll 1
    for (int t = first; t < first + ahead; t++) {
      fetch(No{}, t);
      land(No{}, t);
      a.turn(false);
      b.turn(false);
    }
#endif
    // The end of k, matrices smaller than a tile and operands that are not aligned take a rolled loop. All other tiles are wide,
    // and the main loop is free of any test of bounds.
    const bool is_aligned = a.aligned && b.aligned;
#pragma unroll 1
    for (int t = first; t < (is_aligned ? 0 : tiles); t++) step(No{}, t);
    if (is_aligned) {
#pragma unroll 1
      for (int t = 0; t < tiles; t++) step(Yes{}, t);
    }

    if (work.is_whole() || meet(work, workspace, accumulator)) {
      const Tile place(work.tile_again(), m, n, raster_group);
      store_tile(accumulator, alpha, beta, C + place.m + place.n * ldc, ldc, place.rows, place.columns, m - place.m, n - place.n,
                 Lane(thread_again()), shared_a);
    }
    if (SPLIT_K == 0) __syncthreads();  // all have left the stages
  }
}
