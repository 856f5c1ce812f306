// GEMM at the accuracy of FP32 by FP16 tensor cores (Hopper: wgmma, bulk copies).
//
//     C = alpha * op(A) * op(B) + beta * C        op(X) = X, X^T or X^H
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
//
// Every row of op(A) and every column of op(B), a *line*, is multiplied by a power of two, so that its largest element lies
// in [2^14, 2^15), and split into two halves, x = high + low, of 11 bits each (Ootomo and Yokota 2022). Then
//
//     a * b = high_a * high_b + (high_a * low_b + low_a * high_b)        up to 2^-22
//
// Tensor cores truncate where they accumulate, so sums are carried over to FP32 registers every PROMOTE_K steps of k.
// Three phases in one launch, whose blocks take work from counters in the workspace; a block waits for work that others
// have begun, and for nothing else, so that any number of blocks may run at a time:
//
//     scan       the largest element of each line
//     split      lines -> shared memory -> workspace: images of the tiles, swizzled as tensor cores read them
//     multiply   a warpgroup copies images to shared memory; the others multiply
//
// An element of C is computed again, from the operands and in FP32, where the split may have lost more than FP32 would
// have: lines carry a bound of what was lost (elements far below the largest one), and the result must be large against
// it. The same path gives infinities and NaN their IEEE meaning, and computes sums of less than LEAST_K products, whose few
// roundings in FP32 are less than what every product loses here.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or a fact of the problem
// (PRECISION 0 or 2 for S or C; TRANS_A, TRANS_B; CONJ_A, CONJ_B).

#if PRECISION == 0
typedef float T;
constexpr int PARTS = 1;
#else
struct alignas(8) T { float x, y; };
constexpr int PARTS = 2;
#endif
typedef unsigned long long Bits64;

constexpr int WARP = 32;
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = BLK_M / 64;  // warpgroups that multiply 64 rows each; one more copies
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int DEPTH = 16;                                // of a tensor core instruction along k
constexpr int LINE = 128;                                // bytes of a line of an image in a block of it: the swizzled width
constexpr int IMAGE_A = BLK_M * BLK_K * 4 * PARTS;       // bytes of a tile: high and low halves of all parts
constexpr int IMAGE_B = BLK_N * BLK_K * 4 * PARTS;
constexpr int STAGE = IMAGE_A + IMAGE_B;
constexpr int SUMS = BLK_N / 2;                          // sums of a thread, per part
constexpr int ARRIVALS = CONSUMERS * WARPGROUP / WARP * CLUSTER;  // that free a stage
static_assert(BLK_K * PARTS % 32 == 0 && PROMOTE_K % BLK_K == 0, "an image is made of whole blocks, a sum of whole tiles");

// Registers: those of the launch, and what the producer gives to the consumers.
constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int SHARE = (LAUNCH_REGISTERS * THREADS - PRODUCER_REGISTERS * WARPGROUP) / (CONSUMERS * WARPGROUP) / 8 * 8;
constexpr int CONSUMER_REGISTERS = SHARE < 240 ? SHARE : 240;

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }

// Two numbers to two halves, the first in the low bits.
__device__ __forceinline__ unsigned to_halves(float low, float high) {
  unsigned halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
  return halves;
}

__device__ __forceinline__ float from_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Loads of what other blocks have written: past L1.
__device__ __forceinline__ unsigned load_shared_by_blocks(const unsigned* from) { return __ldcg(from); }

__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void pause() { __nanosleep(64); }

__device__ __forceinline__ unsigned warp_ballot(bool value) { return __ballot_sync(0xffffffff, value); }

// Orders ordinary accesses with those of copies and tensor cores.
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }

// -- Barriers in shared memory that count arrivals and bytes.

__device__ __forceinline__ void barrier_init(Bits64* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_expect(Bits64* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Arrive at the barrier at the same place of a block of the cluster.
__device__ __forceinline__ void barrier_arrive(Bits64* barrier, int block) {
#if CLUSTER == 1
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#else
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)), "r"(block) : "memory");
#endif
}

