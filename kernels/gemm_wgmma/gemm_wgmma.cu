// GEMM of operands in half precision or FP8, with sums in FP32 and a result in half precision or FP32, on the tensor cores of Hopper
// (wgmma, tensor maps).
//
//     C = activation(alpha * op(A) * op(B) * scales + beta * C + bias)        op(X) = X or X^T
//
// Column-major with leading dimensions, BLAS meaning: beta = 0 never reads C, alpha = 0 never reads A and B, m, n, k >= 0.
//
// A block stays on its multiprocessor and takes one tile of C after the other. One of its warpgroups copies tiles of A and
// B to shared memory, where they lie as tensor cores read them, swizzled; the others multiply. They make TEAMS teams with
// a tile of C each, taken in turns: with two teams, one multiplies while the other stores its result.
//
// Tiles are copied by tensor maps, which fill with zeros what lies outside a matrix. A launch brings them; of what is packed, and of
// batches, every block makes its own in the workspace, which takes a microsecond. The tiles of all products of a batch are taken one
// after the other, so a block needs its maps and its start once.
// A cluster has CLUSTER by CLUSTER_N blocks: those one above the other share a tile of B, those side by side one of A, of which each
// copies a part to all.
//
// The copy engine reads from multiples of 16 bytes only. If an operand's address, leading dimension or stride is none, threads
// copy both operands: they bring the aligned chunks of 16 bytes that cover a line, asynchronously, and later shift each line
// by the elements that its first chunk begins early. A line takes one chunk more than its elements, for which a tile leaves
// room: of its BLK_K steps some are zero.
//
// With PACK all blocks first pack such operands into the workspace, where lines begin at multiples of 16 bytes, and tensor maps
// copy from there. Blocks take units of this work from a counter until none is left, so a block waits only for units that a
// running block has taken: it does not matter how many blocks run at a time, or in which order.
//
// With SPLIT_K parts of k, or gridDim.y if it is 0, a tile of C is computed in as many pieces. Their sums meet in the workspace, where the warp that
// comes last adds them up in the order of the parts: the result has the same bits in every run, and nobody waits.
//
// Tensor cores keep some 14 bits of a sum of FP8 products. With PROMOTES the sums of every 128 steps of k begin at zero, and are
// added to sums in FP32; with EPILOGUE_SCALES 2 they are multiplied by the factors of these steps before.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or a fact of the problem
// (PRECISION 4 or 5 for FP16 or BF16, 7 or 8 if C is of that type, too; 9 to 11 for FP8 with C in BF16, FP16 or FP32,
// 12 for the first of these without promotion, 13 to 16 and 17 to 20 for the same with B or A in E5M2 and not in E4M3; TRANS_A, TRANS_B; BATCHED, of many products; EPILOGUE_SCALES, a factor of each
// row and one of each column (1), or for every 128 steps of k one of each 128 rows and one of each column (2), EPILOGUE_BIAS, along m (1) or n (2), and EPILOGUE_ACTIVATION, where there is one).

#define IS_FP8 (PRECISION >= 9)
#define OF_FP8 (IS_FP8 ? (PRECISION - 9) % 4 : -1)  // 0 to 3 in the order above
#define IS_FP16 (PRECISION == 4 || PRECISION == 7 || OF_FP8 == 1)  // not BF16
#define IS_HALF_RESULT (PRECISION >= 7 && OF_FP8 != 2)
#define PROMOTES (IS_FP8 && OF_FP8 != 3)
#ifndef EPILOGUE_BIAS
#define EPILOGUE_SCALES 0
#define EPILOGUE_BIAS 0
#define EPILOGUE_ACTIVATION 0
#endif

// With SWAP the product is C^T = op(B)^T op(A)^T, from here on: what is called A is the caller's B, m its n, and so on. Only the
// stores differ.
#if SWAP
#define A_ALONG_K (1 - TRANS_B)  // whether lines of an operand lie along k
#define B_ALONG_K TRANS_A
#define BIAS ((3 - EPILOGUE_BIAS) % 3)
#else
#define A_ALONG_K TRANS_A
#define B_ALONG_K (1 - TRANS_B)
#define BIAS EPILOGUE_BIAS
#endif

typedef unsigned short Half;  // the bits of a number
#if IS_FP8
typedef unsigned char Input;  // of A or B
#else
typedef Half Input;
#endif
#if IS_HALF_RESULT
typedef Half Element;  // of C
#else
typedef float Element;
#endif
typedef unsigned long long Bits64;

constexpr int WARP = 32;
constexpr int WARPGROUP = 128;
constexpr int ELEMENT_BYTES = sizeof(Input);  // of an element of A or B
constexpr int GROUPS = BLK_M / WG_M;         // warpgroups of a team
constexpr int CONSUMERS = GROUPS * TEAMS;    // warpgroups that multiply; one more copies
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int DEPTH = 32 / ELEMENT_BYTES;    // of a tensor core instruction along k
constexpr int PROMOTED = 128;                // steps of k whose sums are added to those in FP32
constexpr int HIGH = 64;                     // rows of an instruction
constexpr int LINE = 128;                    // bytes of a line in shared memory: the swizzled width
constexpr int PER_LINE = LINE / ELEMENT_BYTES;  // elements
constexpr int CHUNK = 16 / ELEMENT_BYTES;    // elements of 16 bytes: what the swizzle moves
constexpr int CHUNKS = PER_LINE / CHUNK;     // of a line
constexpr int INSTRUCTIONS = WG_M / HIGH;    // of a warpgroup for DEPTH steps of k
constexpr int SUMS = BLK_N / 2;              // sums of a thread, per instruction
constexpr int WARPS = GROUPS * WARPGROUP / WARP;  // of a team
constexpr int ARRIVALS = WARPS * (CLUSTER + CLUSTER_N - 1);  // that free a stage: of all blocks that a block copies to

// Where threads copy: steps of k of a tile that are not zero. A line along k has one chunk for its last elements; lines along m
// or n have theirs in the place of an eighth of the lines.
constexpr bool ALONG_K = A_ALONG_K && B_ALONG_K;  // lines of both operands
constexpr int STEPS = ALONG_K ? BLK_K - CHUNK : BLK_K / 8 * 7;
constexpr int AHEAD = STAGES - 2;  // tiles that they copy ahead: a stage is free when the tile after its own is complete
static_assert(BLK_M % WG_M == 0 && WG_M % HIGH == 0 && BLK_K % PER_LINE == 0, "tiles are made of whole instructions");
static_assert(BLK_N % CHUNK == 0, "lines of all tiles begin as far from multiples of 16 bytes");

// Registers: those of the launch, and what the producer gives to the consumers.
constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int SHARE = (LAUNCH_REGISTERS * THREADS - PRODUCER_REGISTERS * WARPGROUP) / (CONSUMERS * WARPGROUP) / 8 * 8;
constexpr int MOST_SHARED = 232448;  // bytes of a block
constexpr int CONSUMER_REGISTERS = SHARE < 240 ? SHARE : 240;

// Describes a matrix to the copy engine.
struct alignas(128) TensorMap { unsigned words[32]; };

// Sums that are moved as one.
struct alignas(16) Four { float of[4]; };

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

template <typename V>
__device__ __forceinline__ V load_global(const V* from) { return *from; }
template <typename V>
__device__ __forceinline__ void store_global(V* to, const V& value) {
  if constexpr (sizeof(V) == 16) {  // the compiler would make four stores where it keeps the words apart
    const unsigned* const word = reinterpret_cast<const unsigned*>(&value);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]) : "memory");
  } else {
    *to = value;
  }
}

