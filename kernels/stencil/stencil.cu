// STEPS steps of a weighted Jacobi iteration with five points on a grid of floats, in one launch.
//
//     u'[y][x] = u[y][x] / 2 + (u[y - 1][x] + u[y + 1][x] + u[y][x - 1] + u[y][x + 1]) / 8
//
// The values on the edge of the grid stay as they are. Blocks overlap: each computes a halo of STEPS points around its own
// output again, a ring less in every step, and no block waits for another.
//
//   METHOD 0  A block holds a tile in registers, ROWS x VEC points a thread. In every step the threads exchange their points
//             through shared memory.
//   METHOD 1  A warp goes down a strip of the grid. It holds two rows of every step; each row that it reads makes one row of
//             every step, and at last one of output. Lanes exchange points by shuffles.
//   METHOD 2  The same for a whole block: its warps exchange the points at their ends through shared memory.
//
// Blocks at the edge of the grid test for it; if addresses or rows forbid wide accesses, every block does, and reads and
// writes point by point.
//
// Every capital name that is not defined here is a macro: a parameter of kernel.toml, or STEPS.

typedef long long Offset;

constexpr int WARP = 32;
constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int WARPS = THREADS / WARP;
constexpr unsigned ALL_LANES = 0xffffffff;
constexpr int WIDTH = VEC < 4 ? VEC : 4;  // points of a wide access
constexpr int HALO = (STEPS + WIDTH - 1) / WIDTH * WIDTH;  // along x
constexpr int TILE_X = BLOCK_X * VEC, OWN_X = TILE_X - 2 * HALO;
constexpr int TILE_Y = BLOCK_Y * ROWS;  // of method 0
constexpr int OWN_Y = METHOD == 0 ? TILE_Y - 2 * STEPS : ROWS;

template <int COUNT>
struct alignas(COUNT * sizeof(float)) Vector { float at[COUNT]; };

// ---- What the hardware does, in one place: an emulator on the host supplies its own.
#ifndef MLTUNE_HOST

#if READ == 0
#define LOAD_FLOATS "ld.global"
#elif READ == 1  // the non-coherent path
#define LOAD_FLOATS "ld.global.nc"
#else            // the same, and the lines leave the first-level cache at once
#define LOAD_FLOATS "ld.global.nc.L1::no_allocate"
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

// ---- Rows of a thread: VEC points from x on.

// What a thread knows about its place: the grid, its first column, the columns of the output that its block owns, and whether
// wide accesses are aligned.
struct Place {
  int nx, ny, x, own_begin, own_end;
  bool wide;

  __device__ __forceinline__ Offset offset(int y) const { return static_cast<Offset>(y) * nx + x; }
};

template <int COUNT>
__device__ __forceinline__ void load_points(float (&value)[VEC], const float* from, const Place& at, bool exists) {
#pragma unroll
  for (int e = 0; e < VEC; e += COUNT) {
    Vector<COUNT> part = {};
    if (exists && at.x + e >= 0 && at.x + e < at.nx) part = load_global(reinterpret_cast<const Vector<COUNT>*>(from + e));
#pragma unroll
    for (int i = 0; i < COUNT; i++) value[e + i] = part.at[i];
  }
}

template <int COUNT>
__device__ __forceinline__ void store_points(const float (&value)[VEC], float* to, const Place& at) {
#pragma unroll
  for (int e = 0; e < VEC; e += COUNT) {
    Vector<COUNT> part;
#pragma unroll
    for (int i = 0; i < COUNT; i++) part.at[i] = value[e + i];
    if (at.x + e >= at.own_begin && at.x + e < at.own_end) store_global(reinterpret_cast<Vector<COUNT>*>(to + e), part);
  }
}

// The points of row y, which begin at `from`. INSIDE: of a block without the edge of the grid. Points outside of the grid are 0;
// nothing that is written depends on them.
template <bool INSIDE>
__device__ __forceinline__ void load_row(float (&value)[VEC], const float* from, const Place& at, int y) {
  if constexpr (INSIDE) {
#pragma unroll
    for (int e = 0; e < VEC; e += WIDTH) {
      const Vector<WIDTH> part = load_global(reinterpret_cast<const Vector<WIDTH>*>(from + e));
#pragma unroll
      for (int i = 0; i < WIDTH; i++) value[e + i] = part.at[i];
    }
  } else {
    const bool exists = y >= 0 && y < at.ny;
    if (at.wide)
      load_points<WIDTH>(value, from, at, exists);
    else
      load_points<1>(value, from, at, exists);
  }
}

template <bool INSIDE>
__device__ __forceinline__ void store_row(const float (&value)[VEC], float* to, const Place& at) {
  if (INSIDE || at.wide)
    store_points<WIDTH>(value, to, at);
  else
    store_points<1>(value, to, at);
}

