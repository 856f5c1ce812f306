// A driver that records the last launch. Its machine code: \177ELF, the number of arguments, and the bytes of each.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }

typedef struct { int64_t shape[7]; int64_t arguments[20]; } launch_t;
launch_t fake_last;
static __thread launch_t of_thread;
int64_t fake_argument(int place) { return of_thread.arguments[place]; }
int64_t fake_count, fake_set_bytes, fake_loaded, fake_pushed, fake_stream;

int cuCtxGetCurrent(void **context) { *context = fake_pushed || number("FAKE_CONTEXT", 1) ? &fake_last : NULL; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &fake_last; return number("FAKE_PRIMARY", 1) ? 0 : 100; }
int cuCtxPushCurrent_v2(void *context) { fake_pushed++; return 0; }
int cuCtxPopCurrent_v2(void **context) { fake_pushed--; return 0; }
int cuPointerGetAttribute(int *value, int attribute, uint64_t address) { *value = 0; return attribute == 9 ? 0 : 1; }
int cuCtxGetDevice(int *device) { *device = 0; return fake_pushed || number("FAKE_CONTEXT", 1) ? 0 : 201; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? number("FAKE_MAJOR", 9) : attribute == 76 ? 0 : number("FAKE_SMS", 132);
  return 0;
}
int cuModuleLoadData(void **module, const void *image) {
  if (memcmp(image, "\177ELF", 4)) return 200;  // CUDA_ERROR_INVALID_IMAGE
  *module = (void *)image;
  fake_loaded++;
  return 0;
}
int cuModuleUnload(void *module) { fake_loaded--; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return strncmp(name, "gone", 4) ? 0 : 500; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return attribute == 8 ? 0 : 1; }
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream) { fake_set_bytes += count; return value; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
  int64_t shape[] = {gx, gy, gz, bx, by, bz, shared};
  memcpy(of_thread.shape, shape, sizeof shape);
  for (int i = 0; i < ((const unsigned char *)function)[4]; i++) {
    int bytes = ((const unsigned char *)function)[5 + i];
    of_thread.arguments[i] = 0;
    memcpy(&of_thread.arguments[i], arguments[i], bytes);
  }
  fake_last = of_thread;
  fake_stream = (int64_t)stream;
  fake_count++;
  return 0;
}
// The first word is made from all that is told; c_library.py has the same sum.
int cuTensorMapEncodeTiled(uint64_t *map, int kind, unsigned rank, uint64_t address, const uint64_t *extents, const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleaved, int swizzle, int promotion, int fill) {
  const uint64_t told[] = {kind, rank, address, extents[0], extents[1], strides[0], box[0], box[1], steps[0], steps[1], interleaved, swizzle, promotion, fill};
  if ((uint64_t)map % 64 || address % 16 || strides[0] % 16 || !extents[0] || !extents[1] || box[1] > 256) return 1;
  memset(map, 0, 128);
  for (int i = 0; i < 14; i++) map[0] = map[0] * 1000003 + told[i];
  return 0;
}
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } config_t;
int cuLaunchKernelEx(const config_t *to, void *function, void **arguments, void **extra) {
  if (to->count || number("FAKE_REFUSES", 0)) return 1;
  return cuLaunchKernel(function, to->grid[0], to->grid[1], to->grid[2], to->block[0], to->block[1], to->block[2], to->shared, to->stream, arguments, extra);
}

// What a program needs beside a library; its memory is the host's, in which no launch writes.
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = malloc(1); return 0; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuStreamDestroy_v2(void *stream) { free(stream); return 0; }
int cuMemAlloc_v2(void **memory, size_t count) { *memory = malloc(count); return 0; }
int cuMemFree_v2(void *memory) { free(memory); return 0; }
int cuMemcpyHtoD_v2(void *to, const void *from, size_t count) { memcpy(to, from, count); return 0; }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t count) { memcpy(to, from, count); return 0; }
int cuMemsetD8_v2(void *memory, unsigned char value, size_t count) { memset(memory, value, count); return 0; }