// Brings what will be loaded to L2.
__device__ __forceinline__ void prefetch(const float* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Loads what other blocks have written: past L1.
__device__ __forceinline__ Four load_shared_by_blocks(const Four* from) {
  const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
  return {four.x, four.y, four.z, four.w};
}

// Copies 16 bytes, of which the first `valid` are read; the others are zero.
template <int BYTES>
__device__ __forceinline__ void cp_async_part(void* shared, const void* global, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global), "n"(BYTES), "r"(valid)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Loads what another block has published, and what that has written before.
__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Publishes what the thread has written, and what others had before it knew of them.
__device__ __forceinline__ unsigned add_release(unsigned* to, unsigned value) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ void pause() { __nanosleep(32); }

// Orders ordinary accesses to global memory with those of the copy engine.
__device__ __forceinline__ void fence_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Orders ordinary stores to shared memory before the reads of tensor cores.
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// -- Barriers in shared memory that count arrivals and bytes.

__device__ __forceinline__ void barrier_init(Bits64* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_expect(Bits64* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Bits64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrive at the barrier at the same place of a block of the cluster.
__device__ __forceinline__ void barrier_arrive(Bits64* barrier, int block) {
#if CLUSTER * CLUSTER_N == 1
  barrier_arrive(barrier);
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

// Waits for all threads of a cluster of several blocks. Released, so that arrivals at barriers of another block are there before it ends.
__device__ __forceinline__ void cluster_sync() {
#if CLUSTER * CLUSTER_N > 1
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ __forceinline__ int cluster_rank() {
#if CLUSTER * CLUSTER_N == 1
  return 0;
#else
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}

// -- Tensor maps.

// The thread's number, read anew, so that nothing made from it is kept in registers in between.
__device__ __forceinline__ unsigned thread_again() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

#define REPLACE_32(FIELD, VALUE) \
  asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024.b32 [%0], " VALUE ";" ::"l"(at) : "memory")
#define REPLACE_32_OF(FIELD, INDEX, VALUE) \
  asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024.b32 [%0], " INDEX ", %1;" ::"l"(at), "r"(VALUE) : "memory")

#ifdef BATCHED
#define DIMENSIONS "3d"
#define AT "{%2, %3, %4}"
#else
#define DIMENSIONS "2d"
#define AT "{%2, %3}"
#endif

// Describes `outer` lines of `inner` contiguous elements of some bytes, of which `box_outer` by a LINE are copied at a time, and of
// a batch so many products. A whole warp calls it; the map is made in shared memory and published in global memory.
template <typename T>
__device__ __forceinline__ void make_map(TensorMap* map, TensorMap* shared, const T* X, unsigned inner, unsigned outer, Bits64 ld,
                                         int box_outer, unsigned products, Bits64 stride) {
  const int lane = threadIdx.x % WARP;
  shared->words[lane] = 0;
  __syncwarp();
  if (lane == 0) {
    const Bits64 at = __cvta_generic_to_shared(shared);
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"l"(at), "l"(X) : "memory");
#ifdef BATCHED
    REPLACE_32("rank", "2");  // less one
    REPLACE_32_OF("box_dim", "2", 1);
    REPLACE_32_OF("global_dim", "2", products);
    asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 1, %1;" ::"l"(at), "l"(stride * sizeof(T))
                 : "memory");
    REPLACE_32_OF("element_stride", "2", 1);
#else
    REPLACE_32("rank", "1");
#endif
    REPLACE_32_OF("box_dim", "0", LINE / static_cast<int>(sizeof(T)));
    REPLACE_32_OF("box_dim", "1", box_outer);
    REPLACE_32_OF("global_dim", "0", inner);
    REPLACE_32_OF("global_dim", "1", outer);
    asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"l"(at), "l"(ld * sizeof(T)) : "memory");
    REPLACE_32_OF("element_stride", "0", 1);
    REPLACE_32_OF("element_stride", "1", 1);
    if constexpr (sizeof(T) == 1)
      REPLACE_32("elemtype", "0");  // bytes
    else if constexpr (IS_FP16)
      REPLACE_32("elemtype", "6");
    else
      REPLACE_32("elemtype", "10");  // BF16
    REPLACE_32("interleave_layout", "0");
    REPLACE_32("swizzle_mode", "3");  // 128 bytes
    REPLACE_32("fill_mode", "0");     // zeros
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::"l"(map),
               "r"(shared_address(shared))
               : "memory");
}

// Brings a map of the launch nearer.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// By a thread that copies, before its first copy, of a map that was made.
__device__ __forceinline__ void acquire_map(const TensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// To shared memory; to the same place of those blocks of the cluster that share the tile, by their bits, if there are several.
template <int TARGETS>
__device__ __forceinline__ void copy_box(void* shared, const TensorMap* map, int inner, int outer, int product, Bits64* barrier, int targets) {
  if constexpr (TARGETS == 1)
    asm volatile("cp.async.bulk.tensor." DIMENSIONS ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, " AT "], [%5];" ::"r"(
                     shared_address(shared)),
                 "l"(map), "r"(inner), "r"(outer), "r"(product), "r"(shared_address(barrier))
                 : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor." DIMENSIONS
        ".shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, " AT "], [%5], %6;" ::"r"(
            shared_address(shared)),
        "l"(map), "r"(inner), "r"(outer), "r"(product), "r"(shared_address(barrier)), "h"(static_cast<unsigned short>(targets))
        : "memory");
}

// From shared memory; what lies outside of the matrix is left out. Copies of a thread are groups, of which it waits for all to have been read.
__device__ __forceinline__ void store_box(const TensorMap* map, const void* shared, int inner, int outer, int product) {
  asm volatile("cp.async.bulk.tensor." DIMENSIONS ".global.shared::cta.bulk_group [%0, " AT "], [%1];\n"
               "cp.async.bulk.commit_group;" ::"l"(map),
               "r"(shared_address(shared)), "r"(inner), "r"(outer), "r"(product)
               : "memory");
}
__device__ __forceinline__ void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// -- Tensor cores.

// Two elements of C, rounded to the nearest even, the first in the lower half of the word.
__device__ __forceinline__ unsigned rounded(float low, float high) {
  unsigned two;
#if IS_FP16
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
#endif
  return two;
}

__device__ __forceinline__ float widened(Half element) {
  float value;
#if IS_FP16
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
#else
  asm("mov.b32 %0, {%1, %2};" : "=f"(value) : "h"(Half(0)), "h"(element));
#endif
  return value;
}

// Two matrices of 8 x 8 elements in half precision, to lines in shared memory and from there: thread 4 i + j has of row i the columns 2 j
// and 2 j + 1, and thread 8 l + i < 16 the place of line i of matrix l. Lines are columns or, with SWAP, rows.
#if SWAP
#define LINES_ARE_COLUMNS ""
#else
#define LINES_ARE_COLUMNS ".trans"
#endif
__device__ __forceinline__ void store_matrices(void* shared, unsigned first, unsigned second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2" LINES_ARE_COLUMNS ".shared.b16 [%0], {%1, %2};" ::"r"(shared_address(shared)), "r"(first),
               "r"(second)
               : "memory");
}
__device__ __forceinline__ void load_matrices(const void* shared, unsigned (&two)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2" LINES_ARE_COLUMNS ".shared.b16 {%0, %1}, [%2];"
               : "=r"(two[0]), "=r"(two[1])
               : "r"(shared_address(shared))
               : "memory");
}

// Nearly e^x and x / y.
__device__ __forceinline__ float exponential(float x) { return __expf(x); }
__device__ __forceinline__ float quotient(float x, float y) { return __fdividef(x, y); }

// Waits for so many threads of whole warps at the barrier of a number; 0 is that of the block.
template <int THREADS_THERE>
__device__ __forceinline__ void meet(int number) { asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS_THERE) : "memory"); }

// Nor what is made from `value`.
__device__ __forceinline__ void forget(long long& value) { asm volatile("" : "+l"(value)); }
__device__ __forceinline__ void forget(int& value) { asm volatile("" : "+r"(value)); }

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

// The operands of the instruction by its width: names of the sums, and the sums. Behind them the numbers of names would depend on
// the width, so descriptions are before them, as if they were changed.
#define NAMES_8 "%2, %3, %4, %5"
#define NAMES_16 NAMES_8 ", %6, %7, %8, %9"
#define NAMES_24 NAMES_16 ", %10, %11, %12, %13"
#define NAMES_32 NAMES_24 ", %14, %15, %16, %17"
#define NAMES_40 NAMES_32 ", %18, %19, %20, %21"
#define NAMES_48 NAMES_40 ", %22, %23, %24, %25"
#define NAMES_56 NAMES_48 ", %26, %27, %28, %29"
#define NAMES_64 NAMES_56 ", %30, %31, %32, %33"
#define NAMES_72 NAMES_64 ", %34, %35, %36, %37"
#define NAMES_80 NAMES_72 ", %38, %39, %40, %41"
#define NAMES_88 NAMES_80 ", %42, %43, %44, %45"
#define NAMES_96 NAMES_88 ", %46, %47, %48, %49"
#define NAMES_104 NAMES_96 ", %50, %51, %52, %53"
#define NAMES_112 NAMES_104 ", %54, %55, %56, %57"
#define NAMES_120 NAMES_112 ", %58, %59, %60, %61"
#define NAMES_128 NAMES_120 ", %62, %63, %64, %65"
#define NAMES_136 NAMES_128 ", %66, %67, %68, %69"
#define NAMES_144 NAMES_136 ", %70, %71, %72, %73"
#define NAMES_152 NAMES_144 ", %74, %75, %76, %77"
#define NAMES_160 NAMES_152 ", %78, %79, %80, %81"
#define NAMES_168 NAMES_160 ", %82, %83, %84, %85"
#define NAMES_176 NAMES_168 ", %86, %87, %88, %89"
#define NAMES_184 NAMES_176 ", %90, %91, %92, %93"
#define NAMES_192 NAMES_184 ", %94, %95, %96, %97"
#define NAMES_200 NAMES_192 ", %98, %99, %100, %101"
#define NAMES_208 NAMES_200 ", %102, %103, %104, %105"
#define NAMES_216 NAMES_208 ", %106, %107, %108, %109"
#define NAMES_224 NAMES_216 ", %110, %111, %112, %113"
#define NAMES_232 NAMES_224 ", %114, %115, %116, %117"
#define NAMES_240 NAMES_232 ", %118, %119, %120, %121"
#define NAMES_248 NAMES_240 ", %122, %123, %124, %125"
#define NAMES_256 NAMES_248 ", %126, %127, %128, %129"
#define SUMS_8 FOUR(0)
#define SUMS_16 SUMS_8, FOUR(4)
#define SUMS_24 SUMS_16, FOUR(8)
#define SUMS_32 SUMS_24, FOUR(12)
#define SUMS_40 SUMS_32, FOUR(16)
#define SUMS_48 SUMS_40, FOUR(20)
#define SUMS_56 SUMS_48, FOUR(24)
#define SUMS_64 SUMS_56, FOUR(28)
#define SUMS_72 SUMS_64, FOUR(32)
#define SUMS_80 SUMS_72, FOUR(36)
#define SUMS_88 SUMS_80, FOUR(40)
#define SUMS_96 SUMS_88, FOUR(44)
#define SUMS_104 SUMS_96, FOUR(48)
#define SUMS_112 SUMS_104, FOUR(52)
#define SUMS_120 SUMS_112, FOUR(56)
#define SUMS_128 SUMS_120, FOUR(60)
#define SUMS_136 SUMS_128, FOUR(64)
#define SUMS_144 SUMS_136, FOUR(68)
#define SUMS_152 SUMS_144, FOUR(72)
#define SUMS_160 SUMS_152, FOUR(76)
#define SUMS_168 SUMS_160, FOUR(80)
#define SUMS_176 SUMS_168, FOUR(84)
#define SUMS_184 SUMS_176, FOUR(88)
#define SUMS_192 SUMS_184, FOUR(92)
#define SUMS_200 SUMS_192, FOUR(96)
#define SUMS_208 SUMS_200, FOUR(100)
#define SUMS_216 SUMS_208, FOUR(104)
#define SUMS_224 SUMS_216, FOUR(108)
#define SUMS_232 SUMS_224, FOUR(112)
#define SUMS_240 SUMS_232, FOUR(116)
#define SUMS_248 SUMS_240, FOUR(120)
#define SUMS_256 SUMS_248, FOUR(124)
#define FOUR(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define JOIN_(A, B) A##B
#define JOIN(A, B) JOIN_(A, B)
#define TEXT_(A) #A
#define TEXT(A) TEXT_(A)
#if IS_FP8
#if PRECISION < 13
#define OPERANDS "k32.f32.e4m3.e4m3"
#elif (PRECISION < 17) == (SWAP == 0)
#define OPERANDS "k32.f32.e4m3.e5m2"
#else
#define OPERANDS "k32.f32.e5m2.e4m3"
#endif
#elif IS_FP16
#define OPERANDS "k16.f32.f16.f16"
#else
#define OPERANDS "k16.f32.bf16.bf16"
#endif
#if A_ALONG_K
#define IS_TRANSPOSED_A 0
#else
#define IS_TRANSPOSED_A 1
#endif
#if B_ALONG_K
#define IS_TRANSPOSED_B 0
#else
#define IS_TRANSPOSED_B 1
#endif
#if IS_FP8
#define TRANSPOSED ""
#else
#define TRANSPOSED ", " TEXT(IS_TRANSPOSED_A) ", " TEXT(IS_TRANSPOSED_B)
#endif
#define WGMMA(ACCUMULATES)                                                                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" TEXT(BLK_N) OPERANDS " {" JOIN(NAMES_, BLK_N) "}, %0, %1, " ACCUMULATES ", 1, 1" TRANSPOSED ";" \
               : "+l"(a), "+l"(b), JOIN(SUMS_, BLK_N))

