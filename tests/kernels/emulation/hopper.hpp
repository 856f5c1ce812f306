// What Hopper adds: barriers that count bytes, bulk copies, tensor maps and products of a warpgroup. cuda.hpp includes it.
// Clusters have one block. Names are not in capitals: those are macros of kernels.
#pragma once

extern "C" {
void emulation_poll();
void emulation_meet(int number, int threads);
void emulation_fence();
void emulation_fence_global();
void emulation_barrier_init(void* barrier, int arrivals);
void emulation_barrier_arrive(void* barrier, int bytes);
bool emulation_barrier_passed(void* barrier, unsigned parity);
void emulation_transfer_begin(void* barrier);
void emulation_transfer_piece(unsigned long to, const void* from, int valid, int bytes);
void emulation_store_piece(void* global, unsigned long from, int bytes);
void emulation_store(void* global, const void* shared, int bytes);
void emulation_store_commit();
void emulation_store_wait(int pending);
unsigned emulation_shared_address(const void* shared);
void emulation_wgmma_fence();
void emulation_wgmma(float* sums, int width, int sign, bool accumulates, unsigned long long a, unsigned long long b,
                     bool transposes_a, bool transposes_b, int type_a, int type_b);
void emulation_wgmma_commit();
void emulation_wgmma_wait(int pending);
void emulation_check_aligned(const void* address, int bytes);
}

typedef unsigned long long Bits;

inline unsigned shared_address(const void* shared) { return emulation_shared_address(shared); }
inline int cluster_rank() { return 0; }
inline void block_or_cluster_sync(int line = __builtin_LINE()) { emulation_barrier(line); }
inline void cluster_sync() {}
inline void pause() { emulation_poll(); }
template <int Threads>
inline void meet(int number) {
  emulation_meet(number, Threads);
}
inline void fence_proxy() { emulation_fence(); }
inline void fence_proxy_global() { emulation_fence_global(); }

inline void barrier_init(Bits* barrier, int arrivals) { emulation_barrier_init(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_expect(Bits* barrier, int bytes) { emulation_barrier_arrive(barrier, bytes); }
inline void barrier_arrive(Bits* barrier, int = 0) { emulation_barrier_arrive(barrier, 0); }
inline void barrier_wait(Bits* barrier, unsigned parity) {
  while (!emulation_barrier_passed(barrier, parity)) emulation_poll();
}

// ---- Bulk copies.

template <int Targets>
inline void bulk_load(void* shared, const void* global, int bytes, Bits* barrier) {
  static_assert(Targets == 1, "a cluster has one block");
  emulation_check_aligned(shared, 16);
  emulation_check_aligned(global, 16);
  emulation_transfer_begin(barrier);
  emulation_transfer_piece(shared_address(shared), global, bytes, bytes);
}

inline void bulk_store(void* global, const void* shared, int bytes) { emulation_store(global, shared, bytes); }
inline void bulk_commit() { emulation_store_commit(); }
template <int Pending>
inline void bulk_wait_read() {
  emulation_store_wait(Pending);
}
inline void bulk_wait() { emulation_store_wait(0); }

// A tensor map as the emulator has it, in the kernel's own memory for one; host.py packs it likewise.
struct EmulatedMap {
  const unsigned char* X;
  int element_bytes;
  long long inner, outer, ld;
  int box_outer;
  long long products, stride;
};

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))  // it is the copy engine's, not the thread's

template <typename Map, typename Element>
UNCHECKED void make_map(Map* map, Map*, const Element* X, unsigned inner, unsigned outer, Bits ld, int box_outer,
                        unsigned products, Bits stride) {
  static_assert(sizeof(Map) == 128 && alignof(Map) >= 64, "a tensor map has 128 bytes");
  emulation_check_aligned(X, 16);
  for (Bits bytes : {ld * sizeof(Element), stride * sizeof(Element)}) emulation_check_aligned(reinterpret_cast<const void*>(bytes), 16);
  emulation_check_store(map, sizeof(Map));
  if (emulation_lane() == 0)
    *reinterpret_cast<EmulatedMap*>(map) = {
        reinterpret_cast<const unsigned char*>(X), sizeof(Element), inner, outer, static_cast<long long>(ld), box_outer, products,
        static_cast<long long>(stride)};
}

