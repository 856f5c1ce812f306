// The calls of the CUDA driver that a program needs to launch a GEMM kernel, on the emulator: linked with an emulated
// kernel it is a libcuda.so for a host without a GPU. Memory of the device is memory of the host, watched by the emulator.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void emulation_add_range(const char* name, const void* begin, size_t bytes, int writable);
const char* emulation_message();
int emulation_launch(void* call, unsigned grid, unsigned block, unsigned long shared, long long limit);
}

namespace {

struct Call {  // as gemm.cpp has it
  long long m, n, k;
  const void *alpha, *A;
  long long lda;
  const void* B;
  long long ldb;
  const void *beta, *C;
  long long ldc;
  int raster_group;
};

int most_shared = 48 << 10;  // unless asked for, as on a GPU
int matrices = 0;
bool initialised = false, current = false;

template <typename Value>
Value get(void* argument) {
  Value value;
  std::memcpy(&value, argument, sizeof(value));
  return value;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuInit(unsigned) {
  initialised = true;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&current);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  current = context == reinterpret_cast<CUcontext>(&current);
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuModuleLoad(CUmodule* code, const char* path) {
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  char magic[4] = {};
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) return CUDA_ERROR_FILE_NOT_FOUND;
  const size_t read = std::fread(magic, 1, sizeof(magic), file);
  std::fclose(file);
  *code = reinterpret_cast<CUmodule>(&matrices);
  return read == 4 && std::memcmp(magic, "\x7f" "ELF", 4) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(&most_shared);
  return std::strcmp(name, "gemm") == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  most_shared = value;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  if (!current || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const bool result = matrices++ == 2;  // A, B, C
  emulation_add_range(result ? "C" : "an input", memory, bytes, result);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                unsigned block_y, unsigned block_z, unsigned shared, CUstream, void** arguments, void**) {
  if (!current || grid_x == 0 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<int>(shared) > most_shared) return CUDA_ERROR_INVALID_VALUE;
  Call call = {get<long long>(arguments[0]),   get<long long>(arguments[1]),   get<long long>(arguments[2]),
               arguments[3],                   get<const void*>(arguments[4]), get<long long>(arguments[5]),
               get<const void*>(arguments[6]), get<long long>(arguments[7]),   arguments[8],
               get<const void*>(arguments[9]), get<long long>(arguments[10]),  get<int>(arguments[11])};
  if (emulation_launch(&call, grid_x, block_x, shared, 1000000000LL) == 0) return CUDA_SUCCESS;
  std::fprintf(stderr, "%s\n", emulation_message());
  return CUDA_ERROR_LAUNCH_FAILED;
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned) {
  *event = nullptr;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
  *milliseconds = 1;
  return CUDA_SUCCESS;
}
}