// d += a * b, or d = a * b: 64 x BLK_N sums, DEPTH steps of k. Lines lie along k, or, transposed, along the other index.
template <bool TRANSPOSES_A, bool TRANSPOSES_B, bool ACCUMULATES = true>
__device__ __forceinline__ void wgmma(float (&d)[SUMS], Bits64 a, Bits64 b) {
  static_assert(TRANSPOSES_A == IS_TRANSPOSED_A && TRANSPOSES_B == IS_TRANSPOSED_B, "as the text of the instruction says");
  static_assert(!IS_FP8 || !(TRANSPOSES_A || TRANSPOSES_B), "lines of FP8 lie along k");
  if constexpr (ACCUMULATES)
    WGMMA("1");
  else
    WGMMA("0");
}

#endif

// The place of an operand: lines of 128 bytes, swizzled, in groups of eight. `leading`: bytes from one line's block to the
// next along m or n, where that is the contiguous index.
__device__ __forceinline__ Bits64 describe(const void* shared, int leading) {
  return Bits64(1) << 62 | Bits64(8 * LINE / 16) << 32 | Bits64(leading / 16) << 16 | (shared_address(shared) & 0x3ffff) / 16;
}

// ---- Copies of one operand.

// Whether the copy engine can copy from a matrix, or to it.
template <typename T>
__device__ __forceinline__ bool is_aligned(const T* X, long long ld, long long stride) {
  constexpr int CHUNK = 16 / sizeof(T);
  return ld % CHUNK == 0 && stride % CHUNK == 0 && reinterpret_cast<Bits64>(X) % 16 == 0;
}

// PANEL lines of op(X) by BLK_K steps of k are an image: blocks of lines of 128 bytes that lie along the contiguous index.
// SHARES: blocks of a cluster that copy a part each.
template <bool K_CONTIGUOUS, int PANEL, int SHARES>
struct Operand {
  static constexpr int BLOCKS = K_CONTIGUOUS ? BLK_K / PER_LINE : (PANEL + PER_LINE - 1) / PER_LINE;
  static constexpr int LINES = K_CONTIGUOUS ? PANEL : BLK_K;  // of a block
  static constexpr int BLOCK = LINES * LINE;                  // bytes
  static constexpr int IMAGE = BLOCKS * BLOCK;
  static constexpr int PART = LINES / SHARES;                 // lines that a block copies
  static_assert(LINES % (8 * SHARES) == 0, "groups of eight lines are swizzled as one");

  const Input* X;
  long long ld, inner, outer;  // elements along the contiguous index, and along the other
  long long stride, products;
  const TensorMap* map;

  __device__ __forceinline__ Operand(const Input* X, long long ld, long long count, long long k, long long stride, long long products,
                                     const TensorMap* map)
      : X(X), ld(ld), inner(K_CONTIGUOUS ? k : count), outer(K_CONTIGUOUS ? count : k), stride(stride), products(products), map(map) {}

  __device__ __forceinline__ bool is_aligned() const { return ::is_aligned(X, ld, stride); }

  __device__ __forceinline__ void make(TensorMap* made, TensorMap* shared) const {
    make_map(made, shared, X, static_cast<unsigned>(inner), static_cast<unsigned>(outer), ld, PART, static_cast<unsigned>(products), stride);
  }

  // By one thread: of the blocks of a cluster, that copy to each other, the part of one.
  __device__ __forceinline__ void copy(unsigned char* image, long long line, long long step, int product, Bits64* barrier, int part,
                                       int targets) const {
    const int inner0 = static_cast<int>(K_CONTIGUOUS ? step : line), outer0 = static_cast<int>(K_CONTIGUOUS ? line : step);
    const int first = SHARES > 1 ? part * PART : 0;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
      copy_box<SHARES>(image + block * BLOCK + first * LINE, map, inner0 + block * PER_LINE, outer0 + first, product, barrier, targets);
  }

  // Where threads copy: eight of the warpgroup take a line, and of each block a chunk.
  static constexpr int AT_ONCE = WARPGROUP / CHUNKS;  // lines
  struct alignas(16) Chunk { unsigned words[4]; };

  static __device__ __forceinline__ unsigned char* chunk_at(unsigned char* image, int line, int chunk) {
    return image + line * LINE + (chunk ^ line % 8) * 16;
  }

  // The chunk behind the last of a line, along m or n.
  static __device__ __forceinline__ unsigned char* last_chunk(unsigned char* image, int line) {
    return chunk_at(image, STEPS + line / 8, line % 8);
  }

  // Elements from the multiple of 16 bytes before a line of a tile to the line. Lines that are a multiple of AT_ONCE apart have the same.
  __device__ __forceinline__ int early(int line, int product) const {
    const unsigned elements = line * static_cast<unsigned>(ld) + product * static_cast<unsigned>(stride);
    return (static_cast<unsigned>(reinterpret_cast<Bits64>(X)) + elements * ELEMENT_BYTES) % 16 / ELEMENT_BYTES;
  }

  // Begin to copy the chunks that cover each line; what lies outside the matrix is zero.
  __device__ __forceinline__ void copy_chunks(unsigned char* image, int line, int step, int product) const {
    const int inner0 = K_CONTIGUOUS ? step : line, outer0 = K_CONTIGUOUS ? line : step;
    const unsigned thread = thread_again();
    const int chunk = thread % CHUNKS, first = thread % WARPGROUP / CHUNKS, before = early(first, product) - chunk * CHUNK;
    const int lines = static_cast<int>(min(outer - outer0, static_cast<long long>(K_CONTIGUOUS ? LINES : STEPS)));
    int rest = static_cast<int>(min(inner - inner0, 1LL << 24)) + before;  // elements from the thread's chunk to the end of the line
    const Input* const matrix = X + product * stride + static_cast<long long>(outer0 + first) * ld + inner0 - before;
    long long apart = ld;
    forget(apart);
    apart *= AT_ONCE;
#pragma unroll 1
    for (int block = 0; block < BLOCKS + !K_CONTIGUOUS; block++, rest -= PER_LINE) {
      const bool behind = block == BLOCKS;  // the last chunk of a line is that of the thread which has the first of a block
      if (behind && chunk > 0) break;
      const Input* from = matrix + block * PER_LINE;
      unsigned char* to = chunk_at(image + block * BLOCK, first, chunk);
      const int bytes = min(max(rest, 0), CHUNK) * ELEMENT_BYTES;
#pragma unroll 1
      for (int l = first; l < (behind ? STEPS : LINES); l += AT_ONCE, to += AT_ONCE * LINE, from += apart)
        if (K_CONTIGUOUS || block > 0 || l < STEPS || (l - STEPS) * CHUNKS + chunk >= STEPS)
          cp_async_part<16>(behind ? last_chunk(image, l) : to, from, l < lines ? bytes : 0);
    }
  }

  // Shift each line to its place, in the warp that has copied it. If both operands lie along k, a thread has two chunks at a time, of
  // two lines or of the blocks of one, so that one wait is enough; else there are no registers for that.
  __device__ __forceinline__ void shift(unsigned char* image, int product) const {
    constexpr bool TWO_LINES = ALONG_K && BLOCKS == 1 && LINES % (2 * AT_ONCE) == 0;
    constexpr int TOGETHER = TWO_LINES ? 2 : ALONG_K ? BLOCKS : 1, APART = TWO_LINES ? AT_ONCE * LINE : BLOCK;
    constexpr int STRIDE = TWO_LINES ? 2 * AT_ONCE : AT_ONCE;  // lines
    static_assert(LINES % (AT_ONCE * WARP / WARPGROUP) == 0, "all threads of a warp have as many lines");
    const unsigned thread = thread_again();
    const int chunk = thread % CHUNKS, first = thread % WARPGROUP / CHUNKS, skipped = early(first, product) * ELEMENT_BYTES;  // bytes
#pragma unroll 1
    for (int block = 0; block < (ALONG_K ? 1 : BLOCKS); block++) {
      const bool is_last = block == BLOCKS - 1 && chunk == CHUNKS - 1;
      unsigned char* mine = chunk_at(image + block * BLOCK, first, chunk);
      unsigned char* next = chunk_at(image + (block + (chunk == CHUNKS - 1 && !is_last)) * BLOCK, first, (chunk + 1) % CHUNKS);
#pragma unroll 1
      for (int l = first; l < (K_CONTIGUOUS ? LINES : STEPS); l += STRIDE, mine += STRIDE * LINE, next += STRIDE * LINE) {
        unsigned char* const behind = !K_CONTIGUOUS && is_last ? last_chunk(image, l) : next;
        unsigned words[TOGETHER][8];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
          const bool at_end = ALONG_K && !TWO_LINES && i == BLOCKS - 1 && chunk == CHUNKS - 1;  // nothing is behind; it will be zero
          const Chunk low = *reinterpret_cast<Chunk*>(mine + i * APART);
          const Chunk high = *reinterpret_cast<Chunk*>((at_end ? mine : behind) + i * APART);
#pragma unroll
          for (int w = 0; w < 8; w++) words[i][w] = w < 4 ? low.words[w] : high.words[w - 4];
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
          const unsigned kept = K_CONTIGUOUS && (block + (TWO_LINES ? 0 : i)) * PER_LINE + chunk * CHUNK >= STEPS ? 0u : ~0u;
          Chunk shifted;
#pragma unroll
          for (int w = 0; w < 6; w++) words[i][w] = skipped & 8 ? words[i][w + 2] : words[i][w];
#pragma unroll
          for (int w = 0; w < 5; w++) words[i][w] = skipped & 4 ? words[i][w + 1] : words[i][w];
#pragma unroll
          for (int w = 0; w < 4; w++)
            shifted.words[w] = static_cast<unsigned>((Bits64(words[i][w + 1]) << 32 | words[i][w]) >> skipped % 4 * 8) & kept;
          *reinterpret_cast<Chunk*>(mine + i * APART) = shifted;
        }
        if (!K_CONTIGUOUS && is_last) *reinterpret_cast<Chunk*>(behind) = {};
      }
    }
  }

  // For tensor cores: lines from `line` on, DEPTH steps from the first on.
  static __device__ __forceinline__ Bits64 place(const unsigned char* image, int line) {
    return describe(image + (K_CONTIGUOUS ? line * LINE : line / PER_LINE * BLOCK), K_CONTIGUOUS ? 16 : BLOCK);
  }

  // In units of 16 bytes, from there to DEPTH steps from `step` on; and from the first lines to `line`.
  static constexpr __device__ __forceinline__ Bits64 to_step(int step) {
    return (K_CONTIGUOUS ? step / PER_LINE * BLOCK + step % PER_LINE * ELEMENT_BYTES : step * LINE) / 16;
  }
  static constexpr __device__ __forceinline__ Bits64 to_line(int line) {
    return (K_CONTIGUOUS ? line * LINE : line / PER_LINE * BLOCK) / 16;
  }
};

