#include "actors/client/c_api.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/client/c_api_guard.h"
#include "actors/client/client.h"
#include "messages/limits.h"

using namespace callboard;
using namespace callboard::actors;

// Members are destroyed in reverse order: what needs the client goes before it.

struct callboard_client {
  std::shared_ptr<Client> client;
};

struct callboard_program {
  std::shared_ptr<Client> client;
  std::shared_ptr<Program> program;
};

struct callboard_result {
  /// A result as callboard_tensor points to it.
  struct Output {
    TensorRef tensor;
    std::string dtype;
    bool readable = false;
    std::string why_not;
  };
  std::shared_ptr<Client> client;
  std::vector<Output> outputs;
};

namespace callboard::actors {

namespace {

constexpr double kSecondsMax = 86'400;

Status present(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return fail(ErrorCode::kUsage, std::string("'") + name + "' is NULL");
}

Result<Duration> duration(double seconds) {
  if (seconds > 0 && seconds <= kSecondsMax) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  return fail(ErrorCode::kUsage, "'seconds' is " + std::to_string(seconds) + "; allowed: above 0 and at most 86400");
}

/// A view of the caller's memory, which submit() copies.
Result<TensorRef> argument(const callboard_tensor& given, std::size_t index) {
  const std::string which = "inputs[" + std::to_string(index) + "]";
  if (given.dtype == nullptr) return fail(ErrorCode::kBadInput, which + ".dtype is NULL");
  if (given.rank > limits::kTensorRankMax) {
    return fail(ErrorCode::kBadInput, which + ".rank is " + std::to_string(given.rank) + "; at most " +
                                          std::to_string(limits::kTensorRankMax) + " are allowed");
  }
  if (given.rank > 0 && given.sizes == nullptr) return fail(ErrorCode::kBadInput, which + ".sizes is NULL");
  auto dtype = dtype_from_name(given.dtype);
  if (!dtype) {
    Error error = std::move(dtype).error();
    error.code = ErrorCode::kBadInput;
    error.message = which + ": " + error.message;
    return fail(std::move(error));
  }
  TensorRef tensor;
  tensor.meta.dtype = *dtype;
  tensor.meta.sizes.assign(given.sizes, given.sizes + given.rank);
  if (std::ranges::any_of(tensor.meta.sizes, [](std::int64_t size) { return size < 0; })) {
    return fail(ErrorCode::kBadInput, which + " has a negative size");
  }
  tensor.meta.strides = TensorMeta::contiguous_strides(tensor.meta.sizes);
  auto bytes = tensor.meta.extent_bytes();
  if (!bytes) {
    Error error = std::move(bytes).error();
    error.code = ErrorCode::kBadInput;
    error.message = which + ": " + error.message;
    return fail(std::move(error));
  }
  // Strides of dimensions of size 1 say nothing.
  for (std::size_t dim = 0; given.strides != nullptr && dim<given.rank&& * bytes> 0; ++dim) {
    if (tensor.meta.sizes[dim] > 1 && given.strides[dim] != tensor.meta.strides[dim]) {
      return fail(ErrorCode::kBadInput, which + " is not contiguous in dimension " + std::to_string(dim),
                  "copy it into contiguous memory first");
    }
  }
  if (*bytes > 0 && given.data == nullptr) return fail(ErrorCode::kBadInput, which + ".data is NULL");
  tensor.data = static_cast<std::byte*>(given.data);
  tensor.bytes = *bytes;
  return tensor;
}

callboard_result::Output output(const ClientValue& value) {
  callboard_result::Output made;
  const auto* tensor = std::get_if<TensorRef>(&value);
  if (tensor == nullptr) {
    made.why_not = "is no tensor";
  } else if (tensor->device) {
    made.why_not = "lies on a GPU";
  } else {
    made.tensor = *tensor;
    made.dtype = dtype_name(tensor->meta.dtype);
    made.readable = true;
  }
  return made;
}

Status run(const callboard_program& handle, const callboard_tensor* inputs, std::size_t count, double seconds,
           callboard_result** result) {
  CALLBOARD_ASSIGN(const Duration deadline, duration(seconds));
  const std::size_t wanted = handle.program->graph().inputs.size();
  if (count != wanted) {
    return fail(ErrorCode::kBadInput,
                std::to_string(count) + " inputs were given, the program has " + std::to_string(wanted));
  }
  if (count > 0) CALLBOARD_TRY(present(inputs, "inputs"));
  std::vector<ClientValue> values;
  for (std::size_t i = 0; i < count; ++i) {
    CALLBOARD_ASSIGN(TensorRef tensor, argument(inputs[i], i));
    values.emplace_back(std::move(tensor));
  }
  CALLBOARD_ASSIGN(const std::shared_ptr<Future> future, handle.program->submit(values, {.deadline = deadline}));
  CALLBOARD_ASSIGN(const std::shared_ptr<const RequestResult> outcome, future->get());
  auto made = std::make_unique<callboard_result>();
  made->client = handle.client;
  for (const ClientValue& value : outcome->outputs) made->outputs.push_back(output(value));
  *result = made.release();
  return {};
}

Status get(const callboard_result& result, std::size_t index, callboard_tensor& tensor) {
  if (index >= result.outputs.size()) {
    return fail(ErrorCode::kUsage, "there is no output " + std::to_string(index) + "; the program has " +
                                       std::to_string(result.outputs.size()));
  }
  const callboard_result::Output& found = result.outputs[index];
  if (!found.readable) {
    return fail(ErrorCode::kUnsupported, "output " + std::to_string(index) + " " + found.why_not,
                "the C interface reads tensors in host memory only");
  }
  const TensorMeta& meta = found.tensor.meta;
  std::byte* const first =
      found.tensor.data == nullptr
          ? nullptr
          : found.tensor.data + meta.storage_offset * static_cast<std::int64_t>(dtype_size(meta.dtype));
  tensor = {first, found.dtype.c_str(), meta.sizes.data(), meta.strides.data(), meta.sizes.size()};
  return {};
}

/// Gives a handle back: nothing that its end throws comes out.
template <class Handle>
void give_back(Handle* handle) noexcept {
  guarded([&]() -> Status {
    delete handle;
    return {};
  });
}

}  // namespace

}  // namespace callboard::actors

