// The entry of an emulated GEMM kernel: the kernel's source, unmodified, and a function for the harness to call.
#include "cuda.hpp"

#include KERNEL_SOURCE

extern "C" int emulation_run(void (*function)(void*), void* arguments, unsigned grid, unsigned block,
                             unsigned long shared, long long limit);

namespace {

struct Call {
  long long m, n, k;
  const void *alpha, *A;
  long long lda;
  const void* B;
  long long ldb;
  const void *beta, *C;
  long long ldc;
  int raster_group;
  void* workspace;
};

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))  // it reads what the harness owns

template <typename Element>
UNCHECKED void call(void (*kernel)(long long, long long, long long, Element, const Element*, long long, const Element*,
                                   long long, Element, Element*, long long, int),
                    const Call& c) {
  kernel(c.m, c.n, c.k, *static_cast<const Element*>(c.alpha), static_cast<const Element*>(c.A), c.lda,
         static_cast<const Element*>(c.B), c.ldb, *static_cast<const Element*>(c.beta),
         const_cast<Element*>(static_cast<const Element*>(c.C)), c.ldc, c.raster_group);
}

template <typename Element>
UNCHECKED void call(void (*kernel)(long long, long long, long long, Element, const Element*, long long, const Element*,
                                   long long, Element, Element*, long long),
                    const Call& c) {
  kernel(c.m, c.n, c.k, *static_cast<const Element*>(c.alpha), static_cast<const Element*>(c.A), c.lda,
         static_cast<const Element*>(c.B), c.ldb, *static_cast<const Element*>(c.beta),
         const_cast<Element*>(static_cast<const Element*>(c.C)), c.ldc);
}

template <typename Element>
UNCHECKED void call(void (*kernel)(long long, long long, long long, Element, const Element*, long long, const Element*,
                                   long long, Element, Element*, long long, int, void*),
                    const Call& c) {
  kernel(c.m, c.n, c.k, *static_cast<const Element*>(c.alpha), static_cast<const Element*>(c.A), c.lda,
         static_cast<const Element*>(c.B), c.ldb, *static_cast<const Element*>(c.beta),
         const_cast<Element*>(static_cast<const Element*>(c.C)), c.ldc, c.raster_group, c.workspace);
}

UNCHECKED void run(void* arguments) { call(&gemm, *static_cast<const Call*>(arguments)); }

}  // namespace

extern "C" int emulation_launch(Call* call, unsigned grid, unsigned block, unsigned long shared, long long limit) {
  return emulation_run(run, call, grid, block, shared, limit);
}