__device__ __forceinline__ void barrier_wait(Bits64* barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

__device__ __forceinline__ void block_or_cluster_sync() {
#if CLUSTER == 1
  __syncthreads();
#else
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ __forceinline__ int cluster_rank() {
#if CLUSTER > 1
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// -- Bulk copies.

// To shared memory; to the same place of all blocks of the cluster if there are several TARGETS.
template <int TARGETS>
__device__ __forceinline__ void bulk_load(void* shared, const void* global, int bytes, Bits64* barrier) {
  if constexpr (TARGETS == 1)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
  else
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<unsigned short>((1 << TARGETS) - 1))
        : "memory");
}

__device__ __forceinline__ void bulk_store(void* global, const void* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until shared memory has been read, for all but the last PENDING groups; or until everything is written.
template <int PENDING>
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory"); }
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// -- Tensor cores.

template <int REGISTERS>
__device__ __forceinline__ void registers_give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS>
__device__ __forceinline__ void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Keeps the compiler from moving a use of `value` across.
__device__ __forceinline__ void hold(float& value) { asm volatile("" : "+f"(value)::"memory"); }

// The operands of the instruction by its width: names of the sums, the sums, names of what follows them.
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_48 NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_64 NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_80 NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_96 NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_112 NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_128 NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_144 NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_160 NAMES_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_176 NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_192 NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_208 NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SUMS_32 EIGHT(0), EIGHT(8)
#define SUMS_48 SUMS_32, EIGHT(16)
#define SUMS_64 SUMS_48, EIGHT(24)
#define SUMS_80 SUMS_64, EIGHT(32)
#define SUMS_96 SUMS_80, EIGHT(40)
#define SUMS_112 SUMS_96, EIGHT(48)
#define SUMS_128 SUMS_112, EIGHT(56)
#define SUMS_144 SUMS_128, EIGHT(64)
#define SUMS_160 SUMS_144, EIGHT(72)
#define SUMS_176 SUMS_160, EIGHT(80)
#define SUMS_192 SUMS_176, EIGHT(88)
#define SUMS_208 SUMS_192, EIGHT(96)
#define REST_32 "%16", "%17", "%18"
#define REST_48 "%24", "%25", "%26"
#define REST_64 "%32", "%33", "%34"
#define REST_80 "%40", "%41", "%42"
#define REST_96 "%48", "%49", "%50"
#define REST_112 "%56", "%57", "%58"
#define REST_128 "%64", "%65", "%66"
#define REST_144 "%72", "%73", "%74"
#define REST_160 "%80", "%81", "%82"
#define REST_176 "%88", "%89", "%90"
#define REST_192 "%96", "%97", "%98"
#define REST_208 "%104", "%105", "%106"
#define EIGHT(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3]), "+f"(d[I + 4]), "+f"(d[I + 5]), "+f"(d[I + 6]), "+f"(d[I + 7])
#define JOIN_(A, B) A##B
#define JOIN(A, B) JOIN_(A, B)
#define TEXT_(A) #A
#define TEXT(A) TEXT_(A)
#define FIRST(A, B, C) A
#define SECOND(A, B, C) B
#define THIRD(A, B, C) C
#define APPLY(F, ...) F(__VA_ARGS__)
#define WGMMA(SIGN)                                                                                                \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " APPLY(THIRD, JOIN(REST_, BLK_N)) ", 0;\n"     \
               "wgmma.mma_async.sync.aligned.m64n" TEXT(BLK_N) "k16.f32.f16.f16 {" JOIN(NAMES_, BLK_N) "}, "       \
               APPLY(FIRST, JOIN(REST_, BLK_N)) ", " APPLY(SECOND, JOIN(REST_, BLK_N)) ", accumulate, " SIGN ", 1, 0, 0;\n}" \
               : JOIN(SUMS_, BLK_N)                                                                                \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))

// d = SIGN * a * b, or d += it: 64 x BLK_N sums, 16 steps of k.
template <int SIGN>
__device__ __forceinline__ void wgmma(float (&d)[SUMS], Bits64 a, Bits64 b, bool accumulate) {
  if constexpr (SIGN > 0)
    WGMMA("1");
  else
    WGMMA("-1");
}

#endif

// Lines of 128 bytes along k, swizzled, in groups of eight.
__device__ __forceinline__ Bits64 describe(const void* shared) {
  return Bits64(1) << 62 | Bits64(1024 / 16) << 32 | Bits64(1) << 16 | (shared_address(shared) & 0x3ffff) / 16;
}

// ---- The workspace.

// What is known of a line of op(A) or op(B): it was multiplied by 2^exponent, and the split lost at most `lost` of the sum
// of its elements so scaled, beyond the 2^-23 of each element that any number in FP32 may lose.
struct alignas(8) Line { int exponent; float lost; };

struct Counters { unsigned claimed[2], done[2], left; };  // units of the scan and of the split

// Counters and maxima of all lines, which are zero between launches; lines, images of A, images of B; lines of A first.
struct Workspace {
  Counters* counters;
  unsigned* maxima;
  Line* lines;
  unsigned char *images_a, *images_b;
  long long all_lines;

  __device__ __forceinline__ Workspace(void* memory, long long panels_m, long long panels_n, long long tiles_k) {
    all_lines = panels_m * BLK_M + panels_n * BLK_N;
    unsigned char* const bytes = static_cast<unsigned char*>(memory);
    counters = static_cast<Counters*>(memory);
    maxima = reinterpret_cast<unsigned*>(bytes + 256);
    unsigned char* const behind = bytes + 256 + (4 * all_lines + 255) / 256 * 256;
    lines = reinterpret_cast<Line*>(behind);
    images_a = behind + (8 * all_lines + 64 + 255) / 256 * 256;  // columns are read ahead beyond the last line
    images_b = images_a + panels_m * tiles_k * IMAGE_A;
  }
};