typedef Operand<A_ALONG_K == 1, BLK_M, CLUSTER_N> OperandA;
typedef Operand<B_ALONG_K == 1, BLK_N, CLUSTER> OperandB;
constexpr int STAGE = OperandA::IMAGE + OperandB::IMAGE;

// ---- Order.

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

  __device__ __forceinline__ void skip(int tiles) {
    const int at = stage + tiles;
    stage = at % STAGES;
    parity ^= static_cast<unsigned>(at / STAGES) & 1;
  }
};

// The grid of a kernel with as many parts as fill the device has a row of blocks for each part; they are numbered as one row.
__device__ __forceinline__ int parts() { return SPLIT_K == 0 ? gridDim.y : SPLIT_K; }
__device__ __forceinline__ unsigned blocks() { return SPLIT_K == 0 ? gridDim.x * gridDim.y : gridDim.x; }
__device__ __forceinline__ unsigned this_block() { return SPLIT_K == 0 ? blockIdx.y * gridDim.x + blockIdx.x : blockIdx.x; }

// The place of a block in its cluster.
__device__ __forceinline__ int cluster_row() { return CLUSTER > 1 ? cluster_rank() % CLUSTER : 0; }
__device__ __forceinline__ int cluster_column() { return CLUSTER_N > 1 ? cluster_rank() / CLUSTER : 0; }

// The tiles of C, in order: groups of raster_group rows, column by column, as compact as can be, and of each the parts of k; then
// those of the next product. A cluster takes CLUSTER by CLUSTER_N tiles: a panel.
struct Tiles {
  int panels_m, panels_n, all, raster_group;

  __device__ __forceinline__ Tiles(long long m, long long n, long long products, int raster_group)
      : panels_m(static_cast<int>((m + CLUSTER * BLK_M - 1) / (CLUSTER * BLK_M))),
        panels_n(static_cast<int>((n + CLUSTER_N * BLK_N - 1) / (CLUSTER_N * BLK_N))),
        all(panels_m * panels_n * parts() * static_cast<int>(products)), raster_group(min(raster_group, panels_m)) {}

  // Where a tile is, in tiles, and of which product.
  __device__ __forceinline__ void locate(int number, int& panel_m, int& panel_n, int& product) const {
    int tile = number / parts();
#ifdef BATCHED
    product = tile / (panels_m * panels_n);
    tile -= product * panels_m * panels_n;
#else
    product = 0;
#endif
    const int group_tiles = raster_group * panels_n, group = tile / group_tiles, within = tile % group_tiles;
    const int height = min(raster_group, panels_m - group * raster_group);
    panel_m = (group * raster_group + within % height) * CLUSTER + cluster_row();
    panel_n = within / height * CLUSTER_N + cluster_column();
  }
};

// ---- Multiply and store.

// The sums of a thread. It holds of columns 8 j + 2 (lane % 4) + {0, 1} the rows lane / 4 + {0, 8} of its warp's 16.
typedef float Sums[INSTRUCTIONS][SUMS];

template <int PARTS>
__device__ __forceinline__ void hold(float (&sums)[PARTS][SUMS]) {
#pragma unroll
  for (int part = 0; part < PARTS; part++)
#pragma unroll
    for (int i = 0; i < SUMS; i++) hold(sums[part][i]);
}

// The factors of PROMOTED steps of k for the sums of a thread: of its rows, and of the blocks of PROMOTED columns of a tile. Tiles are those
// of the transposed product, so that rows have factors of their own, as the caller's columns do. They are loaded a block of steps ahead,
// and brought to L2 some blocks before.
#if EPILOGUE_SCALES == 2
static_assert(SWAP && PACK && (PROMOTED % BLK_N == 0 || BLK_N % PROMOTED == 0), "a thread has few factors, and steps begin at multiples of PROMOTED");
struct Factors {
  static constexpr int BLOCKS = (BLK_N + PROMOTED - 1) / PROMOTED;
  static constexpr int EARLY = 8;
  const float* of_rows;     // of the thread's first row and the next block of steps
  const float* of_columns;  // of the tile's first block
  long long rows;           // of the product
  int lower, blocks;        // rows below the thread's first one; blocks of columns from the tile's first one on
  int steps, left;          // blocks of steps in all, and from the next one on
  float row[INSTRUCTIONS][2], column[BLOCKS];       // of that block
  float now[INSTRUCTIONS][2][BLOCKS];               // products of those before, by rows and blocks of columns

  // From a thread's first row, a tile's first column, and a block of steps of k.
  __device__ __forceinline__ Factors(const float* scale_m, const float* scale_n, long long m, long long n, long long k, long long first_row,
                                     long long first_column, int first)
      : of_rows(scale_m + first * m + first_row), rows(m), lower(static_cast<int>(min(m - first_row, 1LL * BLK_M))) {
    steps = static_cast<int>((k + PROMOTED - 1) / PROMOTED);
    left = first_column < n ? steps - first : 0;
    of_columns = scale_n + first_column / PROMOTED * steps + first;
    blocks = static_cast<int>((n + PROMOTED - 1) / PROMOTED - first_column / PROMOTED);
    for (int block = threadIdx.x % 4; block < min(EARLY, left); block += 4) bring(block);  // four threads have the same rows
    load();
  }

  // Brings the factors of a later block of steps to L2.
  __device__ __forceinline__ void bring(int block) {
#pragma unroll
    for (int i = 0; i < 2 * INSTRUCTIONS; i++)
      if (i / 2 * HIGH + i % 2 * 8 < lower) prefetch(of_rows + block * rows + (i / 2 * HIGH + i % 2 * 8));
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
      if (i == 0 || i < blocks) prefetch(of_columns + i * steps + block);
  }

  // From one block of steps to the next.
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int i = 0; i < 2 * INSTRUCTIONS * BLOCKS; i++) {
      float& product = now[i / BLOCKS / 2][i / BLOCKS % 2][i % BLOCKS];
      product = row[i / BLOCKS / 2][i / BLOCKS % 2] * column[i % BLOCKS];
      hold(product);
    }
    load();
  }

  __device__ __forceinline__ void load() {
    if (left > EARLY) bring(EARLY);
#pragma unroll
    for (int i = 0; i < 2 * INSTRUCTIONS; i++) {
      const int down = i / 2 * HIGH + i % 2 * 8;
      row[i / 2][i % 2] = left > 0 && down < lower ? load_global(of_rows + down) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) column[i] = left > 0 && (i == 0 || i < blocks) ? load_global(of_columns + i * steps) : 0.0f;
    of_rows += rows;
    of_columns++;
    left--;
  }
};
#else
struct Factors {};
#endif

// Until the products of the tile before are there; with PROMOTES, those of this one.
#if PROMOTES
__device__ __forceinline__ void multiply_tile(Sums& sums, Bits64 a, Bits64 b, Factors& factors) {
#pragma unroll
  for (int first = 0; first < BLK_K; first += PROMOTED)
#pragma unroll
    for (int part = 0; part < INSTRUCTIONS; part++) {
      float few[1][SUMS];
      wgmma_fence();
#pragma unroll
      for (int step = first; step < first + PROMOTED; step += DEPTH) {
        const Bits64 from_a = a + OperandA::to_line(part * HIGH) + OperandA::to_step(step), from_b = b + OperandB::to_step(step);
        if (step == first)
          wgmma<false, false, false>(few[0], from_a, from_b);
        else
          wgmma<false, false>(few[0], from_a, from_b);
      }
      wgmma_commit();
#if EPILOGUE_SCALES == 2
      if (part == 0) factors.advance();  // while tensor cores work
#endif
      wgmma_wait<0>();
      hold(few);
#pragma unroll
      for (int i = 0; i < SUMS; i++)
#if EPILOGUE_SCALES == 2
        sums[part][i] += few[0][i] * factors.now[part][i / 2 % 2][i / (PROMOTED / 2)];
#else
        sums[part][i] += few[0][i];
#endif
    }
}
#else
__device__ __forceinline__ void multiply_tile(Sums& sums, Bits64 a, Bits64 b, Factors&) {
#pragma unroll
  for (int step = 0; step < BLK_K; step += DEPTH)
#pragma unroll
    for (int part = 0; part < INSTRUCTIONS; part++)
      wgmma<!A_ALONG_K, !B_ALONG_K>(sums[part], a + OperandA::to_line(part * HIGH) + OperandA::to_step(step), b + OperandB::to_step(step));
  wgmma_commit();
  wgmma_wait<1>();
}
#endif

#ifdef BATCHED
constexpr bool MAKES_MAPS = true;
#else
constexpr bool MAKES_MAPS = PACK;
#endif
constexpr int MAPS = MAKES_MAPS ? 3 : 0;  // that a block makes

// The workspace: with PACK how far that is; of the parts of k how many of each warp's have come, zero between launches; the maps of all blocks; the sums of
// the parts, by warps.
struct Workspace {
  unsigned* arrived;
  TensorMap* maps;
  float* sums;