// One step of row y, in place of the row above it or of itself.
template <bool INSIDE>
__device__ __forceinline__ void relax(float (&result)[VEC], const float (&above)[VEC], const float (&row)[VEC],
                                      const float (&below)[VEC], float left, float right, const Place& at, int y) {
  float value[VEC];
#pragma unroll
  for (int e = 0; e < VEC; e++) {
    const float west = e == 0 ? left : row[e - 1], east = e == VEC - 1 ? right : row[e + 1];
    value[e] = 0.5f * row[e] + 0.125f * ((above[e] + below[e]) + (west + east));
  }
  if constexpr (!INSIDE) {
    if (y <= 0 || y >= at.ny - 1) {
#pragma unroll
      for (int e = 0; e < VEC; e++) value[e] = row[e];
    } else if (at.x <= 0 || at.x + VEC >= at.nx) {  // few warps come here
#pragma unroll
      for (int e = 0; e < VEC; e++)
        if (at.x + e <= 0 || at.x + e >= at.nx - 1) value[e] = row[e];
    }
  }
#pragma unroll
  for (int e = 0; e < VEC; e++) result[e] = value[e];
}

// ---- METHOD 0: a tile.
#if METHOD == 0

template <bool INSIDE>
__device__ __forceinline__ void compute(const float* input, float* output, const Place& at, int y0, float* shared) {
  const int tx = threadIdx.x % BLOCK_X, ty = threadIdx.x / BLOCK_X;
  const int first = y0 - STEPS + ty * ROWS;
  float value[ROWS][VEC];
#pragma unroll
  for (int r = 0; r < ROWS; r++) load_row<INSIDE>(value[r], input + at.offset(first + r), at, first + r);

  float* const mine = shared + ty * ROWS * TILE_X + tx * VEC;
  // The neighbours; beyond the tile some other point, on which no output depends.
  const int left = tx == 0 ? 0 : -1, right = tx == BLOCK_X - 1 ? VEC - 1 : VEC;
  const int above = ty == 0 ? 0 : -TILE_X, below = ty == BLOCK_Y - 1 ? (ROWS - 1) * TILE_X : ROWS * TILE_X;
#pragma unroll
  for (int t = 0; t < STEPS; t++) {
    float* const buffer = mine + t % BUFFERS * (TILE_X * TILE_Y);
    if (BUFFERS == 1 && t > 0) __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int e = 0; e < VEC; e += WIDTH) {
        Vector<WIDTH> part;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) part.at[i] = value[r][e + i];
        *reinterpret_cast<Vector<WIDTH>*>(buffer + r * TILE_X + e) = part;
      }
    __syncthreads();
    float up[VEC], down[VEC];
#pragma unroll
    for (int e = 0; e < VEC; e += WIDTH) {
      const Vector<WIDTH> upper = *reinterpret_cast<const Vector<WIDTH>*>(buffer + above + e);
      const Vector<WIDTH> lower = *reinterpret_cast<const Vector<WIDTH>*>(buffer + below + e);
#pragma unroll
      for (int i = 0; i < WIDTH; i++) up[e + i] = upper.at[i], down[e + i] = lower.at[i];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float old[VEC];
#pragma unroll
      for (int e = 0; e < VEC; e++) old[e] = value[r][e];
      const float west = buffer[r * TILE_X + left], east = buffer[r * TILE_X + right];
      relax<INSIDE>(value[r], up, old, r == ROWS - 1 ? down : value[r + 1 < ROWS ? r + 1 : r], west, east, at, first + r);
#pragma unroll
      for (int e = 0; e < VEC; e++) up[e] = old[e];
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    if (first + r >= y0 && first + r < min(y0 + OWN_Y, at.ny)) store_row<INSIDE>(value[r], output + at.offset(first + r), at);
}

// ---- METHOD 1, 2: a strip.
#else

constexpr int PERIOD = AHEAD < 2 ? 2 : AHEAD;  // rows after which the registers have the same roles again

template <bool INSIDE>
__device__ __forceinline__ void compute(const float* input, float* output, const Place& at, int y0, float* shared) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int y1 = min(y0 + OWN_Y, at.ny), first = y0 - STEPS, last = y1 + STEPS;

  float held[STEPS][2][VEC] = {};  // the last two rows before each step
  float ahead[AHEAD][VEC];         // rows that are on their way
#pragma unroll
  for (int a = 0; a < AHEAD; a++) load_row<INSIDE>(ahead[a], input + at.offset(first + a), at, first + a);
  const float* from = input + at.offset(first + AHEAD);
  float* to = output + at.offset(first - STEPS);

#if METHOD == 2  // the points at the ends of the warps: by row (odd, even), step, warp and end
  auto end_of = [&](int turn, int t, int w, int side) { return shared + ((turn * STEPS + t) * WARPS + w) * 2 + side; };
#pragma unroll 1
  for (int i = threadIdx.x; i < 4 * STEPS * WARPS; i += THREADS) shared[i] = 0.0f;
  __syncthreads();
#endif

