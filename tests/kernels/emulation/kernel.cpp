// The entries of an emulated kernel: its source, unmodified, and a function for the harness to call.
#include "cuda.hpp"

#include <utility>

#ifdef DEFINITIONS
#include DEFINITIONS
#endif
#include KERNEL_SOURCE

// Types of a wgmma's operands, as runtime.cpp numbers them: FP16, BF16, E4M3, E5M2.
#if PRECISION >= 9
constexpr int of_a = PRECISION >= 17 ? 3 : 2, of_b = PRECISION >= 13 && PRECISION < 17 ? 3 : 2;
extern const int emulation_types[2] = {SWAP ? of_b : of_a, SWAP ? of_a : of_b};
#elif PRECISION == 5 || PRECISION == 8
extern const int emulation_types[2] = {1, 1};
#else
extern const int emulation_types[2] = {0, 0};
#endif

#ifndef KERNEL_REFERENCE
#define KERNEL_REFERENCE KERNEL_ENTRY
#endif

extern "C" int emulation_run_grid(void (*function)(void*), void* arguments, const unsigned* grid, const unsigned* block,
                                  unsigned long shared, long long limit);

namespace {

#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))  // it reads what the harness owns

template <typename... Arguments, std::size_t... Positions>
UNCHECKED void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<Positions...>) {
  kernel(*static_cast<std::remove_reference_t<Arguments>*>(arguments[Positions])...);
}

template <typename... Arguments>
UNCHECKED void call(void (*kernel)(Arguments...), void* arguments) {
  call(kernel, static_cast<void**>(arguments), std::index_sequence_for<Arguments...>{});
}

UNCHECKED void run_entry(void* arguments) { call(&KERNEL_ENTRY, arguments); }
UNCHECKED void run_reference(void* arguments) { call(&KERNEL_REFERENCE, arguments); }

}  // namespace

// Launches the kernel, or its reference, on pointers to its arguments.
extern "C" int emulation_launch(bool reference, void** arguments, const unsigned* grid, const unsigned* block,
                                unsigned long shared, long long limit) {
  return emulation_run_grid(reference ? run_reference : run_entry, arguments, grid, block, shared, limit);
}
