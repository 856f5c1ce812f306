// A spill that stores a result of a DMMA before it is written: ptxas -O3 for sm_90, CUDA 13.0 and 13.5.
//
// C = A^T B of doubles, column-major: A is k x m, B is k x n, C is m x n; m a multiple of 64, n of 32, k of 16. Tiles go by
// cp.async through two stages of shared memory, and the fragments of a step are loaded during the step before. With 80
// registers a thread some are spilled, among them half of the accumulators of the last DMMA in the loop. NVRTC 13.0.88:
//
//     DMMA.16x8x8 R32, R64, R60, R32     raises scoreboard 5 until it has written R32 to R39
//     @!P0 BRA                           to the head of the loop
//     STL.64 [R1+0x70], R38              33 cycles later; neither it nor anything before it waits for scoreboard 5
//     STL.64 [R1+0x68], R36              some cycles later
//
// So elements of C may be wrong whose row is 8 to 15 modulo 16 and whose column is 24 to 31 modulo 32: the odd columns
// first. In the middle of the loop the same registers are stored by an instruction that waits for scoreboard 5. No data race
// of the source can do this: an accumulator belongs to one thread.

constexpr int BLK_M = 64, BLK_N = 32, BLK_K = 16, STAGES = 2, STEP_K = 8, STEPS = BLK_K / STEP_K;
constexpr int WARP_M = 16, WARP_N = 32, NJ = WARP_N / 8, THREADS = 32 * (BLK_M / WARP_M) * (BLK_N / WARP_N);
constexpr int ROW_A = BLK_K + 8, ROW_B = BLK_K, STAGE_A = BLK_M * ROW_A, STAGE_B = BLK_N * ROW_B;
constexpr int LINES = THREADS / BLK_K;  // that are copied at a time

__device__ __forceinline__ void copy(double* shared, const double* global) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(global) : "memory");
}

__device__ __forceinline__ void mma(double* c, const double* a, const double* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}

extern "C" __global__ void __launch_bounds__(THREADS, 6)
wrong(long long k, const double* A, long long lda, const double* B, long long ldb, double* C, long long ldc) {
  extern __shared__ __align__(16) double shared_a[];
  double* const shared_b = shared_a + STAGES * STAGE_A;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int warp_m = warp % (BLK_M / WARP_M) * WARP_M, warp_n = warp / (BLK_M / WARP_M) * WARP_N;
  const double* const from_a = shared_a + (warp_m + g) * ROW_A + 2 * t;
  const double* const from_b = shared_b + (warp_n + g) * ROW_B + 2 * t;
  const int column = threadIdx.x % BLK_K, line = threadIdx.x / BLK_K;
  const double* next_a = A + column + (blockIdx.x * BLK_M + line) * lda;
  const double* next_b = B + column + (blockIdx.y * BLK_N + line) * ldb;

  const int tiles = static_cast<int>(k / BLK_K);
  int fetched = 0, writing = 0, reading = 0;
  auto turn = [](int& stage) { stage = stage == STAGES - 1 ? 0 : stage + 1; };
  auto fetch = [&] {
    if (fetched < tiles) {
#pragma unroll
      for (int i = 0; i < BLK_M / LINES; i++)
        copy(shared_a + writing * STAGE_A + (line + i * LINES) * ROW_A + column, next_a + i * LINES * lda);
#pragma unroll
      for (int i = 0; i < BLK_N / LINES; i++)
        copy(shared_b + writing * STAGE_B + (line + i * LINES) * ROW_B + column, next_b + i * LINES * ldb);
      next_a += BLK_K;
      next_b += BLK_K;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    fetched++;
    turn(writing);
  };
  auto land = [] {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();  // the next tile is complete, and all have left the stage to write
  };

  double sum[NJ][4] = {}, a[2][4], b[2][NJ][2];
  auto load = [&](int to, int step) {  // two neighbours along k at once
    const double* const at_a = from_a + reading * STAGE_A + step * STEP_K;
    const double* const at_b = from_b + reading * STAGE_B + step * STEP_K;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const double2 both = *reinterpret_cast<const double2*>(at_a + h * 8 * ROW_A);
      a[to][h] = both.x;
      a[to][2 + h] = both.y;
    }
#pragma unroll
    for (int j = 0; j < NJ; j++) {
      const double2 both = *reinterpret_cast<const double2*>(at_b + j * 8 * ROW_B);
      b[to][j][0] = both.x;
      b[to][j][1] = both.y;
    }
  };

#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; stage++) fetch();
  land();
  load(0, 0);
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++)
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      if (step == STEPS - 1) {
        land();
        turn(reading);
      }
      if (step < STEPS - 1 || tile + 1 < tiles) load((step + 1) % 2, (step + 1) % STEPS);
      if (step == 0) fetch();
#pragma unroll
      for (int j = 0; j < NJ; j++) mma(sum[j], a[step % 2], b[step % 2][j]);
    }

  double* const out = C + blockIdx.x * BLK_M + warp_m + g + (blockIdx.y * BLK_N + warp_n + 2 * t) * ldc;
#pragma unroll
  for (int j = 0; j < NJ; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) out[e / 2 * 8 + (j * 8 + e % 2) * ldc] = sum[j][e];
}