  __device__ __forceinline__ Workspace(void* memory, const Tiles& tiles) : arrived(static_cast<unsigned*>(memory) + 64 * PACK) {
    const unsigned counters = SPLIT_K == 1 ? 0 : tiles.panels_m * CLUSTER * tiles.panels_n * CLUSTER_N * WARPS;
    maps = reinterpret_cast<TensorMap*>(arrived + ((counters + 63u) & ~63u));
    sums = reinterpret_cast<float*>(maps + MAPS * blocks());
  }

  // What lies behind the sums: packed operands.
  __device__ __forceinline__ Input* packed(const Tiles& tiles) const {
    return reinterpret_cast<Input*>(sums + (SPLIT_K == 1 ? 0LL : static_cast<long long>(tiles.all) * CLUSTER * CLUSTER_N * BLK_M * BLK_N));
  }

  // Brings the sums of a part; true, with all in `sums`, for the last to come. Sums of several parts are on their way at a time.
  __device__ __forceinline__ bool join(Sums& mine, int tile, int warp, int part) const {
    constexpr int FOURS = INSTRUCTIONS * SUMS / 4, FIT = FOURS > 12 ? 1 : FOURS > 3 ? 24 / FOURS : 8;
    constexpr int AT_ONCE = SPLIT_K > 0 && SPLIT_K < FIT ? SPLIT_K : FIT;
    const int lane = threadIdx.x % WARP, place = tile * WARPS + warp;
    Four* const all = reinterpret_cast<Four*>(sums) + static_cast<long long>(place) * parts() * FOURS * WARP + lane;
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
      float* const four = &mine[i * 4 / SUMS][i * 4 % SUMS];
      store_global(all + (part * FOURS + i) * WARP, Four{four[0], four[1], four[2], four[3]});
      four[0] = four[1] = four[2] = four[3] = 0.0f;
    }
    __threadfence();
    __syncwarp();
    unsigned before = 0;
    if (lane == 0) before = atomicAdd(&arrived[place], 1u);
    if (__shfl_sync(0xffffffff, before, 0) != parts() - 1) return false;
    __threadfence();
    if (lane == 0) arrived[place] = 0;  // for the next launch
#pragma unroll 1
    for (int other = 0; other < parts(); other += AT_ONCE) {
      Four brought[AT_ONCE][FOURS];
#pragma unroll
      for (int p = 0; p < AT_ONCE; p++)
#pragma unroll
        for (int i = 0; i < FOURS; i++)
          brought[p][i] = AT_ONCE == 1 || other + p < parts() ? load_shared_by_blocks(all + ((other + p) * FOURS + i) * WARP) : Four{};
#pragma unroll
      for (int p = 0; p < AT_ONCE; p++)
#pragma unroll
        for (int i = 0; i < FOURS * 4; i++) mine[i / SUMS][i % SUMS] += brought[p][i / 4].of[i % 4];
    }
    return true;
  }
};

// ---- Packing.

constexpr int HELD = 3072 / THREADS;  // chunks of a thread in flight, at most
constexpr int MOST_ROUNDS = 8;        // of all threads of a block in a unit of work

struct alignas(16) Chunk { unsigned words[4]; };

// The 16 bytes from `early` on, of 32.
__device__ __forceinline__ Chunk shifted(const Chunk& low, const Chunk& high, int early) {
  unsigned words[8];
#pragma unroll
  for (int w = 0; w < 8; w++) words[w] = w < 4 ? low.words[w] : high.words[w - 4];
#pragma unroll
  for (int w = 0; w < 6; w++) words[w] = early & 8 ? words[w + 2] : words[w];
#pragma unroll
  for (int w = 0; w < 5; w++) words[w] = early & 4 ? words[w + 1] : words[w];
  Chunk found;
#pragma unroll
  for (int w = 0; w < 4; w++) found.words[w] = static_cast<unsigned>((Bits64(words[w + 1]) << 32 | words[w]) >> early % 4 * 8);
  return found;
}

// The lines of an operand that is packed; none if it is aligned. What follows the last element of a packed line is anything: the map
// knows where the line ends. Nothing outside of the operand is read. It has less than 2^32 chunks (64 GB).
struct Lines {
  const Input* X;
  Input* to;
  long long ld, packed_ld;
  unsigned inner, outer, chunks;  // of a line

  // The operand is then the packed one. Lines begin at multiples of 128 bytes, so that none shares a sector of the cache.
  template <typename O>
  __device__ __forceinline__ Lines(O& operand, Input*& room, bool is_read)
      : X(operand.X), to(room), ld(operand.ld), packed_ld((operand.inner + PER_LINE - 1) / PER_LINE * PER_LINE),
        inner(static_cast<unsigned>(operand.inner)), outer(0), chunks((inner + CHUNK - 1) / CHUNK) {
    if (!is_read || operand.is_aligned()) return;
    outer = static_cast<unsigned>(operand.outer);
    operand.X = room;
    operand.ld = packed_ld;
    operand.stride = packed_ld * outer;  // of a single product
    room += (packed_ld * outer + LINE - 1) / LINE * LINE;  // a multiple of 128 bytes
  }

  __device__ __forceinline__ unsigned all() const { return outer * chunks; }

  // By a warp, whose threads have chunks side by side, each `held` of them: first all loads, then all stores. A chunk comes from the
  // two aligned ones that it lies in.
  __device__ __forceinline__ void copy(unsigned first, int held) const {
    const unsigned lines = WARP / chunks, rest = WARP % chunks;
    Chunk low[HELD], high[HELD];
    unsigned line = first / chunks, chunk = first % chunks, whole = 0;
    auto next = [&] {
      line += lines;
      chunk += rest;
      if (chunk >= chunks) {
        chunk -= chunks;
        line++;
      }
    };
    const Input* const end = X + (outer - 1) * ld + inner;
#pragma unroll
    for (int i = 0; i < HELD; i++, next()) {
      if (i >= held) break;
      const Input* from = X + line * ld + chunk * CHUNK;
      from -= reinterpret_cast<Bits64>(from) % 16 / ELEMENT_BYTES;
      if (line < outer && from >= X && from + 2 * CHUNK <= end) {
        whole |= 1u << i;
        low[i] = load_global(reinterpret_cast<const Chunk*>(from));
        high[i] = load_global(reinterpret_cast<const Chunk*>(from + CHUNK));
      }
    }
    line = first / chunks;
    chunk = first % chunks;
#pragma unroll
    for (int i = 0; i < HELD; i++, next())
      if (whole >> i & 1) {
        const int early = static_cast<int>(reinterpret_cast<Bits64>(X + line * ld) % 16);
        store_global(reinterpret_cast<Chunk*>(to + line * packed_ld + chunk * CHUNK), shifted(low[i], high[i], early));
      }
    if (whole != (1u << held) - 1) copy_ends(first, held, whole);
  }

  // By elements, those chunks that are not whole: at the beginning and the end of the operand.
  __device__ __forceinline__ void copy_ends(unsigned first, int held, unsigned whole) const {
#pragma unroll 1
    for (int i = 0; i < held; i++) {
      const unsigned line = (first + i * WARP) / chunks, begin = (first + i * WARP) % chunks * CHUNK;
      if (whole >> i & 1 || line >= outer) continue;
#pragma unroll 1
      for (unsigned e = begin; e < min(begin + CHUNK, inner); e++) store_global(to + line * packed_ld + e, load_global(X + line * ld + e));
    }
  }
};

// Packs what is not aligned, by all blocks together.
struct Packing {
  // Zero between launches: units of work that are taken and that are done, and blocks that do not need these numbers any more.
  struct Progress { unsigned taken, done, left; };

  Progress* progress;
  Lines a, b;
  int held;                       // chunks of a thread at a time
  unsigned size, units_a, units;  // chunks of a unit

  // As many units as blocks; of many chunks more, so that a block that begins later or is slower has fewer of them.
  template <typename A, typename B>
  __device__ __forceinline__ Packing(void* progress, A& of_a, B& of_b, Input* room, bool are_read)
      : progress(static_cast<Progress*>(progress)), a(of_a, room, are_read), b(of_b, room, are_read) {
    const unsigned full = blocks() > 2 ? blocks() - 2 : 1;  // the last units of both operands are not full
    const int of_thread = static_cast<int>((a.all() + b.all()) / (full * THREADS)) + 1;
    held = min(of_thread, HELD);
    size = held * THREADS * max(min(of_thread / (4 * HELD), MOST_ROUNDS), 1);
    units_a = (a.all() + size - 1) / size;
    units = units_a + (b.all() + size - 1) / size;
  }

  // By all threads; the next unit is taken while one is copied. The slots are in shared memory.
  __device__ __forceinline__ void work(unsigned* slots) const {
    unsigned mine = 0, next = 0;
    if (threadIdx.x == 0) next = atomicAdd(&progress->taken, 1u);
#pragma unroll 1
    for (;; mine++) {
      if (threadIdx.x == 0) slots[mine % 2] = next;
      __syncthreads();
      const unsigned unit = slots[mine % 2];
      if (unit >= units) break;
      if (threadIdx.x == 0) next = atomicAdd(&progress->taken, 1u);
      const Lines lines = unit < units_a ? a : b;
      const unsigned begin = (unit < units_a ? unit : unit - units_a) * size;
#pragma unroll 1
      for (unsigned first = begin; first < begin + size; first += held * THREADS)
        lines.copy(first + threadIdx.x / WARP * (held * WARP) + threadIdx.x % WARP, held);
    }
    fence_proxy_global();
    __syncthreads();
    if (threadIdx.x == 0 && mine > 0) add_release(&progress->done, mine);
  }

  // By the thread that copies, before its first copy.
  __device__ __forceinline__ void wait() const {
    while (load_acquire(&progress->done) != units) pause();
    fence_proxy_global();
    leave();
  }

  // By a thread of each block; the last sets back the numbers.
  __device__ __forceinline__ void leave() const {
    if (add_release(&progress->left, 1) == blocks() - 1) *progress = Progress{};
  }
};

// ---- Results.

#if IS_HALF_RESULT
__device__ __forceinline__ float number(Half element) { return widened(element); }
#else
__device__ __forceinline__ float number(float element) { return element; }
#endif
constexpr int VECTOR = 16 / sizeof(Element);
struct alignas(16) Vector { Element of[VECTOR]; };

