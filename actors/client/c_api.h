/* The C interface of Callboard's client: connect to a cluster, load a saved program, run it with tensors by pointer,
 * read the result. For C, and for whatever calls C: ctypes, cffi, Rust, Go. The library, libcallboard_client.so, needs
 * neither Python nor LibTorch.
 *
 *     callboard_client* client = NULL;
 *     callboard_program* program = NULL;
 *     callboard_result* result = NULL;
 *     if (callboard_connect("two-cpu", 10, &client) || callboard_load(client, "model.safetensors", 60, &program) ||
 *         callboard_run(program, inputs, 1, 30, &result))
 *       fprintf(stderr, "%s\n", callboard_last_error());
 *     callboard_tensor y;
 *     if (result && callboard_result_get(result, 0, &y) == 0) use(y.data);
 *     callboard_release(result);
 *     callboard_unload(program);
 *     callboard_disconnect(client);
 *
 * Errors. A function that can fail returns 0, or the number of an error (messages/base/error.h: 400 bad_input, 606
 * cluster_not_found, …), and then callboard_last_error() says what happened, where and what to do. No C++ exception
 * ever comes out: out of memory is 402, a fault of ours 900. A handle that could not be made is NULL.
 *
 * Handles belong to the caller, who gives each back once; NULL may be given back. A handle keeps alive what it needs,
 * so their order does not matter: a result may be read after its program and its client were given back. Threads: any,
 * and several may use one client or program at once; giving a handle back while another thread uses it is the caller's
 * fault. Every wait has a limit: the seconds given, which must be above 0 and at most 86400.
 */
#ifndef CALLBOARD_ACTORS_CLIENT_C_API_H
#define CALLBOARD_ACTORS_CLIENT_C_API_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CALLBOARD_C_API __attribute__((visibility("default")))
#else
#define CALLBOARD_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct callboard_client callboard_client;
typedef struct callboard_program callboard_program;
typedef struct callboard_result callboard_result;

/* A dense tensor in host memory. As an argument it is read during the call only, and copied. As a result it is the
 * result's memory, which may be written to (nobody else sees it) until callboard_release(). */
typedef struct callboard_tensor {
  void* data;             /* the first element; may be NULL if there is none */
  const char* dtype;      /* torch's name: "float32", "bfloat16", "int64", "bool", … */
  const int64_t* sizes;   /* `rank` sizes; may be NULL for rank 0 */
  const int64_t* strides; /* in elements; NULL: contiguous, last dimension innermost. Arguments must be contiguous */
  size_t rank;
} callboard_tensor;

/* Changes with every change of this header that old callers would not survive. */
#define CALLBOARD_C_API_VERSION 1
CALLBOARD_C_API int32_t callboard_c_api_version(void);

/* Text of the calling thread's last failure, UTF-8, several lines; "" if there was none. Good until its next one. */
CALLBOARD_C_API const char* callboard_last_error(void);

/* `cluster`: its name, its run directory, or NULL or "" for the only one that runs. 606 if there is none. */
CALLBOARD_C_API int32_t callboard_connect(const char* cluster, double seconds, callboard_client** client);
CALLBOARD_C_API void callboard_disconnect(callboard_client* client);

/* A program that was saved by Program.save() in Python or save_program() in C++, placed as it was saved. */
CALLBOARD_C_API int32_t callboard_load(callboard_client* client, const char* path, double seconds,
                                       callboard_program** program);
CALLBOARD_C_API void callboard_unload(callboard_program* program);
/* Of its inputs and outputs. 0 for NULL. */
CALLBOARD_C_API size_t callboard_input_count(const callboard_program* program);
CALLBOARD_C_API size_t callboard_output_count(const callboard_program* program);

/* Runs it with `count` tensors, one for each input in order, and waits for the result. 400 names what does not fit,
 * before anything is sent. */
CALLBOARD_C_API int32_t callboard_run(callboard_program* program, const callboard_tensor* inputs, size_t count,
                                      double seconds, callboard_result** result);
/* Number `index` of its outputs. What `tensor` points to is good until the result is released. 309: that output is no
 * tensor, or lies on a GPU. */
CALLBOARD_C_API int32_t callboard_result_get(const callboard_result* result, size_t index, callboard_tensor* tensor);
CALLBOARD_C_API void callboard_release(callboard_result* result);

#ifdef __cplusplus
}
#endif

#endif
