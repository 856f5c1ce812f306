// Transposition of a matrix of floats: output[x][y] = input[y][x], both row-major.
//
// A block moves a tile of TILE_Y rows and TILE_X columns through shared memory. A thread reads micro tiles of VEC_STORE
// rows and VEC_LOAD columns in wide loads, transposes each in registers and keeps it in shared memory as rows of the output:
//
//     global --VEC_LOAD wide--> registers --VEC_STORE wide--> shared [x][y] --VEC_STORE wide--> global
//
// so every access to global and shared memory is wide. Tiles that stick out of the matrix, and matrices whose addresses or
// rows forbid wide accesses, are moved element by element.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml.

typedef long long Offset;

constexpr int ROW = TILE_Y + PAD;                        // elements from one x to the next in shared memory
constexpr int ACROSS = TILE_X / VEC_LOAD;                // threads along a row of the input
constexpr int DOWN = TILE_Y / VEC_STORE;                 // threads along a row of the output
constexpr int LOAD_LINES = THREADS / ACROSS;             // micro tiles that the block reads at once, one below the other
constexpr int STORE_LINES = THREADS / DOWN;              // rows of the output that it writes at once
constexpr int LOADS = TILE_Y / (LOAD_LINES * VEC_STORE);  // micro tiles of a thread
constexpr int STORES = TILE_X / STORE_LINES;

template <int COUNT>
struct alignas(COUNT * sizeof(float)) Vector { float at[COUNT]; };

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

#if READ == 0
#define LOAD_FLOATS "ld.global"
#elif READ == 1  // the non-coherent path
#define LOAD_FLOATS "ld.global.nc"
#elif READ == 2  // the same, and the lines leave the first-level cache at once
#define LOAD_FLOATS "ld.global.nc.L1::no_allocate"
#else            // first to be evicted from both caches
#define LOAD_FLOATS "ld.global.cs"
#endif
#if WRITE == 0
#define STORE_FLOATS "st.global"
#else            // first to be evicted
#define STORE_FLOATS "st.global.cs"
#endif

__device__ __forceinline__ Vector<1> load_global(const Vector<1>* from) {
  Vector<1> v;
  asm volatile(LOAD_FLOATS ".f32 %0, [%1];" : "=f"(v.at[0]) : "l"(from));
  return v;
}

__device__ __forceinline__ Vector<2> load_global(const Vector<2>* from) {
  Vector<2> v;
  asm volatile(LOAD_FLOATS ".v2.f32 {%0, %1}, [%2];" : "=f"(v.at[0]), "=f"(v.at[1]) : "l"(from));
  return v;
}

__device__ __forceinline__ Vector<4> load_global(const Vector<4>* from) {
  Vector<4> v;
  asm volatile(LOAD_FLOATS ".v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3])
               : "l"(from));
  return v;
}

__device__ __forceinline__ void store_global(Vector<1>* to, const Vector<1>& v) {
  asm volatile(STORE_FLOATS ".f32 [%0], %1;" ::"l"(to), "f"(v.at[0]) : "memory");
}