// The first `valid` elements; the others are zero. Those of an incomplete vector are stored from where it lies in shared memory.
__device__ __forceinline__ Vector load_vector(const Element* from, int valid) {
  Vector vector = {};
  if (valid >= VECTOR && reinterpret_cast<Bits64>(from) % 16 == 0) {
    vector = load_global(reinterpret_cast<const Vector*>(from));
  } else {
#pragma unroll
    for (int e = 0; e < VECTOR; e++)
      if (e < valid) vector.of[e] = load_global(from + e);
  }
  return vector;
}

__device__ __forceinline__ void store_vector(Element* to, const Vector& vector, const Vector* shared, int valid) {
  if (valid >= VECTOR && reinterpret_cast<Bits64>(to) % 16 == 0) {
    store_global(reinterpret_cast<Vector*>(to), vector);
  } else {
#pragma unroll 1
    for (int e = 0; e < min(valid, VECTOR); e++) store_global(to + e, shared->of[e]);
  }
}

__device__ __forceinline__ float activated(float x) {
#if EPILOGUE_ACTIVATION == 1  // ReLU
  return x < 0.0f ? 0.0f : x;
#elif EPILOGUE_ACTIVATION == 2  // GELU: the error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26), without branches
  const float y = fabsf(x) * 0.70710678f, t = quotient(1.0f, 1.0f + 0.3275911f * y);
  const float series = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float tail = 0.5f * x * series * exponential(-y * y);
  return x < 0.0f ? tail : x - tail;
#elif EPILOGUE_ACTIVATION == 3  // its form with tanh, here as a logistic function
  return quotient(x, 1.0f + exponential(-1.59576912f * (x + 0.044715f * x * x * x)));
#elif EPILOGUE_ACTIVATION == 4  // SiLU
  return quotient(x, 1.0f + exponential(-x));
#else
  return x;
#endif
}

// Multiplies sums by the factors of their rows and columns, of which so many are left. The thread's first sum is in the first of either.
__device__ __forceinline__ void scale(Sums& sums, const float* of_rows, const float* of_columns, long long rows, long long columns) {
  float of_row[INSTRUCTIONS][2];
#pragma unroll
  for (int i = 0; i < 2 * INSTRUCTIONS; i++) {
    const int row = i / 2 * HIGH + i % 2 * 8;
    of_row[i / 2][i % 2] = row < rows ? load_global(of_rows + row) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < BLK_N / 4; i++) {
    const int column = i / 2 * 8 + i % 2;
    const float of_column = column < columns ? load_global(of_columns + column) : 0.0f;
#pragma unroll
    for (int part = 0; part < INSTRUCTIONS; part++)
#pragma unroll
      for (int down = 0; down < 2; down++) sums[part][i / 2 * 4 + down * 2 + i % 2] *= of_row[part][down] * of_column;
  }
}

// The way of a tile's sums to C. Elements change hands in shared memory, in pieces of columns; the room is the stage of the team's last
// step of k, which is freed only then. Lines are columns of a warpgroup's sums or, if not all of its warps may be there, of a warp's; with
// SWAP they are rows. The copy engine takes lines of 128 bytes, swizzled, while the next tile is multiplied; pieces that do not
// fit have rooms of their own, if there is memory. With SWAP the last lines of a tile overlap those before, if its columns are not a
// multiple of a line: both have the same elements. Other lines, and those of a matrix that is not aligned, are stored by threads, 16
// bytes each. What C was comes the same way.
struct Outbox {
  static constexpr bool BOXED = IS_HALF_RESULT && SPLIT_K == 1 && (!SWAP || BLK_N >= HIGH);
  static constexpr int TOGETHER = BOXED || !SWAP && SPLIT_K == 1 ? WARPGROUP / WARP : 1;  // warps
  static constexpr int UNIT_OF_ROOM = BOXED ? 8 * LINE : 16;
  static constexpr int ROOM = STAGE * TOGETHER / WARPS / UNIT_OF_ROOM * UNIT_OF_ROOM;  // bytes
  static constexpr int ROWS = 16 * TOGETHER;
  static constexpr int SIZE = sizeof(Element);
  static constexpr int FIT = (BOXED ? ROOM / LINE : SWAP ? ROOM / (16 * SIZE) - 8 : ROOM / (ROWS * SIZE + 16)) / 8 * 8;  // columns
  static constexpr int BOX = SWAP ? HIGH : BLK_N <= FIT ? BLK_N : BLK_N % 16 == 0 ? BLK_N / 2 : 8;  // lines
  static constexpr int DIVIDED = BOXED && !SWAP ? BOX : BLK_N;
  static constexpr int WIDTH = DIVIDED % 32 == 0 && FIT >= 32 ? 32 : DIVIDED % 16 == 0 && FIT >= 16 ? 16 : 8;
  static constexpr int MOST = BOXED ? (SWAP ? HIGH : BOX) : FIT / WIDTH * WIDTH;  // columns of a piece
  static constexpr int PIECES = (BLK_N + MOST - 1) / MOST;
  static constexpr int COLUMNS = BOXED ? MOST : (BLK_N / WIDTH + PIECES - 1) / PIECES * WIDTH;
  static constexpr int MOVED = WIDTH / 2;  // sums of a thread at a time
  static constexpr int UNIT = SWAP ? 8 * SIZE : 16;
  static constexpr int APART = BOXED ? LINE : ((SWAP ? COLUMNS : ROWS) * SIZE / UNIT | 1) * UNIT;  // of lines: threads at a time are in different banks
  static constexpr int EIGHT = 8 * (SWAP ? SIZE : APART);  // from columns to the next eight
  static constexpr int ALL = INSTRUCTIONS * PIECES;        // of a warpgroup
  static constexpr int IN_STAGE = !BOXED ? 1 : ROOM / (BOX * LINE) < ALL ? ROOM / (BOX * LINE) : ALL;
  static constexpr int MORE = CONSUMERS * (ALL - IN_STAGE) * BOX * LINE;  // bytes
  static constexpr int EXTRA = BOXED && STAGES * (STAGE + 16) + MORE + MAPS * 128 + 8 * (TEAMS + PACK) <= MOST_SHARED ? ALL - IN_STAGE : 0;
  static constexpr int ROOMS = IN_STAGE + EXTRA;
  static constexpr int EXTRA_BYTES = EXTRA ? MORE : 0;
  static constexpr bool IS_LONG = EPILOGUE_ACTIVATION > 1;  // a loop, because unrolled it is slow to compile and to load
  static_assert(FIT > 0, "a piece has columns");

  long long m, n;
  float alpha, beta;
  Element* C;
  long long ldc;
  const Element* bias;

  const TensorMap* map;
  bool boxed;  // all lines
  int product;

  // Whether the copy engine can store: it writes whole 16 bytes, also behind the end of a line.
  static __device__ __forceinline__ bool has_boxes(long long m, long long n, const Element* C, long long ldc, long long stride) {
    return is_aligned(C, ldc, stride) && (SWAP ? n : m) * SIZE % 16 == 0;
  }

  static __device__ __forceinline__ void make(TensorMap* map, TensorMap* shared, long long m, long long n, Element* C, long long ldc,
                                              long long products, long long stride) {
    make_map(map, shared, reinterpret_cast<const Half*>(C), static_cast<unsigned>(SWAP ? n : m), static_cast<unsigned>(SWAP ? m : n), ldc, BOX,
             static_cast<unsigned>(products), stride);
  }

  // By whole warps: `row` is the first of the warp's 16, of the first instruction. Registers have no index: sums move to those that are
  // stored.
  __device__ __forceinline__ void store(unsigned char* storage, int stage, Sums& sums, long long row, long long column) const {
    const int warp = threadIdx.x / WARP % TOGETHER;
    const Added added(bias, row, column, m, n);
    row -= warp * 16;
    float scale = alpha;
    if (beta != 0.0f) {
      add_old(storage, stage, sums, row, column);
      scale = 1.0f;
    }
#pragma unroll(IS_LONG ? 1 : ALL)
    for (int number = 0; number < ALL; number++) {
      const int part = number / PIECES, first = first_of(number % PIECES), down = static_cast<int>(row) + part * HIGH;
      unsigned char* const room = room_of(storage, stage, number);
      if (BOXED && number >= ROOMS) {
        if (is_sender()) wait_until_read();
        wait_for_others();
      }
#pragma unroll(IS_LONG ? 1 : COLUMNS / WIDTH)
      for (int chunk = 0; chunk < COLUMNS / WIDTH; chunk++) {
        const int from = first / 2 + chunk * MOVED;
        if (from >= SUMS) break;
        float moved[MOVED];
        take<0>(moved, sums, part * SUMS + from);
#pragma unroll
        for (int i = 0; i < MOVED; i += 4) {
          float values[4];
#pragma unroll
          for (int j = 0; j < 4; j++) values[j] = scale * moved[i + j];
          added.add(values, part, (from + i) / 4);
          put(mine(room, (chunk * MOVED + i) / 4), values);
        }
      }
      fence_proxy();
      wait_for_others();
      if (!boxed) {
        move<true>(room, row + part * HIGH, column + first, BLK_N - first);
        wait_for_others();
      } else if (is_sender()) {
        const int across = static_cast<int>(column) + first;
        store_box(map, room, SWAP ? across : down, SWAP ? down : across, product);
      }
    }
    __syncwarp();
  }

  // The thread of a warpgroup that has the copy engine store.
  static __device__ __forceinline__ bool is_sender() { return threadIdx.x % WARPGROUP == 0; }

 private:
  // Where a piece of those that have met is.
  static __device__ __forceinline__ unsigned char* room_of(unsigned char* storage, int stage, int number) {
    const int group = threadIdx.x / WARP / TOGETHER, room = number % ROOMS;
    if (EXTRA && room >= IN_STAGE) return storage + STAGES * STAGE + (group * EXTRA + room - IN_STAGE) * (BOX * LINE);
    return storage + stage * STAGE + group % (WARPS / TOGETHER) * ROOM + (BOXED ? room * (BOX * LINE) : 0);
  }

  // The first column of a piece.
  static constexpr __device__ __forceinline__ int first_of(int piece) {
    return BOXED && SWAP && (piece + 1) * COLUMNS > BLK_N ? BLK_N - COLUMNS : piece * COLUMNS;
  }