// ---- Powers of two.

constexpr int LEAST_K = 16;
constexpr unsigned INFINITE = 0x7f800000;  // bits of the first number that is not finite

__device__ __forceinline__ float power_of_two(int exponent) { return float_of(static_cast<unsigned>(exponent + 127) << 23); }

// value * 2^exponent, in two steps: either factor is a normal number.
__device__ __forceinline__ float scale(float value, int exponent) {
  const int most = min(max(exponent, -252), 254), half = most / 2;
  return value * power_of_two(half) * power_of_two(most - half);
}

// The exponent that takes a line's largest element to [2^14, 2^15).
__device__ __forceinline__ int exponent_for(unsigned maximum) {
  if (maximum == 0 || maximum >= INFINITE) return 0;
  if (maximum >= 1u << 23) return 14 + 127 - static_cast<int>(maximum >> 23);
  int exponent = 14 + 149;  // of a denormal number
  while (maximum >>= 1) exponent--;
  return exponent;
}

// ---- Scan and split: one operand.

constexpr int RUN = 8;                                  // elements along k that a thread takes at a time
constexpr int HELD = LOADS / PARTS > 0 ? LOADS / PARTS : 1;  // runs of a thread in flight

struct alignas(16) Sixteen { unsigned at[4]; };
struct alignas(16) Wide { T at[16 / sizeof(T)]; };

// How the elements of a line are scaled: x * first * second. Smaller ones than `limit` (bits) lose something.
struct alignas(16) Scaling { float first, second; unsigned limit, unused; };

// PANEL lines make a tile; K_CONTIGUOUS: consecutive k are neighbours in memory.
template <bool K_CONTIGUOUS, bool CONJUGATE, int PANEL>
struct Side {
  static constexpr int IMAGE = PANEL * BLK_K * 4 * PARTS;
  static constexpr int TILES = THREADS * HELD * RUN / (PANEL * BLK_K) > 0 ? THREADS * HELD * RUN / (PANEL * BLK_K) : 1;  // of a unit of work
  static constexpr int RUNS = TILES * BLK_K / RUN;  // of a line in a unit
  static constexpr int BYTES = TILES * IMAGE;

  const T* X;
  long long ld, count, k;  // lines and steps of k that there are
  bool wide;
  int units_k;

  __device__ __forceinline__ Side(const T* X, long long ld, long long count, long long k, long long tiles_k)
      : X(X), ld(ld), count(count), k(k) {
    wide = K_CONTIGUOUS && ld % (16 / sizeof(T)) == 0 && reinterpret_cast<Bits64>(X) % 16 == 0;
    units_k = static_cast<int>((tiles_k + TILES - 1) / TILES);
  }

  // The i-th run of a unit: which line of the panel, and which run of it. Lanes lie along what is contiguous; eight lanes
  // that store 16 bytes each to an image must not meet in a bank.
  static __device__ __forceinline__ int line_of(int i) {
    if constexpr (K_CONTIGUOUS) {
      const int line = i / RUNS;
      return line / 8 * 8 + line % 2 * 4 + line % 8 / 2;
    }
    return i % PANEL;
  }
  static __device__ __forceinline__ int run_of(int i) { return K_CONTIGUOUS ? i % RUNS : i / PANEL; }

  // What is at `from`: zeros but for the first `there` elements.
  __device__ __forceinline__ void load(T (&run)[RUN], const T* from, int there) const {
    if constexpr (K_CONTIGUOUS) {
      if (wide && there >= RUN) {
        constexpr int EACH = 16 / sizeof(T);
#pragma unroll
        for (int e = 0; e < RUN; e += EACH) {
          const Wide value = *reinterpret_cast<const Wide*>(from + e);
#pragma unroll
          for (int u = 0; u < EACH; u++) run[e + u] = value.at[u];
        }
        return;
      }
    }
#pragma unroll
    for (int e = 0; e < RUN; e++) run[e] = e < there ? from[e * (K_CONTIGUOUS ? 1 : ld)] : T{};
  }

  // A thread's runs of a unit from the `first` one on.
  __device__ __forceinline__ void load_runs(T (&runs)[HELD][RUN], int first, long long line0, long long step0) const {
    const T* const from = X + (K_CONTIGUOUS ? step0 + line0 * ld : line0 + step0 * ld);
    const int lines = static_cast<int>(min(count - line0, static_cast<long long>(PANEL)));
    const int steps = static_cast<int>(min(k - step0, static_cast<long long>(TILES * BLK_K)));
#pragma unroll
    for (int h = 0; h < HELD; h++) {
      const int i = first + h * THREADS, line = line_of(i), step = run_of(i) * RUN;
      if (i < PANEL * RUNS) load(runs[h], from + (K_CONTIGUOUS ? step + line * ld : line + step * ld), line < lines ? steps - step : 0);
    }
  }