extern "C" {

int32_t callboard_c_api_version(void) { return CALLBOARD_C_API_VERSION; }

const char* callboard_last_error(void) { return last_error_text(); }

int32_t callboard_connect(const char* cluster, double seconds, callboard_client** client) {
  return guarded([&]() -> Status {
    CALLBOARD_TRY(present(client, "client"));
    *client = nullptr;
    CALLBOARD_ASSIGN(const Duration timeout, duration(seconds));
    Client::Options options;
    options.cluster = cluster == nullptr ? "" : cluster;
    options.connect_timeout = timeout;
    CALLBOARD_ASSIGN(std::unique_ptr<Client> connected, Client::connect(std::move(options)));
    *client = new callboard_client{std::move(connected)};
    return {};
  });
}

void callboard_disconnect(callboard_client* client) { give_back(client); }

int32_t callboard_load(callboard_client* client, const char* path, double seconds, callboard_program** program) {
  return guarded([&]() -> Status {
    CALLBOARD_TRY(present(program, "program"));
    *program = nullptr;
    CALLBOARD_TRY(present(client, "client"));
    CALLBOARD_TRY(present(path, "path"));
    CALLBOARD_ASSIGN(const Duration deadline, duration(seconds));
    CALLBOARD_ASSIGN(SavedProgram saved, load_program_file(std::string(path)));
    CALLBOARD_ASSIGN(std::shared_ptr<Program> loaded,
                     client->client->load(std::move(saved.graph), saved.constants, saved.placement, deadline));
    *program = new callboard_program{client->client, std::move(loaded)};
    return {};
  });
}

void callboard_unload(callboard_program* program) { give_back(program); }

size_t callboard_input_count(const callboard_program* program) {
  return program == nullptr ? 0 : program->program->graph().inputs.size();
}

size_t callboard_output_count(const callboard_program* program) {
  return program == nullptr ? 0 : program->program->graph().outputs.size();
}

int32_t callboard_run(callboard_program* program, const callboard_tensor* inputs, size_t count, double seconds,
                      callboard_result** result) {
  return guarded([&]() -> Status {
    CALLBOARD_TRY(present(result, "result"));
    *result = nullptr;
    CALLBOARD_TRY(present(program, "program"));
    return run(*program, inputs, count, seconds, result);
  });
}

int32_t callboard_result_get(const callboard_result* result, size_t index, callboard_tensor* tensor) {
  return guarded([&]() -> Status {
    CALLBOARD_TRY(present(tensor, "tensor"));
    *tensor = {};
    CALLBOARD_TRY(present(result, "result"));
    return get(*result, index, *tensor);
  });
}

void callboard_release(callboard_result* result) { give_back(result); }

}  // extern "C"