  // In a room the place of the thread's first sums of so many times eight columns on, or, of elements in half precision, of the line of a
  // matrix that it is to have the place of.
  static __device__ __forceinline__ unsigned char* mine(unsigned char* room, int eights) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % TOGETHER;
#if IS_HALF_RESULT
    return SWAP ? chunk_of(room, warp * 16 + lane % 16, eights) : chunk_of(room, eights * 8 + lane % 8, warp * 2 + lane % 16 / 8);
#else
    const int line = SWAP ? lane / 4 : lane % 4 * 2, element = SWAP ? lane % 4 * 2 : warp * 16 + lane / 4;
    return room + line * APART + element * SIZE + eights * EIGHT;
#endif
  }

  // 16 bytes of a line.
  static __device__ __forceinline__ unsigned char* chunk_of(unsigned char* room, int line, int chunk) {
    return room + line * APART + (BOXED ? chunk ^ line % 8 : chunk) * 16;
  }

  // The bias of a thread's sums.
  struct Added {
#if BIAS == 1  // of two rows of an instruction
    float of_rows[INSTRUCTIONS][2];

    __device__ __forceinline__ Added(const Element* bias, long long row, long long, long long m, long long) {
#pragma unroll
      for (int i = 0; i < 2 * INSTRUCTIONS; i++) {
        const long long at = row + i / 2 * HIGH + i % 2 * 8 + threadIdx.x % WARP / 4;
        of_rows[i / 2][i % 2] = at < m ? number(load_global(bias + at)) : 0.0f;
      }
    }
#elif BIAS == 2  // a warp has those of all columns, two a thread
    static constexpr int WORDS = (BLK_N + 2 * WARP - 1) / (2 * WARP);
    float of_columns[WORDS][2];

    __device__ __forceinline__ Added(const Element* bias, long long, long long column, long long, long long n) {
#pragma unroll
      for (int i = 0; i < 2 * WORDS; i++) {
        const long long at = column + i / 2 * 2 * WARP + threadIdx.x % WARP * 2 + i % 2;
        of_columns[i / 2][i % 2] = at < n ? number(load_global(bias + at)) : 0.0f;
      }
    }
#else
    __device__ __forceinline__ Added(const Element*, long long, long long, long long, long long) {}
#endif

    // To four sums of eight columns, `group` times eight from the first on.
    __device__ __forceinline__ void add(float (&values)[4], int part, int group) const {
#pragma unroll
      for (int i = 0; i < 4; i++) {
#if BIAS == 1
        values[i] += INSTRUCTIONS == 1 || part == 0 ? of_rows[0][i / 2] : of_rows[INSTRUCTIONS - 1][i / 2];
#elif BIAS == 2
        values[i] += __shfl_sync(0xffffffff, word<0>(group / 8, i % 2), group % 8 * 4 + threadIdx.x % 4);
#endif
      }
    }
#if BIAS == 2
    template <int FIRST>
    __device__ __forceinline__ float word(int number, int i) const {
      if constexpr (FIRST + 1 < WORDS)
        if (FIRST != number) return word<FIRST + 1>(number, i);
      return of_columns[FIRST][i];
    }
#endif
  };

  // Sums from `first` on. A loop would be turned to memory that has an index.
  template <int FIRST>
  static __device__ __forceinline__ void take(float (&moved)[MOVED], const Sums& sums, int first) {
    if (FIRST == first) {
#pragma unroll
      for (int i = 0; i < MOVED; i++) moved[i] = sums[FIRST / SUMS][FIRST % SUMS + i];
    } else if constexpr (FIRST + MOVED < INSTRUCTIONS * SUMS) {
      take<FIRST + MOVED>(moved, sums, first);
    }
  }

  __device__ __forceinline__ void wait_for_others() const {
    if constexpr (TOGETHER > 1)
      meet<TOGETHER * WARP>(1 + TEAMS + threadIdx.x / WARPGROUP);
    else
      __syncwarp();
  }

  // Four sums, of two rows and columns, become elements of C in shared memory.
  __device__ __forceinline__ void put(unsigned char* mine, const float (&values)[4]) const {
#if IS_HALF_RESULT
    store_matrices(mine, rounded(activated(values[0]), activated(values[1])), rounded(activated(values[2]), activated(values[3])));
#else
#pragma unroll
    for (int i = 0; i < 4; i++) *float_of_four(mine, i) = activated(values[i]);
#endif
  }

  static __device__ __forceinline__ float* float_of_four(unsigned char* mine, int i) {
    return reinterpret_cast<float*>(mine + (SWAP ? i / 2 * 8 * APART + i % 2 * SIZE : i % 2 * APART + i / 2 * 8 * SIZE));
  }

  // Sums become alpha times sums and beta times what C was.
  __device__ __forceinline__ void add_old(unsigned char* storage, int stage, Sums& sums, long long row, long long column) const {
#pragma unroll 1
    for (int number = 0; number < ALL; number++) {
      unsigned char* const room = room_of(storage, stage, number);
      const int first = first_of(number % PIECES);
      move<false>(room, row + number / PIECES * HIGH, column + first, BLK_N - first);
      wait_for_others();
#pragma unroll
      for (int n = 0; n < ALL; n++)
        if (n == number) {
#pragma unroll
          for (int i = n % PIECES * COLUMNS / 2; i < min(SUMS, (n % PIECES + 1) * COLUMNS / 2); i += 4) {
            float* const four = &sums[n / PIECES][i];
            unsigned char* const place = mine(room, i / 4 - first_of(n % PIECES) / 8);
#if IS_HALF_RESULT
            unsigned old[2];
            load_matrices(place, old);
#endif
#pragma unroll
            for (int j = 0; j < 4; j++)
#if IS_HALF_RESULT
              four[j] = alpha * four[j] + beta * widened(static_cast<Half>(old[j / 2] >> j % 2 * 16));
#else
              four[j] = alpha * four[j] + beta * *float_of_four(place, j);
#endif
          }
        }
      wait_for_others();
    }
  }

  // Lines to C, or from there, by the threads that have met, so many at a time that loads are on their way together.
  template <bool TO_C>
  __device__ __forceinline__ void move(unsigned char* room, long long row, long long column, int columns) const {
    constexpr int VECTORS = (SWAP ? COLUMNS : ROWS) / VECTOR, STEP = TOGETHER * WARP;
    constexpr int AT_ONCE = LAUNCH_REGISTERS - INSTRUCTIONS * SUMS < 40 ? 1 : 4;
    const long long line0 = SWAP ? row : column, element0 = SWAP ? column : row;
    const int most = min(columns, COLUMNS);
    const int lines = static_cast<int>(min((SWAP ? m : n) - line0, static_cast<long long>(SWAP ? ROWS : most)));
    const int elements = static_cast<int>(min((SWAP ? n : m) - element0, static_cast<long long>(SWAP ? most : ROWS)));
    Element* const corner = C + line0 * ldc + element0;
    const int all = TO_C ? lines * VECTORS : (SWAP ? ROWS : COLUMNS) * VECTORS;  // outside of the matrix are zeros
#pragma unroll 1
    for (int first = threadIdx.x % STEP; first < all; first += AT_ONCE * STEP) {
      Vector held[AT_ONCE] = {};
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int vector = first + i * STEP, line = vector / VECTORS, element = vector % VECTORS * VECTOR;
        Element* const global = corner + line * ldc + element;
        const Vector* const shared = reinterpret_cast<const Vector*>(chunk_of(room, line, element / VECTOR));
        if (TO_C ? vector < all : line < lines) held[i] = TO_C ? *shared : load_vector(global, elements - element);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int vector = first + i * STEP, line = vector / VECTORS, element = vector % VECTORS * VECTOR;
        Vector* const shared = reinterpret_cast<Vector*>(chunk_of(room, line, element / VECTOR));
        if (vector >= all) break;
        if (TO_C)
          store_vector(corner + line * ldc + element, held[i], shared, elements - element);
        else
          *shared = held[i];
      }
    }
  }
};

// ---- The kernel.

