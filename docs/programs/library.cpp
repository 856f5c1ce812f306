// Products of matrices with a library of sgemm NN, from two threads with a stream each.
//
//   g++ library.cpp -Isgemm_nn -Lsgemm_nn -lsgemm_nn -lcuda -pthread -o library && LD_LIBRARY_PATH=sgemm_nn ./library
//
// Matrices are stored by columns. The exit code is 1 where a result is wrong, and 2 where a call fails.
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "sgemm_nn.h"

static void check(CUresult status) {
  if (status == CUDA_SUCCESS) return;
  std::printf("the driver failed with %d\n", int(status));
  std::exit(2);
}

static void check_library(int status) {
  if (status == 0) return;
  std::puts(sgemm_nn_error(status));
  std::exit(2);
}

static CUdeviceptr copied(const std::vector<float>& values) {
  CUdeviceptr memory;
  check(cuMemAlloc(&memory, 4 * values.size()));
  check(cuMemcpyHtoD(memory, values.data(), 4 * values.size()));
  return memory;
}

static void multiply(CUcontext context, sgemm_nn_library* library, int m, int n, int k, bool* is_right) {
  check(cuCtxSetCurrent(context));
  CUstream stream;
  check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

  std::vector<float> A(size_t(m) * k), B(size_t(k) * n), C(size_t(m) * n);
  for (size_t i = 0; i < A.size(); i++) A[i] = int(i * 7 % 13) - 6;
  for (size_t i = 0; i < B.size(); i++) B[i] = int(i * 5 % 11) - 5;
  CUdeviceptr a = copied(A), b = copied(B), c = copied(C);

  // A stream has a workspace, zero before its first use and large enough for each of its products.
  size_t bytes = 0;
  CUdeviceptr workspace = 0;
  if (int status = sgemm_nn_choice(m, n, k, m, k, m, SIZE_MAX, &bytes); status < 0) check_library(status);
  if (bytes) {
    check(cuMemAlloc(&workspace, bytes));
    check(cuMemsetD8(workspace, 0, bytes));
  }
  check(cuCtxSynchronize());  // what was copied is there before the other stream begins

  *is_right = true;
  for (int repeat = 0; repeat < 3; repeat++) {
    check(cuMemsetD8Async(c, 0, 4 * C.size(), stream));
    check_library(sgemm_nn(library, m, n, k, 1.0f, (float*)a, m, (float*)b, k, 0.0f, (float*)c, m, (void*)workspace, bytes,
                           stream));
    check(cuStreamSynchronize(stream));
    check(cuMemcpyDtoH(C.data(), c, 4 * C.size()));
    for (int i = 0; i < m; i++) {
      for (int j = 0; j < n; j++) {
        double sum = 0;
        for (int l = 0; l < k; l++) sum += double(A[i + size_t(l) * m]) * B[l + size_t(j) * k];
        *is_right = *is_right && C[i + size_t(j) * m] == float(sum);
      }
    }
  }
  for (CUdeviceptr memory : {a, b, c, workspace}) {
    if (memory) check(cuMemFree(memory));
  }
  check(cuStreamDestroy(stream));
}

int main() {
  CUdevice device;
  CUcontext context;
  check(cuInit(0));
  check(cuDeviceGet(&device, 0));
  check(cuDevicePrimaryCtxRetain(&context, device));
  check(cuCtxSetCurrent(context));

  sgemm_nn_library* library;
  check_library(sgemm_nn_create(&library, SGEMM_NN_ABI));
  bool are_right[2];
  std::thread first(multiply, context, library, 65, 130, 3000, &are_right[0]);
  std::thread second(multiply, context, library, 256, 192, 64, &are_right[1]);
  first.join();
  second.join();
  sgemm_nn_destroy(library);
  std::puts(are_right[0] && are_right[1] ? "right" : "wrong");
  return are_right[0] && are_right[1] ? 0 : 1;
}