inline void acquire_map(const void*) {}
template <typename Map>
inline void prefetch_map(const Map&) {}

// Lines of 128 bytes, swizzled; zeros where there is no matrix.
template <int Targets, typename Map>
UNCHECKED void copy_box(void* shared, const Map* at, int inner, int outer, int product, Bits* barrier, int) {
  static_assert(Targets == 1, "a cluster has one block");
  const EmulatedMap& map = *reinterpret_cast<const EmulatedMap*>(at);
  emulation_check_aligned(shared, 128);
  const int bytes = map.element_bytes, chunk = 16 / bytes;
  emulation_check_aligned(map.X + inner * bytes, 16);
  emulation_transfer_begin(barrier);
  for (int line = 0; line < map.box_outer; line++)
    for (int element = 0; element < 128 / bytes; element += chunk) {
      const unsigned long logical = shared_address(shared) + line * 128 + element * bytes;
      const long long x = static_cast<long long>(inner) + element, y = static_cast<long long>(outer) + line;
      const long long valid = y < map.outer && x < map.inner && product < map.products ? map.inner - x : 0;
      const unsigned char* const from = map.X + (product * map.stride + y * map.ld + x) * bytes;
      emulation_transfer_piece(logical ^ (logical >> 7 & 7) << 4, from, valid < chunk ? valid * bytes : 16, 16);
    }
}

// The way back. What lies outside of the matrix is left out, but of a line whole 16 bytes are written.
template <typename Map>
UNCHECKED void store_box(const Map* at, const void* shared, int inner, int outer, int product) {
  const EmulatedMap& map = *reinterpret_cast<const EmulatedMap*>(at);
  emulation_check_aligned(shared, 1024);
  const int bytes = map.element_bytes, chunk = 16 / bytes;
  for (int line = 0; line < map.box_outer && outer + line < map.outer; line++)
    for (int element = 0; element < 128 / bytes && inner + element < map.inner; element += chunk) {
      const unsigned long logical = shared_address(shared) + line * 128 + element * bytes;
      const unsigned char* const to = map.X + (product * map.stride + (outer + line) * map.ld + inner + element) * bytes;
      emulation_store_piece(const_cast<unsigned char*>(to), logical ^ (logical >> 7 & 7) << 4, 16);
    }
  emulation_store_commit();
}
inline void wait_until_read() { emulation_store_wait(0); }

// ---- Products.

template <int Registers>
inline void registers_give() {
  static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 256, "a number of registers that can be had");
}
template <int Registers>
inline void registers_take() {
  registers_give<Registers>();
}

inline void hold(float&) {}
inline void wgmma_fence() { emulation_wgmma_fence(); }
inline void wgmma_commit() { emulation_wgmma_commit(); }
template <int Pending>
inline void wgmma_wait() {
  emulation_wgmma_wait(Pending);
}

template <int Sign, int Width>
UNCHECKED inline void wgmma(float (&sums)[Width], Bits a, Bits b, bool accumulates) {
  emulation_wgmma(sums, Width, Sign, accumulates, a, b, false, false, 0, 0);
}

extern const int emulation_types[2];  // of the operands, behind the kernel's own macros

template <bool TransposesA, bool TransposesB, bool Accumulates = true, int Width>
UNCHECKED inline void wgmma(float (&sums)[Width], Bits a, Bits b) {
  emulation_wgmma(sums, Width, 1, Accumulates, a, b, TransposesA, TransposesB, emulation_types[0], emulation_types[1]);
}

#undef UNCHECKED