  // One unit of work: in phase 0 a scan, in phase 1 a split. Both are here, because what loads is compiled once for both.
  __device__ __forceinline__ void work(int phase, int unit, unsigned* maxima, Line* lines, unsigned char* images, long long tiles_k,
                                       unsigned char* shared, Scaling* scalings) const {
    const int panel = unit / units_k, tile0 = unit % units_k * TILES;
    const long long line0 = static_cast<long long>(panel) * PANEL, step0 = static_cast<long long>(tile0) * BLK_K;
    T runs[HELD][RUN];
    load_runs(runs, threadIdx.x, line0, step0);
    if (phase == 0)
      scan(runs, maxima + line0, lines + line0, line0, step0, reinterpret_cast<unsigned*>(shared));
    else
      split(runs, maxima + line0, lines + line0, line0, step0, images + (panel * tiles_k + tile0) * IMAGE,
            static_cast<int>(min(static_cast<long long>(TILES), tiles_k - tile0)), shared, scalings);
  }

  // The largest elements of the lines of a unit, as bits of their magnitude.
  __device__ __forceinline__ void scan(T (&runs)[HELD][RUN], unsigned* maxima, Line* lines, long long line0, long long step0,
                                       unsigned* largest) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < PANEL; i += THREADS) largest[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int first = threadIdx.x; first < PANEL * RUNS; first += HELD * THREADS) {
      if (first >= HELD * THREADS) load_runs(runs, first, line0, step0);
#pragma unroll
      for (int h = 0; h < HELD; h++) {
        const int i = first + h * THREADS;
        if (i < PANEL * RUNS) {
          unsigned most = 0;
#pragma unroll
          for (int e = 0; e < RUN; e++) {
#if PRECISION == 0
            most = max(most, bits_of(runs[h][e]) & 0x7fffffffu);
#else
            most = max(most, max(bits_of(runs[h][e].x) & 0x7fffffffu, bits_of(runs[h][e].y) & 0x7fffffffu));
#endif
          }
          atomicMax(&largest[line_of(i)], most);
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < PANEL; i += THREADS) {
      atomicMax(&maxima[i], largest[i]);
      if (step0 == 0) lines[i].lost = 0.0f;
    }
    __syncthreads();
  }

  // A unit's lines, scaled and split, to their images.
  __device__ __forceinline__ void split(T (&runs)[HELD][RUN], const unsigned* maxima, Line* lines, long long line0, long long step0,
                                        unsigned char* images, int tiles, unsigned char* shared, Scaling* scalings) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < PANEL; i += THREADS) {
      const unsigned maximum = load_shared_by_blocks(&maxima[i]);
      const int exponent = exponent_for(maximum), half = exponent / 2;
      const bool finite = maximum < INFINITE;
      Scaling& scaling = scalings[i];
      scaling.first = power_of_two(half);
      scaling.second = power_of_two(exponent - half);
      scaling.limit = finite ? bits_of(scale(0.25f, -exponent)) : 0xffffffff;
      if (step0 == 0) {
        lines[i].exponent = exponent;
        if (!finite) atomicAdd(&lines[i].lost, float_of(INFINITE));
      }
    }
    if (threadIdx.x == 0) bulk_wait_read<1>();  // of the two buffers, the one to fill is free
    __syncthreads();
