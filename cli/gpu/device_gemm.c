/* SPDX-License-Identifier: Apache-2.0 */
#include "device_gemm.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "device_driver.h"
#include "device_memory.h"
#include "options.h"

/* Constants of cublas_v2.h and library_types.h. */
enum {
    KEPT = 0,          /* CUBLAS_OP_N */
    TRANSPOSED = 1,    /* CUBLAS_OP_T */
    SUM_FLOAT32 = 68,  /* CUBLAS_COMPUTE_32F */
    ALGORITHM_ANY = -1 /* CUBLAS_GEMM_DEFAULT */
};
enum { TYPE_FLOAT32 = 0, TYPE_FLOAT16 = 2, TYPE_BFLOAT16 = 14 }; /* cudaDataType */
enum { WORKSPACE_BYTES = 64 << 20 };

struct device_gemm {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*set_workspace)(void *handle, void *workspace, size_t bytes);
    int (*multiply)(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
                    const void *alpha, const void *a, int type_a, int stride_a, const void *b,
                    int type_b, int stride_b, const void *beta, void *c, int type_c, int stride_c,
                    int compute, int algorithm);
    void *handle, *workspace;
    const char *library;
};

static void require_cublas(int status, const char *call)
{
    if (status != 0) {
        fail("--device", "cuBLAS: %s failed with status %d", call, status);
    }
}

static bool load_cublas(struct device_gemm *gemm, const char *name)
{
    static const char *const names[] = {"cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2",
                                        "cublasSetWorkspace_v2", "cublasGemmEx"};
    void *const functions[] = {&gemm->create, &gemm->destroy, &gemm->set_stream,
                               &gemm->set_workspace, &gemm->multiply};
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    gemm->library = name;
    return library && !load_functions(library, names, functions, sizeof names / sizeof names[0]);
}

struct device_gemm *device_gemm_open(void)
{
    struct device_gemm *gemm = require_memory("cuBLAS", 1, sizeof *gemm);

    if (!load_cublas(gemm, "libcublas.so.13") && !load_cublas(gemm, "libcublas.so.12")) {
        free(gemm);
        return NULL;
    }
    require_cublas(gemm->create(&gemm->handle), "cublasCreate");
    gemm->workspace = device_memory_new(WORKSPACE_BYTES);
    return gemm;
}

void device_gemm_close(struct device_gemm *gemm)
{
    if (gemm) {
        gemm->destroy(gemm->handle);
        device_memory_free(gemm->workspace);
        free(gemm);
    }
}

const char *device_gemm_library(const struct device_gemm *gemm) { return gemm->library; }

static int get_cuda_type(gumbel_dtype dtype)
{
    return dtype == GUMBEL_BFLOAT16  ? TYPE_BFLOAT16
           : dtype == GUMBEL_FLOAT16 ? TYPE_FLOAT16
                                     : TYPE_FLOAT32;
}

void device_gemm_queue(struct device_gemm *gemm, gumbel_tensor hidden, gumbel_tensor weight,
                       void *out, void *stream)
{
    const float one = 1, zero = 0;
    const int V = (int)weight.rows, B = (int)hidden.rows, D = (int)weight.cols;
    const int type = get_cuda_type(weight.dtype);

    /* cuBLAS resets its workspace when the stream is set. */
    require_cublas(gemm->set_stream(gemm->handle, stream), "cublasSetStream");
    require_cublas(gemm->set_workspace(gemm->handle, gemm->workspace, WORKSPACE_BYTES),
                   "cublasSetWorkspace");
    /* cuBLAS is column-major: [B, V] is V x B, and weight is transposed. */
    require_cublas(gemm->multiply(gemm->handle, TRANSPOSED, KEPT, V, B, D, &one, weight.data, type,
                                  D, hidden.data, type, D, &zero, out, type, V, SUM_FLOAT32,
                                  ALGORITHM_ANY),
                   "cublasGemmEx");
}