#pragma unroll 1
  for (int base = first; base < last; base += PERIOD) {
#pragma unroll
    for (int p = 0; p < PERIOD; p++) {
      const int y = base + p;
      float below[VEC];
#pragma unroll
      for (int e = 0; e < VEC; e++) below[e] = ahead[p % AHEAD][e];
      if (y + AHEAD < last) load_row<INSIDE>(ahead[p % AHEAD], from, at, y + AHEAD);
      from += at.nx;
#pragma unroll
      for (int t = 0; t < STEPS; t++) {  // row y - t of step t makes row y - t - 1 of the next
        float(&above)[VEC] = held[t][p % 2];
        const float(&row)[VEC] = held[t][(p + 1) % 2];
        float left = __shfl_up_sync(ALL_LANES, row[VEC - 1], 1), right = __shfl_down_sync(ALL_LANES, row[0], 1);
#if METHOD == 2
        if (lane == 0 && warp > 0) left = *end_of((p + 1) % 2, t, warp - 1, 1);
        if (lane == WARP - 1 && warp < WARPS - 1) right = *end_of((p + 1) % 2, t, warp + 1, 0);
        if (lane == 0) *end_of(p % 2, t, warp, 0) = below[0];
        if (lane == WARP - 1) *end_of(p % 2, t, warp, 1) = below[VEC - 1];
#endif
        float next[VEC];
        relax<INSIDE>(next, above, row, below, left, right, at, y - t - 1);
#pragma unroll
        for (int e = 0; e < VEC; e++) above[e] = below[e], below[e] = next[e];
      }
      if (y - STEPS >= y0 && y - STEPS < y1) store_row<INSIDE>(below, to, at);
      to += at.nx;
#if METHOD == 2
      __syncthreads();
#endif
    }
  }
}

#endif

// ---- The kernel.

template <int COUNT>
__device__ __forceinline__ bool allows(const void* grid, int row) {
  return reinterpret_cast<unsigned long long>(grid) % sizeof(Vector<COUNT>) == 0 && row % COUNT == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
stencil(float* __restrict__ output, const float* __restrict__ input, int nx, int ny) {
  extern __shared__ __align__(16) unsigned char shared_storage[];
  constexpr int STRIPS = METHOD == 1 ? WARPS : 1;  // of a block, side by side
  const int strips = (nx + OWN_X - 1) / OWN_X, across = (strips + STRIPS - 1) / STRIPS;
  const int warp = __shfl_sync(ALL_LANES, static_cast<int>(threadIdx.x / WARP), 0);  // the compiler sees that lanes agree
  const int strip = blockIdx.x % across * STRIPS + (METHOD == 1 ? warp : 0);
  if (METHOD == 1 && strip >= strips) return;
  const int x0 = strip * OWN_X, y0 = blockIdx.x / across * OWN_Y;
  const int along = METHOD == 0 ? threadIdx.x % BLOCK_X : METHOD == 1 ? threadIdx.x % WARP : threadIdx.x;
  const bool wide = allows<WIDTH>(input, nx) && allows<WIDTH>(output, nx);
  const Place at = {nx, ny, x0 - HALO + along * VEC, x0, min(x0 + OWN_X, nx), wide};

  float* const shared = reinterpret_cast<float*>(shared_storage);
  if (wide && x0 > HALO && nx - x0 > OWN_X + HALO && y0 >= STEPS && ny - y0 >= OWN_Y + STEPS)
    compute<true>(input, output, at, y0, shared);
  else
    compute<false>(input, output, at, y0, shared);
}

// The right answer in double precision. Each thread computes all that its point depends on.
extern "C" __global__ void stencil_naive(float* output, const float* input, int nx, int ny) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= nx || y >= ny) return;
  constexpr int SIDE = 2 * STEPS + 1;
  double value[SIDE][SIDE];
  auto exists = [&](int i, int j) { return y + i >= STEPS && y + i < ny + STEPS && x + j >= STEPS && x + j < nx + STEPS; };
  for (int i = 0; i < SIDE; i++)
    for (int j = 0; j < SIDE; j++)
      value[i][j] = exists(i, j) ? input[static_cast<Offset>(y + i - STEPS) * nx + x + j - STEPS] : 0.0;
  for (int t = 1; t <= STEPS; t++) {
    double above[SIDE];
    for (int j = 0; j < SIDE; j++) above[j] = value[t - 1][j];
    for (int i = t; i < SIDE - t; i++) {
      double left = value[i][t - 1];
      for (int j = t; j < SIDE - t; j++) {
        const int gy = y + i - STEPS, gx = x + j - STEPS;
        const double old = value[i][j];
        if (gy > 0 && gy < ny - 1 && gx > 0 && gx < nx - 1)
          value[i][j] = 0.5 * old + 0.125 * (above[j] + value[i + 1][j] + left + value[i][j + 1]);
        above[j] = left = old;
      }
    }
  }
  output[static_cast<Offset>(y) * nx + x] = static_cast<float>(value[STEPS][STEPS]);
}