#pragma unroll 1
    for (int first = threadIdx.x; first < PANEL * RUNS; first += HELD * THREADS) {
      if (first >= HELD * THREADS) load_runs(runs, first, line0, step0);
#pragma unroll 1
      for (int h = 0; h < HELD; h++) {  // a loop that stays one, as in store_tile
        const int i = first + h * THREADS;
        if (i < PANEL * RUNS) split_run(runs[0], line_of(i), run_of(i), shared, scalings[line_of(i)], &lines[line_of(i)].lost);
#pragma unroll
        for (int next = 1; next < HELD; next++)
#pragma unroll
          for (int e = 0; e < RUN; e++) runs[next - 1][e] = runs[next][e];
      }
    }
    fence_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(images, shared, tiles * IMAGE);
      bulk_commit();
    }
  }

  // To the images in shared memory. The halves of a line lie in the order [high, low][part][k], 128 bytes to a block.
  static __device__ __forceinline__ void split_run(const T (&run)[RUN], int line, int number, unsigned char* shared, const Scaling& scaling,
                                                   float* lost) {
    const int tile = number * RUN / BLK_K, step = number * RUN % BLK_K;
    float dropped = 0.0f;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      float x[RUN];
      unsigned least = 0xffffffff;
#pragma unroll
      for (int e = 0; e < RUN; e++) {
#if PRECISION == 0
        x[e] = run[e];
#else
        x[e] = part == 0 ? run[e].x : CONJUGATE ? -run[e].y : run[e].y;
#endif
        least = min(least, (bits_of(x[e]) & 0x7fffffffu) - 1);  // zeros lose nothing
      }
      if (scaling.limit == 0xffffffff) {  // the line is not finite
#pragma unroll
        for (int e = 0; e < RUN; e++) x[e] = 0.0f;
      }
      Sixteen high, low;
#pragma unroll
      for (int e = 0; e < RUN; e += 2) {
        x[e] = x[e] * scaling.first * scaling.second;
        x[e + 1] = x[e + 1] * scaling.first * scaling.second;
        high.at[e / 2] = to_halves(x[e], x[e + 1]);
        x[e] -= from_half(static_cast<unsigned short>(high.at[e / 2]));
        x[e + 1] -= from_half(static_cast<unsigned short>(high.at[e / 2] >> 16));
        low.at[e / 2] = to_halves(x[e], x[e + 1]);
      }
      store(shared, tile, line, (0 * PARTS + part) * BLK_K + step, high);
      store(shared, tile, line, (1 * PARTS + part) * BLK_K + step, low);
      if (least < scaling.limit) {  // rare
#pragma unroll
        for (int e = 0; e < RUN; e++) {
          const unsigned short high_bits = static_cast<unsigned short>(high.at[e / 2] >> e % 2 * 16);
          const unsigned short low_bits = static_cast<unsigned short>(low.at[e / 2] >> e % 2 * 16);
#if PRECISION == 0
          const float whole = run[e];
#else
          const float whole = part == 0 ? run[e].x : run[e].y;
#endif
          const float scaled = fabsf(from_half(high_bits) + x[e]);
          float loss = fabsf(x[e] - from_half(low_bits));
          if (whole != 0.0f && scaled < 0x1p-60f) loss = 0x1p-60f;  // it may have vanished by the scaling
          if (loss > 0x1p-23f * scaled) dropped += loss;
        }
      }
    }
    if (dropped > 0.0f) atomicAdd(lost, dropped);
  }

  static __device__ __forceinline__ void store(unsigned char* shared, int tile, int line, int place, const Sixteen& halves) {
    const int chunk = place / RUN;
    unsigned char* const block = shared + tile * IMAGE + chunk / 8 * (PANEL * LINE);
    *reinterpret_cast<Sixteen*>(block + line * LINE + ((chunk % 8) ^ (line % 8)) * 16) = halves;
  }
};

typedef Side<TRANS_A == 1, CONJ_A == 1, BLK_M> SideA;
typedef Side<TRANS_B == 0, CONJ_B == 1, BLK_N> SideB;
constexpr int BUFFER = SideA::BYTES > SideB::BYTES ? SideA::BYTES : SideB::BYTES;
static_assert(2 * BUFFER <= STAGES * STAGE, "two units fit in the stages");

// Gives the block's threads units of work until there are none; returns how many.
template <typename Work>
__device__ __forceinline__ unsigned share(unsigned* counter, int units, unsigned* slot, Work work) {
  unsigned mine = 0, next = 0;
  if (threadIdx.x == 0) next = atomicAdd(counter, 1u);
  for (;;) {
    if (threadIdx.x == 0) *slot = next;
    __syncthreads();
    const unsigned unit = *slot;
    if (unit >= units) return mine;
    if (threadIdx.x == 0) next = atomicAdd(counter, 1u);
    work(static_cast<int>(unit), mine++);
  }
}

// Waits until all blocks together have done `units`, of which this block did `mine`.
__device__ __forceinline__ void wait_for_all(unsigned* done, unsigned mine, int units) {
  __threadfence();
  fence_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(done, mine);
    while (load_acquire(done) < units) pause();
    __threadfence();
  }
  fence_proxy();
  __syncthreads();
}

// ---- Multiply.

// The sums of a thread. It holds of columns 8 j + 2 (lane % 4) + {0, 1} the rows lane / 4 + {0, 8} of its warp's 16.
typedef float Sums[PARTS][SUMS];

__device__ __forceinline__ void multiply_tile(Sums& sums, Bits64 a, Bits64 b, bool accumulate) {
  constexpr int STEPS = BLK_K / DEPTH;
  // In units of 16 bytes; `low` 1: the low halves.
  auto place = [](int panel, int low, int part, int step) {
    const int slot = (low * PARTS + part) * STEPS + step;
    return static_cast<Bits64>((slot / 4 * panel * LINE + slot % 4 * 2 * DEPTH) / 16);
  };
#pragma unroll
  for (int product = 0; product < 3; product++) {  // the small ones first: they lose less while the sum is small
    const int low_a = product == 0, low_b = product == 1;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int q = 0; q < PARTS; q++) {
          const Bits64 from_a = a + place(BLK_M, low_a, p, step), from_b = b + place(BLK_N, low_b, q, step);
          const bool adds = accumulate || product > 0 || step > 0 || p > 0;
          if (p & q)
            wgmma<-1>(sums[p ^ q], from_a, from_b, adds);
          else
            wgmma<1>(sums[p ^ q], from_a, from_b, adds);
        }
  }
}