__device__ __forceinline__ void store_global(Vector<2>* to, const Vector<2>& v) {
  asm volatile(STORE_FLOATS ".v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(v.at[0]), "f"(v.at[1]) : "memory");
}

__device__ __forceinline__ void store_global(Vector<4>* to, const Vector<4>& v) {
  asm volatile(STORE_FLOATS ".v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.at[0]), "f"(v.at[1]), "f"(v.at[2]), "f"(v.at[3])
               : "memory");
}

#endif

// Offset in shared memory of element y of row x of the output. The swizzle exchanges vectors within a row, differently for
// each of the rows that a warp writes at once.
__device__ __forceinline__ int place(int x, int y) {
#if SWIZZLE
  return x * ROW + (y / VEC_STORE ^ x / VEC_LOAD % DOWN) * VEC_STORE + y % VEC_STORE;
#else
  return x * ROW + y;
#endif
}

template <int COUNT>
__device__ __forceinline__ bool allows(const void* matrix, Offset row) {
  return reinterpret_cast<unsigned long long>(matrix) % sizeof(Vector<COUNT>) == 0 && row % COUNT == 0;
}

// ---- The kernel.

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
transpose(float* __restrict__ output, const float* __restrict__ input, int rows, int columns) {
  extern __shared__ __align__(16) unsigned char shared_storage[];
  float* const tile = reinterpret_cast<float*>(shared_storage);
  const int thread = threadIdx.x;

  // Blocks run through bands of GROUP tiles, across the band first: rows of tiles, or columns of tiles. On the diagonal every
  // row of tiles begins one tile later than the row above it.
  const int tiles_x = (columns + TILE_X - 1) / TILE_X, tiles_y = (rows + TILE_Y - 1) / TILE_Y;
  const int along = RASTER == 1 ? tiles_y : tiles_x, bands = RASTER == 1 ? tiles_x : tiles_y;
  const int block = blockIdx.x, band_tiles = min(GROUP, bands) * along;
  const int band = block / band_tiles, within = block % band_tiles;
  const int height = min(GROUP, bands - band * GROUP);
  const int slow = band * GROUP + within % height;
  const int fast = RASTER == 2 ? (within / height + slow) % along : within / height;
  const int x0 = (RASTER == 1 ? slow : fast) * TILE_X, y0 = (RASTER == 1 ? fast : slow) * TILE_Y;

  const float* const from = input + static_cast<Offset>(y0) * columns + x0;
  float* const to = output + static_cast<Offset>(x0) * rows + y0;
  if (columns - x0 >= TILE_X && rows - y0 >= TILE_Y && allows<VEC_LOAD>(input, columns) && allows<VEC_STORE>(output, rows)) {
    const int x = thread % ACROSS * VEC_LOAD, y = thread / ACROSS * VEC_STORE;
    const float* const mine = from + static_cast<Offset>(y) * columns + x;
    Vector<VEC_LOAD> value[LOADS][VEC_STORE];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
#pragma unroll
      for (int r = 0; r < VEC_STORE; r++)
        value[i][r] = load_global(reinterpret_cast<const Vector<VEC_LOAD>*>(
            mine + static_cast<Offset>(i * LOAD_LINES * VEC_STORE + r) * columns));
#pragma unroll
    for (int i = 0; i < LOADS; i++)
#pragma unroll
      for (int e = 0; e < VEC_LOAD; e++) {
        Vector<VEC_STORE> line;
#pragma unroll
        for (int r = 0; r < VEC_STORE; r++) line.at[r] = value[i][r].at[e];
        *reinterpret_cast<Vector<VEC_STORE>*>(tile + place(x + e, y + i * LOAD_LINES * VEC_STORE)) = line;
      }
    __syncthreads();
    const int out_y = thread % DOWN * VEC_STORE, out_x = thread / DOWN;
    float* const target = to + static_cast<Offset>(out_x) * rows + out_y;
#pragma unroll
    for (int i = 0; i < STORES; i++) {
      const Vector<VEC_STORE> line = *reinterpret_cast<const Vector<VEC_STORE>*>(tile + place(out_x + i * STORE_LINES, out_y));
      store_global(reinterpret_cast<Vector<VEC_STORE>*>(target + static_cast<Offset>(i * STORE_LINES) * rows), line);
    }
  } else {
    const int width = min(columns - x0, TILE_X), depth = min(rows - y0, TILE_Y);
#pragma unroll 2
    for (int at = thread; at < TILE_X * TILE_Y; at += THREADS) {
      const int x = at % TILE_X, y = at / TILE_X;
      if (x < width && y < depth) tile[place(x, y)] = from[static_cast<Offset>(y) * columns + x];
    }
    __syncthreads();
#pragma unroll 2
    for (int at = thread; at < TILE_X * TILE_Y; at += THREADS) {
      const int y = at % TILE_Y, x = at / TILE_Y;
      if (x < width && y < depth) to[static_cast<Offset>(x) * rows + y] = tile[place(x, y)];
    }
  }
}

// The right answer, one thread for an element.
extern "C" __global__ void transpose_naive(float* output, const float* input, int rows, int columns) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < columns && y < rows) output[static_cast<Offset>(x) * rows + y] = input[static_cast<Offset>(y) * columns + x];
}
