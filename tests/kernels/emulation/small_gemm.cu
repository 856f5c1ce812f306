// A small GEMM to prove the emulator with: 8 x 8 threads, a tile of 8 x 8, two stages of asynchronous copies. The macro
// BREAK plants one fault, which the emulator must find.

#if PRECISION == 0
typedef float T;
#else
typedef double T;
#endif

constexpr int TILE = 8;
struct alignas(4 * sizeof(T)) Quad { T at[4]; };

extern "C" __global__ void __launch_bounds__(TILE * TILE)
gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B, long long ldb, T beta, T* C,
     long long ldc, int raster_group) {
  extern __shared__ __align__(16) unsigned char shared_storage[];
  T* const a = reinterpret_cast<T*>(shared_storage);  // [stage][k][m]
  T* const b = a + 2 * TILE * TILE;                   // [stage][k][n]
  const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
  const long long tiles_m = (m + TILE - 1) / TILE;
  const long long row = blockIdx.x % tiles_m * TILE, column = blockIdx.x / tiles_m * TILE;

  auto copy = [&](int stage, long long k0) {
    if (k0 < k) {
#if BREAK == 3  // out of bounds
      const bool inside_a = k0 + y < k;
#else
      const bool inside_a = row + x < m && k0 + y < k;
#endif
      cp_async_or_zero<sizeof(T)>(a + (stage * TILE + y) * TILE + x, A + row + x + (k0 + y) * lda, inside_a);
      cp_async_or_zero<sizeof(T)>(b + (stage * TILE + x) * TILE + y, B + k0 + x + (column + y) * ldb,
                                  column + y < n && k0 + x < k);
#if BREAK == 2  // the last tile is not alone in its group
      cp_async_commit();
#endif
    }
#if BREAK != 2
    cp_async_commit();
#endif
  };

  T sum[2] = {0, 0};
  copy(0, 0);
  for (long long k0 = 0, stage = 0; k0 < k; k0 += TILE, stage ^= 1) {
    copy(stage ^ 1, k0 + TILE);
#if BREAK == 1  // a missing wait
    cp_async_wait<2>();
#else
    cp_async_wait<1>();
#endif
#if BREAK == 4  // a missing barrier before reading
    if (k0 > 0)
#endif
    __syncthreads();
    for (int i = 0; i < TILE; i++) {
      const T* const ai = a + (stage * TILE + i) * TILE;
#if BREAK == 6  // beyond the stages
      sum[0] += ai[x] * b[(stage * TILE + i) * TILE + y + (k0 > 0 ? 4 * TILE * TILE : 0)];
#elif BREAK == 7  // a misaligned vector of shared memory
      sum[0] += reinterpret_cast<const Quad*>(ai + x)->at[0] * b[(stage * TILE + i) * TILE + y];
#elif BREAK == 8  // an index beyond a thread's own array
      sum[i / 4] += ai[x] * b[(stage * TILE + i) * TILE + y];
      if (i == 7) sum[i / 3] += sum[1];
#else
      sum[0] += ai[x] * b[(stage * TILE + i) * TILE + y];
#endif
    }
#if BREAK != 9  // a missing barrier before the next copy
    __syncthreads();
#endif
  }

#if BREAK == 5  // a divergent barrier
  if (row + x < m) __syncthreads();
#elif BREAK == 10  // barriers that differ
  if (x == 0)
    __syncthreads();
  else
    __syncthreads();
#elif BREAK == 11  // two threads write the same shared word
  a[y] = sum[0];
#elif BREAK == 18  // a thread writes what another has just read
  sum[0] += a[TILE * TILE - 1] * 0;
  if (threadIdx.x == TILE * TILE - 1) a[TILE * TILE - 1] = 0;
#elif BREAK == 12  // shared memory that nobody wrote
  sum[0] += b[2 * TILE * TILE] * 0;
#elif BREAK == 13  // an input is written
  if (blockIdx.x == 0 && threadIdx.x == 0) const_cast<T*>(A)[0] = sum[0];
#elif BREAK == 14  // a loop without end
  while (a[0] == a[0]) a[x + y * TILE] = 0;
#elif BREAK == 15  // a misaligned wide load of global memory
  if (row + x + 4 <= m) sum[0] += load_global(reinterpret_cast<const Quad*>(A + row + x)).at[3] * 0;
#elif BREAK == 16  // a copy that is misaligned
  if (row + 8 < m) cp_async<2 * sizeof(T), 0>(a + 2 * x, A + x + 1);
#endif

#if BREAK == 17  // outside of C
  if (row + x < m) {
#else
  if (row + x < m && column + y < n) {
#endif
    T* const to = C + row + x + (column + y) * ldc;
    *to = alpha * sum[0] + (beta == 0 ? 0 : beta * *to);
  }
}