// The place of a pipeline: which stage, and the parity of its barriers.
struct Place {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The tiles of C, in order: groups of raster_group rows, column by column, as compact as can be. A cluster takes CLUSTER
// tiles, one above the other.
struct Tiles {
  int panels_m, panels_n, all, raster_group;

  __device__ __forceinline__ Tiles(int tiles_m, int tiles_n, int raster_group)
      : panels_m((tiles_m + CLUSTER - 1) / CLUSTER), panels_n(tiles_n), all(panels_m * panels_n), raster_group(min(raster_group, panels_m)) {}

  __device__ __forceinline__ void locate(int number, int& panel_m, int& panel_n) const {
    const int group_tiles = raster_group * panels_n, group = number / group_tiles, within = number % group_tiles;
    const int height = min(raster_group, panels_m - group * raster_group);
    panel_m = (group * raster_group + within % height) * CLUSTER + cluster_rank();
    panel_n = within / height;
  }
};

// ---- The result.

__device__ __forceinline__ bool is_zero(T value) {
#if PRECISION == 0
  return value == 0.0f;
#else
  return value.x == 0.0f && value.y == 0.0f;
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

constexpr int MANY = 8;     // of 16 rows and 8 columns, elements above which all are computed again
constexpr int AT_ONCE = 4;  // steps of k whose loads are in flight then

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

  __device__ __forceinline__ T a_at(long long row, long long step) const { return A[TRANS_A ? step + row * lda : row + step * lda]; }
  __device__ __forceinline__ T b_at(long long step, long long column) const { return B[TRANS_B ? column + step * ldb : step + column * ldb]; }

  static __device__ __forceinline__ void add(T& sum, T a, T b) {
#if PRECISION == 0
    sum += a * b;
#else
    const float ai = CONJ_A ? -a.y : a.y, bi = CONJ_B ? -b.y : b.y;
    sum.x += a.x * b.x;
    sum.x -= ai * bi;
    sum.y += a.x * bi;
    sum.y += ai * b.x;
#endif
  }

  // One element in FP32, by a warp.
  __device__ __forceinline__ T element(long long row, long long column) const {
    T sum{};
#pragma unroll 1
    for (long long first = threadIdx.x % WARP; first < k; first += AT_ONCE * WARP) {
      T a[AT_ONCE], b[AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        const long long step = first + u * WARP;
        a[u] = step < k ? a_at(row, step) : T{};
        b[u] = step < k ? b_at(step, column) : T{};
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) add(sum, a[u], b[u]);
    }
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
#if PRECISION == 0
      sum += __shfl_xor_sync(0xffffffff, sum, distance);
#else
      sum.x += __shfl_xor_sync(0xffffffff, sum.x, distance);
      sum.y += __shfl_xor_sync(0xffffffff, sum.y, distance);
#endif
    }
    return sum;
  }

  // Computes in FP32 what is `wrong`, a bit for each value, of a warp's 16 rows and 8 columns.
  __device__ __forceinline__ void correct(T (&values)[4], unsigned wrong, long long row0, long long column0) const {
    const int lane = threadIdx.x % WARP;
    int count = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) count += __popc(warp_ballot(wrong >> i & 1));
    if (count > MANY) {  // all of them, each thread its own; those outside of C mean nothing
      const long long rows[2] = {min(row0 + lane / 4, m - 1), min(row0 + lane / 4 + 8, m - 1)};
      const long long columns[2] = {min(column0 + lane % 4 * 2, n - 1), min(column0 + lane % 4 * 2 + 1, n - 1)};
#pragma unroll
      for (int i = 0; i < 4; i++) values[i] = T{};
#pragma unroll 1
      for (long long first = 0; first < k; first += AT_ONCE) {
        T a[AT_ONCE][2], b[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; i++) {
          const long long step = first + i / 2;
          a[i / 2][i % 2] = step < k ? a_at(rows[i % 2], step) : T{};
          b[i / 2][i % 2] = step < k ? b_at(step, columns[i % 2]) : T{};
        }
#pragma unroll
        for (int i = 0; i < 4 * AT_ONCE; i++) add(values[i % 4], a[i / 4][i % 4 / 2], b[i / 4][i % 2]);
      }
    } else {  // one by one
#pragma unroll 1
      for (int i = 0; i < 4; i++) {
        unsigned lanes = warp_ballot(wrong >> i & 1);
#pragma unroll 1
        for (int other = 0; lanes != 0; other++, lanes >>= 1)
          if (lanes & 1) {
            const T value = element(row0 + other / 4 + i / 2 * 8, column0 + other % 4 * 2 + i % 2);
#pragma unroll
            for (int e = 0; e < 4; e++)
              if (e == i && lane == other) values[e] = value;
          }
      }
    }
  }
};

