// The calls of the CUDA driver that a program needs to launch a GEMM kernel, on the emulator: linked with an emulated
// kernel it is a libcuda.so for a host without a GPU. Memory of the device is memory of the host, watched by the emulator.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void emulation_add_range(const char* name, const void* begin, size_t bytes, int writable);
const char* emulation_message();
int emulation_launch(bool reference, void** arguments, const unsigned* grid, const unsigned* block, unsigned long shared,
                     long long limit);
}

namespace {

int most_shared = 48 << 10;  // unless asked for, as on a GPU
int allocated = 0;
bool initialised = false, current = false;

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
  *code = reinterpret_cast<CUmodule>(&allocated);
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
  const bool writable = allocated++ >= 2;  // after A and B: C, and a workspace
  emulation_add_range(writable ? "C or the workspace" : "an input", memory, bytes, writable);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return CUDA_SUCCESS;
}

// As hopper.hpp has a tensor map.
CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType kind, cuuint32_t rank, void* address, const cuuint64_t* extents,
                                        const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const long long bytes = kind == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : kind == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2 : 4;
  if (rank != 2 || swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * bytes != 128) return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<unsigned long long>(address) % 16 || strides[0] % 16) return CUDA_ERROR_INVALID_VALUE;
  const long long words[] = {reinterpret_cast<long long>(address), bytes, static_cast<long long>(extents[0]), static_cast<long long>(extents[1]),
                             static_cast<long long>(strides[0]) / bytes, box[1], 1, 0};
  std::memcpy(map, words, sizeof words);
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
  if (!current || grid_x == 0 || grid_y != 1 || grid_z == 0 || block_y != 1 || block_z != 1) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<int>(shared) > most_shared) return CUDA_ERROR_INVALID_VALUE;
  const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
  if (emulation_launch(false, arguments, grid, block, shared, 1000000000LL) == 0) return CUDA_SUCCESS;
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