#if CLUSTER * CLUSTER_N > 1
#define CLUSTERED __cluster_dims__(CLUSTER * CLUSTER_N, 1, 1)
#else
#define CLUSTERED
#endif

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, 1)
#if SWAP
gemm(long long n, long long m, long long k, float alpha, const Input* B, long long ldb, const Input* A, long long lda, float beta,
     Element* C, long long ldc,
#ifdef BATCHED
     long long stride_b, long long stride_a, long long stride_c, long long batch,
#endif
#else
gemm(long long m, long long n, long long k, float alpha, const Input* A, long long lda, const Input* B, long long ldb, float beta,
     Element* C, long long ldc,
#ifdef BATCHED
     long long stride_a, long long stride_b, long long stride_c, long long batch,
#endif
#endif
#if EPILOGUE_SCALES && SWAP
     const float* scale_n, const float* scale_m,
#elif EPILOGUE_SCALES
     const float* scale_m, const float* scale_n,
#endif
#if EPILOGUE_BIAS
     const Element* bias,
#endif
     int raster_group, void* memory,
#if SWAP
     const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_a,
#else
     const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#endif
     const __grid_constant__ TensorMap map_c) {
#ifndef BATCHED
  constexpr long long stride_a = 0, stride_b = 0, stride_c = 0, batch = 1;
#endif
#if !EPILOGUE_BIAS
  constexpr const Element* bias = nullptr;
#endif
  extern __shared__ __align__(1024) unsigned char shared_storage[];
  TensorMap* const shared_maps = reinterpret_cast<TensorMap*>(shared_storage + STAGES * STAGE + Outbox::EXTRA_BYTES);
  Bits64* const full = reinterpret_cast<Bits64*>(shared_maps + MAPS);
  Bits64* const empty = full + STAGES;
  Bits64* const turn = empty + STAGES;  // of each team to multiply

  if (!MAKES_MAPS && threadIdx.x == CONSUMERS * WARPGROUP) {
    prefetch_map(map_a);
    prefetch_map(map_b);
  }
  const Tiles tiles(m, n, batch, raster_group);
  const int cluster = this_block() / (CLUSTER * CLUSTER_N), clusters = blocks() / (CLUSTER * CLUSTER_N);
  if (!PACK && cluster >= tiles.all) return;

  const Workspace workspace(memory, tiles);
  TensorMap* const made_maps = workspace.maps + MAPS * this_block();
  OperandA a(A, lda, m, k, stride_a, batch, MAKES_MAPS ? made_maps : &map_a);
  OperandB b(B, ldb, n, k, stride_b, batch, MAKES_MAPS ? made_maps + 1 : &map_b);
  const TensorMap* const of_c = MAKES_MAPS ? made_maps + 2 : &map_c;
#if PACK
  const Packing packing(memory, a, b, workspace.packed(tiles), alpha != 0.0f && tiles.all > 0 && k > 0);
  if (packing.units > 0) packing.work(reinterpret_cast<unsigned*>(turn + TEAMS));
  if (cluster >= tiles.all) {  // it has only helped
    if (packing.units > 0 && threadIdx.x == 0) packing.leave();
    return;
  }
#endif
  const bool aligned = PACK || (a.is_aligned() && b.is_aligned());
  const int all_k = static_cast<int>(aligned ? (k + BLK_K - 1) / BLK_K : (k + STEPS - 1) / STEPS);
  const int tiles_k = alpha == 0.0f ? 0 : (all_k + parts() - 1) / parts();  // of a part
  const bool mapped = aligned && tiles_k > 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(&full[i], aligned ? 1 : WARPGROUP);
      barrier_init(&empty[i], aligned ? ARRIVALS : WARPS);  // threads copy for their own block alone
    }
    for (int i = 0; i < TEAMS; i++) barrier_init(&turn[i], WARPS);
    barrier_init_fence();
  }
  if (MAKES_MAPS && mapped) {
    if (threadIdx.x / WARP == 1) a.make(made_maps, shared_maps);
    if (threadIdx.x / WARP == 2) b.make(made_maps + 1, shared_maps + 1);
    if (Outbox::BOXED && threadIdx.x / WARP == 3 && Outbox::has_boxes(m, n, C, ldc, stride_c))
      Outbox::make(made_maps + 2, shared_maps + 2, m, n, C, ldc, batch, stride_c);
  }
  const int warpgroup = threadIdx.x / WARPGROUP;
  __syncthreads();
  cluster_sync();

  if (warpgroup == CONSUMERS) {  // the producer
    registers_give<PRODUCER_REGISTERS>();
    const bool first_thread = threadIdx.x == CONSUMERS * WARPGROUP;
    if (mapped && first_thread) {
      if (MAKES_MAPS) {
        acquire_map(made_maps);
        acquire_map(made_maps + 1);
      }
#if PACK
      if (packing.units > 0) packing.wait();
#endif
    }
    if (!aligned && tiles_k > 0) {
      int turn = 0;  // of 2 STAGES: the stage, and the parity of its barriers
      int number = cluster, tile = 0, begun = 0, panel_m = 0, panel_n = 0, product = 0;  // begun: tiles that are to be shifted
#pragma unroll 1
      for (;;) {
        if (number >= tiles.all && begun == 0) break;
        if (number < tiles.all) {
          if (tile == 0) tiles.locate(number, panel_m, panel_n, product);
          const int step = (number % parts() * tiles_k + tile) * STEPS;
          const bool again = turn >= STAGES;
          const int to = again ? turn - STAGES : turn;
          unsigned char* const stage = shared_storage + to * STAGE;
          barrier_wait(&empty[to], !again);
          a.copy_chunks(stage, panel_m * BLK_M, step, product);
          b.copy_chunks(stage + OperandA::IMAGE, panel_n * BLK_N, step, product);
          cp_async_commit();
          begun++;
          turn = turn == 2 * STAGES - 1 ? 0 : turn + 1;
          if (++tile == tiles_k) {
            tile = 0;
            number += clusters;
          }
          if (begun <= AHEAD) continue;
          cp_async_wait<AHEAD>();
        } else {
          cp_async_wait<0>();
        }
        __syncwarp();
        int product_begun = 0;
#ifdef BATCHED
        int panel_m, panel_n, number_begun = number;
#pragma unroll 1
        for (int before = tile - begun; before < 0; before += tiles_k) number_begun -= clusters;
        tiles.locate(number_begun, panel_m, panel_n, product_begun);
#endif
        const int first = (turn + 2 * STAGES - begun) % STAGES;
        unsigned char* const stage = shared_storage + first * STAGE;
        a.shift(stage, product_begun);
        b.shift(stage + OperandA::IMAGE, product_begun);
        fence_proxy();
        barrier_arrive(&full[first]);
        begun--;
      }
    } else if (aligned && first_thread) {
      const int row_of_blocks = ((1 << CLUSTER * CLUSTER_N) - 1) / ((1 << CLUSTER) - 1) << cluster_row();
      const int column_of_blocks = (1 << CLUSTER) - 1 << cluster_column() * CLUSTER;
      Place place;
#pragma unroll 1
      for (int number = cluster; number < tiles.all; number += clusters) {
        int panel_m, panel_n, product;
        tiles.locate(number, panel_m, panel_n, product);
        const long long row = static_cast<long long>(panel_m) * BLK_M, column = static_cast<long long>(panel_n) * BLK_N;
        const long long first = static_cast<long long>(number % parts()) * tiles_k;
#pragma unroll 1
        for (long long tile = first; tile < first + tiles_k; tile++, place.next()) {
          unsigned char* const stage = shared_storage + place.stage * STAGE;
          Bits64* const barrier = &full[place.stage];
          barrier_wait(&empty[place.stage], place.parity ^ 1);
          barrier_expect(barrier, STAGE);
          a.copy(stage, row, tile * BLK_K, product, barrier, cluster_column(), row_of_blocks);
          b.copy(stage + OperandA::IMAGE, column, tile * BLK_K, product, barrier, cluster_row(), column_of_blocks);
        }
      }
    }
  } else {
    registers_take<CONSUMER_REGISTERS>();
    const int lane = threadIdx.x % WARP, team = warpgroup / GROUPS, first_row = warpgroup % GROUPS * WG_M;
    const Bits64 from_a = OperandA::place(shared_storage, first_row), from_b = OperandB::place(shared_storage + OperandA::IMAGE, 0);
    const bool shares = lane % CLUSTER == cluster_row() || lane / CLUSTER == cluster_column();
    const bool frees = aligned ? lane < CLUSTER * CLUSTER_N && shares : lane == cluster_rank();
    auto release = [&](int stage) {
      if (frees) barrier_arrive(&empty[stage], lane);
    };
    Place place;
    place.skip(team * tiles_k);
    auto pass_turn = [&] {
      if (TEAMS > 1 && lane == 0) barrier_arrive(&turn[(team + 1) % TEAMS]);
    };
    long long ldc_again = ldc;  // not kept in a register until here
    forget(ldc_again);
    const bool boxed = Outbox::BOXED && mapped && Outbox::has_boxes(m, n, C, ldc_again, stride_c);
    if (MAKES_MAPS && boxed && Outbox::is_sender()) acquire_map(of_c);
    int outbox_stage = -1;  // that the copy engine reads, and this warp has not freed yet
    auto release_outbox = [&] {
      if (Outbox::is_sender()) wait_until_read();
      __syncwarp();
      release(outbox_stage);
      outbox_stage = -1;
    };
    unsigned turns = team == 0;  // the parity of the barrier: the first team has the first turn
#pragma unroll 1
    for (int number = cluster + team * clusters; number < tiles.all; number += TEAMS * clusters) {
      Sums sums;
#pragma unroll
      for (int part = 0; part < INSTRUCTIONS; part++)
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[part][i] = 0.0f;
      // A team that waited for tiles of its own while another has not had all of its could not tell its turn of a stage
      // from an earlier one.
      if (TEAMS > 1) barrier_wait(&turn[team], turns);
      turns ^= 1;
      int last = 0, panel_m, panel_n, product;
      const int warp = threadIdx.x / WARP % WARPS;
#if EPILOGUE_SCALES == 2
      tiles.locate(number, panel_m, panel_n, product);
      Factors factors(scale_m, scale_n, m, n, k, static_cast<long long>(panel_m) * BLK_M + first_row + warp % 4 * 16 + lane / 4,
                      static_cast<long long>(panel_n) * BLK_N, number % parts() * tiles_k * (BLK_K / PROMOTED));
#else
      Factors factors;
#endif
#pragma unroll 1
      for (int tile = 0; tile < tiles_k; tile++) {
        barrier_wait(&full[place.stage], place.parity);
        hold(sums);
        wgmma_fence();
        const Bits64 offset = static_cast<Bits64>(place.stage * (STAGE / 16));
        multiply_tile(sums, from_a + offset, from_b + offset, factors);
        if (PROMOTES ? tile < tiles_k - 1 : tile > 0) release(PROMOTES ? place.stage : last);
        if (TEAMS == 1 && outbox_stage >= 0 && tile == min(tiles_k - 1, static_cast<int>(STAGES > 3))) release_outbox();
        last = place.stage;
        place.next();
      }
      if (tiles_k > 0) pass_turn();
      wgmma_wait<0>();
      hold(sums);
      meet<GROUPS * WARPGROUP>(1 + team);  // nobody reads the last stage any more
      place.skip((TEAMS - 1) * tiles_k);
      tiles.locate(number, panel_m, panel_n, product);
      const int place_of_tile = panel_m * tiles.panels_n * CLUSTER_N + panel_n;
      if (SPLIT_K == 1 || Workspace(memory, tiles).join(sums, place_of_tile, warp, number % parts())) {
        const long long row = static_cast<long long>(panel_m) * BLK_M + first_row + warp % 4 * 16;
#if EPILOGUE_SCALES == 1
        const long long mine = row + lane / 4, beside = static_cast<long long>(panel_n) * BLK_N + lane % 4 * 2;
        if (tiles_k > 0) scale(sums, scale_m + mine, scale_n + beside, m - mine, n - beside);
#endif
        const Outbox outbox{m, n, alpha, beta, C + product * stride_c, ldc, bias, of_c, boxed, product};
        outbox.store(shared_storage, last, sums, row, static_cast<long long>(panel_n) * BLK_N);
      }
      if (boxed && warp % (WARPGROUP / WARP) == 0) {
        outbox_stage = last;
        if (TEAMS > 1) release_outbox();  // the other team needs it
        continue;
      }
      if (tiles_k > 0)
        release(last);
      else
        pass_turn();  // all teams have the first stage
    }
    if (Outbox::BOXED && Outbox::is_sender()) wait_until_read();
  }
  cluster_sync();  // a block that has ended would not take arrivals
}