constexpr int CHUNK = SUMS % 16 == 0 ? 16 : 8;  // sums of a thread, per part, that are moved at a time

// A warp's part of a tile: 16 rows from `row0`, BLK_N columns from `column0`. Eight columns at a time, by loops that stay loops,
// because unrolled they take seconds to compile. Registers have no index: sums move to those that are read, by chunks.
__device__ __forceinline__ void store_tile(const Sums& sums, const Product& product, const Line* lines_a, const Line* lines_b, long long row0,
                                           long long column0) {
  const int lane = threadIdx.x % WARP;
  const long long row = row0 + lane / 4;
  const Line of_row[2] = {lines_a[row], lines_a[row + 8]};
  Line next[2] = {lines_b[column0 + lane % 4 * 2], lines_b[column0 + lane % 4 * 2 + 1]};
  const bool adds = !is_zero(product.beta), all_wrong = product.k < LEAST_K;  // without any products, nobody wrote the lines
#pragma unroll 1
  for (int chunk = 0; chunk < SUMS; chunk += CHUNK) {
    float mine[PARTS][CHUNK];
#pragma unroll
    for (int c = 0; c < SUMS; c += CHUNK)
      if (c == chunk) {
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int i = 0; i < CHUNK; i++) mine[p][i] = sums[p][c + i];
      }
#pragma unroll 1
    for (int j = 0; j < CHUNK; j += 4) {
      const long long column1 = column0 + (chunk + j) * 2, column = column1 + lane % 4 * 2;
      const Line of_column[2] = {next[0], next[1]};
      next[0] = lines_b[column + 8];  // those of the next columns, early; behind the last there is room
      next[1] = lines_b[column + 9];
      T* const to = product.C + row + column * product.ldc;
      bool there[4];
      T values[4], old[4] = {};
      unsigned wrong = 0;  // too small against what the split has lost, or not finite
#pragma unroll
      for (int i = 0; i < 4; i++) {
        there[i] = row + i / 2 * 8 < product.m && column + i % 2 < product.n;
        if (adds && there[i]) old[i] = to[i / 2 * 8 + i % 2 * product.ldc];
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int exponent = -(of_row[i / 2].exponent + of_column[i % 2].exponent);
        const float least = 0x1p35f * (of_row[i / 2].lost + of_column[i % 2].lost);
        float size = fabsf(mine[0][i]);
#if PRECISION == 0
        values[i] = scale(mine[0][i], exponent);
#else
        values[i] = T{scale(mine[0][i], exponent), scale(mine[1][i], exponent)};
        const float other = fabsf(mine[1][i]);
        size = size + other < float_of(INFINITE) ? max(size, other) : float_of(INFINITE);
#endif
        if (there[i] && (all_wrong || !(size >= least && size < float_of(INFINITE)))) wrong |= 1u << i;
      }
      if (warp_ballot(wrong != 0) != 0) product.correct(values, wrong, row0, column1);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const T value = scaled(product.alpha, values[i]);
        if (there[i]) to[i / 2 * 8 + i % 2 * product.ldc] = adds ? plus_scaled(value, product.beta, old[i]) : value;
      }
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i + 4 < CHUNK; i++) mine[p][i] = mine[p][i + 4];
    }
  }
}

// ---- The kernel.

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, 1)
gemm(long long m, long long n, long long k, T alpha, const T* A, long long lda, const T* B, long long ldb, T beta, T* C,
     long long ldc, int raster_group, void* memory) {
  extern __shared__ __align__(1024) unsigned char shared_storage[];
  Scaling* const scalings = reinterpret_cast<Scaling*>(shared_storage + STAGES * STAGE);
  Bits64* const full = reinterpret_cast<Bits64*>(scalings + max(BLK_M, BLK_N));
  Bits64* const empty = full + STAGES;
  unsigned* const slot = reinterpret_cast<unsigned*>(empty + STAGES);

  const long long depth = is_zero(alpha) ? 0 : k;
  const int panels_m = static_cast<int>((m + BLK_M - 1) / BLK_M), panels_n = static_cast<int>((n + BLK_N - 1) / BLK_N);
  const int tiles_k = static_cast<int>((depth + PROMOTE_K - 1) / PROMOTE_K * (PROMOTE_K / BLK_K));
  if (panels_m == 0 || panels_n == 0) return;
  const Workspace workspace(memory, panels_m, panels_n, tiles_k);
  Line* const lines_b = workspace.lines + static_cast<long long>(panels_m) * BLK_M;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], ARRIVALS);
    }
    barrier_init_fence();
  }

  if (tiles_k > 0) {
    const SideA a(A, lda, m, k, tiles_k);
    const SideB b(B, ldb, n, k, tiles_k);
    unsigned* const maxima_b = workspace.maxima + static_cast<long long>(panels_m) * BLK_M;
    const int units_a = panels_m * a.units_k, units = units_a + panels_n * b.units_k;
    Counters& counters = *workspace.counters;
#pragma unroll 1
    for (int phase = 0; phase < 2; phase++) {
      const unsigned finished = share(&counters.claimed[phase], units, slot, [&](int claimed, unsigned mine) {
        const int unit = phase == 0 ? claimed : units - 1 - claimed;  // backwards: what was read last is still in the cache
        unsigned char* const buffer = shared_storage + mine % 2 * BUFFER;
        if (unit < units_a)
          a.work(phase, unit, workspace.maxima, workspace.lines, workspace.images_a, tiles_k, buffer, scalings);
        else
          b.work(phase, unit - units_a, maxima_b, lines_b, workspace.images_b, tiles_k, buffer, scalings);
      });
      if (threadIdx.x == 0) bulk_wait();
      wait_for_all(&counters.done[phase], finished, units);
    }

    // The workspace as the next launch expects it.
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < workspace.all_lines; i += static_cast<long long>(gridDim.x) * THREADS)
      workspace.maxima[i] = 0;
    if (threadIdx.x == 0 && atomicAdd(&counters.left, 1u) == gridDim.x - 1)
      counters = Counters{};  // all blocks have read them
  }
  block_or_cluster_sync();

  const Tiles tiles(panels_m, panels_n, raster_group);
  const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
  const int warpgroup = threadIdx.x / WARPGROUP;
  if (warpgroup == CONSUMERS) {  // the producer
    registers_give<PRODUCER_REGISTERS>();
    if (threadIdx.x == CONSUMERS * WARPGROUP) {
      Place place;
      for (int number = cluster; number < tiles.all; number += clusters) {
        int panel_m, panel_n;
        tiles.locate(number, panel_m, panel_n);
        const unsigned char* from_a = workspace.images_a + static_cast<long long>(min(panel_m, panels_m - 1)) * tiles_k * IMAGE_A;
        const unsigned char* from_b = workspace.images_b + static_cast<long long>(panel_n) * tiles_k * IMAGE_B;
#pragma unroll 1
        for (int tile = 0; tile < tiles_k; tile++) {
          unsigned char* const stage = shared_storage + place.stage * STAGE;
          barrier_wait(&empty[place.stage], place.parity ^ 1);
          barrier_expect(&full[place.stage], STAGE);
          bulk_load<1>(stage, from_a, IMAGE_A, &full[place.stage]);
          constexpr int PIECE = IMAGE_B / CLUSTER;  // a share, to all
          const int offset = cluster_rank() * PIECE;
          bulk_load<CLUSTER>(stage + IMAGE_A + offset, from_b + offset, PIECE, &full[place.stage]);
          from_a += IMAGE_A;
          from_b += IMAGE_B;
          place.next();
        }
      }
    }
  } else {
    registers_take<CONSUMER_REGISTERS>();
    const int lane = threadIdx.x % WARP;
    const Bits64 from_a = describe(shared_storage + warpgroup * 64 * LINE), from_b = describe(shared_storage + IMAGE_A);
    const Product product{m, n, depth, alpha, A, lda, B, ldb, beta, C, ldc};
    auto release = [&](int stage) {
      if (lane < CLUSTER) barrier_arrive(&empty[stage], lane);
    };
    Place place;
#pragma unroll 1
    for (int number = cluster; number < tiles.all; number += clusters) {
      Sums totals, sums;
#pragma unroll
      for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) totals[p][i] = sums[p][i] = 0.0f;  // without a value, `sums` would keep its registers
#pragma unroll 1
      for (int tile = 0; tile < tiles_k; tile += PROMOTE_K / BLK_K) {
        int last = 0;
#pragma unroll 1  // a tile's instructions, with all their registers, are slow to compile
        for (int t = 0; t < PROMOTE_K / BLK_K; t++) {
          barrier_wait(&full[place.stage], place.parity);
#pragma unroll
          for (int p = 0; p < PARTS; p++)
#pragma unroll
            for (int i = 0; i < SUMS; i++) hold(sums[p][i]);
          wgmma_fence();
          const Bits64 offset = static_cast<Bits64>(place.stage * (STAGE / 16));
          multiply_tile(sums, from_a + offset, from_b + offset, t > 0);
          wgmma_commit();
          if (t > 0) {
            wgmma_wait<1>();
            release(last);
          }
          last = place.stage;
          place.next();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int i = 0; i < SUMS; i++) hold(sums[p][i]);
        release(last);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int i = 0; i < SUMS; i++) totals[p][i] += sums[p][i];
      }
      int panel_m, panel_n;
      tiles.locate(number, panel_m, panel_n);
      store_tile(totals, product, workspace.lines, lines_b, static_cast<long long>(panel_m) * BLK_M + threadIdx.x / WARP * 16,
                 static_cast<long long>(panel_n) * BLK_N);
    }
  }
  if (CLUSTER > 1) block_or_cluster_sync();  // a block that has ended would not take arrivals
}
