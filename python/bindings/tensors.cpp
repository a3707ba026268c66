// Tensors and numbers across the border, and what a program says of itself.
#include <ATen/dlpack.h>
#include <pybind11/stl.h>

#include <optional>

#include "actors/client/gpu_result_book.h"
#include "messages/stage_time.h"
#include "python/bindings/bindings.h"

namespace callboard::python {
namespace {

constexpr char kCapsule[] = "dltensor";
constexpr char kUsedCapsule[] = "used_dltensor";

struct DLName {
  DType dtype;
  std::uint8_t code;
  std::uint8_t bits;
};
constexpr DLName kDLNames[] = {
    {DType::kUInt8, kDLUInt, 8},
    {DType::kInt8, kDLInt, 8},
    {DType::kInt16, kDLInt, 16},
    {DType::kInt32, kDLInt, 32},
    {DType::kInt64, kDLInt, 64},
    {DType::kUInt16, kDLUInt, 16},
    {DType::kUInt32, kDLUInt, 32},
    {DType::kUInt64, kDLUInt, 64},
    {DType::kFloat16, kDLFloat, 16},
    {DType::kFloat32, kDLFloat, 32},
    {DType::kFloat64, kDLFloat, 64},
    {DType::kBFloat16, kDLBfloat, 16},
    {DType::kComplex32, kDLComplex, 32},
    {DType::kComplex64, kDLComplex, 64},
    {DType::kComplex128, kDLComplex, 128},
    {DType::kBool, kDLBool, 8},
    {DType::kFloat8E4M3FN, kDLFloat8_e4m3fn, 8},
    {DType::kFloat8E5M2, kDLFloat8_e5m2, 8},
    {DType::kFloat8E4M3FNUZ, kDLFloat8_e4m3fnuz, 8},
    {DType::kFloat8E5M2FNUZ, kDLFloat8_e5m2fnuz, 8},
    {DType::kFloat8E8M0FNU, kDLFloat8_e8m0fnu, 8},
};
static_assert(std::size(kDLNames) == kDTypeCount - 1, "every dtype crosses");

[[noreturn]] void bad_input(const std::string& name, const std::string& what, const std::string& hint = {}) {
  raise(Error(ErrorCode::kBadInput, "input '" + name + "': " + what, hint));
}

// -- in
// -------------------------------------------------------------------------------------------------------------

/// Owns what a capsule owned. Its deleter may touch Python, so this object is only ever a Python capsule that is
/// dropped with the GIL held.
void delete_managed(PyObject* capsule) {
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kUsedCapsule));
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
}

actors::TensorRef from_capsule(py::handle value, const std::string& name) {
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(value.ptr(), kCapsule));
  if (managed == nullptr) {
    PyErr_Clear();
    bad_input(name, "this capsule is no DLPack tensor, or was used before",
              "make a new one with torch.utils.dlpack.to_dlpack");
  }
  const DLTensor& from = managed->dl_tensor;
  if (from.device.device_type != kDLCPU && from.device.device_type != kDLCUDAHost) {
    bad_input(name, "the tensor is not on the CPU (DLPack device " + std::to_string(from.device.device_type) + ")",
              "call x.cpu()");
  }
  actors::TensorRef tensor;
  for (const auto& known : kDLNames) {
    if (from.dtype.lanes == 1 && from.dtype.code == known.code && from.dtype.bits == known.bits)
      tensor.meta.dtype = known.dtype;
  }
  if (tensor.meta.dtype == DType::kUndefined) {
    bad_input(name, "the DLPack dtype with code " + std::to_string(from.dtype.code) + ", " +
                        std::to_string(from.dtype.bits) + " bits and " + std::to_string(from.dtype.lanes) +
                        " lanes is not supported");
  }
  tensor.meta.sizes.assign(from.shape, from.shape + from.ndim);
  tensor.meta.strides = from.strides != nullptr ? std::vector<std::int64_t>(from.strides, from.strides + from.ndim)
                                                : TensorMeta::contiguous_strides(tensor.meta.sizes);
  const auto extent = tensor.meta.extent_bytes();
  if (!extent) bad_input(name, extent.error().message);
  tensor.bytes = *extent;
  tensor.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  if (PyCapsule_SetName(value.ptr(), kUsedCapsule) != 0) throw py::error_already_set();
  PyObject* owner = PyCapsule_New(managed, kUsedCapsule, delete_managed);
  if (owner == nullptr) throw py::error_already_set();
  tensor.keep = keep_object(py::reinterpret_steal<py::object>(owner));
  return tensor;
}

/// (address, dtype, sizes, strides, offset, bytes, owner)
actors::TensorRef from_tuple(py::handle value, const std::string& name) {
  const auto tuple = py::reinterpret_borrow<py::tuple>(value);
  if (tuple.size() != 7) bad_input(name, "a raw tensor is (address, dtype, sizes, strides, offset, bytes, owner)");
  actors::TensorRef tensor;
  tensor.data = reinterpret_cast<std::byte*>(py::cast<std::uintptr_t>(tuple[0]));
  tensor.meta.dtype = to_dtype(py::cast<std::string>(tuple[1]));
  tensor.meta.sizes = to_int_list(tuple[2], "sizes");
  tensor.meta.strides = to_int_list(tuple[3], "strides");
  tensor.meta.storage_offset = py::cast<std::int64_t>(tuple[4]);
  tensor.bytes = py::cast<std::uint64_t>(tuple[5]);
  tensor.keep = keep_object(py::reinterpret_borrow<py::object>(tuple[6]));
  return tensor;
}

// -- out
// ------------------------------------------------------------------------------------------------------------

/// A result as DLPack hands it on; freed by whoever took it, on any thread, without Python.
struct Managed {
  DLManagedTensor tensor{};
  actors::TensorRef result;
};

void delete_result(DLManagedTensor* tensor) { delete static_cast<Managed*>(tensor->manager_ctx); }

void delete_unused_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsule) == 0) return;
  delete_result(static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule)));
}

py::object to_capsule(const actors::TensorRef& result, DLDevice device) {
  auto managed = std::make_unique<Managed>();
  managed->result = result;
  TensorMeta& meta = managed->result.meta;
  DLTensor& out = managed->tensor.dl_tensor;
  out.data = result.data;
  out.byte_offset = 0;
  if (result.data != nullptr) {
    out.data = result.data + static_cast<std::uint64_t>(meta.storage_offset) * dtype_size(meta.dtype);
  }
  out.device = device;
  out.ndim = static_cast<std::int32_t>(meta.sizes.size());
  for (const auto& known : kDLNames) {
    if (known.dtype == meta.dtype) out.dtype = {known.code, known.bits, 1};
  }
  out.shape = meta.sizes.data();
  out.strides = meta.strides.data();
  managed->tensor.manager_ctx = managed.get();
  managed->tensor.deleter = delete_result;
  PyObject* capsule = PyCapsule_New(&managed->tensor, kCapsule, delete_unused_capsule);
  if (capsule == nullptr) throw py::error_already_set();
  managed.release();
  return py::reinterpret_steal<py::object>(capsule);
}

/// Never destroyed: results end after the interpreter, too.
actors::GpuResultBook& handed_on() {
  static auto* book = new actors::GpuResultBook;
  return *book;
}

/// A stream as torch numbers it, whose 0 is the legacy default one.
void record_stream(std::uintptr_t address, std::intptr_t stream) {
  constexpr std::intptr_t kLegacy = 1;
  void* reader = reinterpret_cast<void*>(stream == 0 ? kLegacy : stream);
  check_or_raise(without_gil([&] { return handed_on().use_on(reinterpret_cast<const void*>(address), reader); }));
}

/// A result on a GPU, for DLPack: its reader's stream is known only when it asks.
class PyGpuTensor {
 public:
  explicit PyGpuTensor(actors::TensorRef tensor) : tensor_(std::move(tensor)) {}

  py::tuple dlpack_device() const { return py::make_tuple(static_cast<int>(kDLCUDA), tensor_.device->ordinal()); }
  /// `stream` as the array API says: None and 1 the legacy default one, 2 that of the thread, else a cudaStream_t; -1:
  /// none, then the end of the lease is ordered behind the legacy one.
  py::object dlpack(const py::object& stream, const py::kwargs&) const {
    constexpr std::intptr_t kLegacy = 1;
    const std::intptr_t given = stream.is_none() ? kLegacy : py::cast<std::intptr_t>(stream);
    if (given == 0)
      throw py::value_error("stream 0 is ambiguous: 1 is the legacy default stream, 2 that of the thread");
    void* reader = reinterpret_cast<void*>(given == -1 ? kLegacy : given);
    check_or_raise(without_gil([&] { return tensor_.device->use_on(reader); }));
    handed_on().add(tensor_);
    return to_capsule(tensor_, {kDLCUDA, tensor_.device->ordinal()});
  }

 private:
  const actors::TensorRef tensor_;
};

struct ToPython {
  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(const actors::TensorRef& tensor) const {
    if (tensor.device) return py::cast(PyGpuTensor(tensor));
    return to_capsule(tensor, {kDLCPU, 0});
  }
  py::object operator()(std::int64_t value) const { return py::int_(value); }
  py::object operator()(double value) const { return py::float_(value); }
  py::object operator()(bool value) const { return py::bool_(value); }
};

}  // namespace

actors::ClientValue to_client_value(py::handle value, const std::string& name) {
  PyObject* object = value.ptr();
  if (object == Py_None) return std::monostate();
  if (PyBool_Check(object)) return object == Py_True;
  if (PyLong_Check(object)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) bad_input(name, "the integer does not fit 64 bits");
    return static_cast<std::int64_t>(number);
  }
  if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
  if (PyCapsule_CheckExact(object)) return from_capsule(value, name);
  if (PyTuple_Check(object)) return from_tuple(value, name);
  throw py::type_error("input '" + name + "' is a " + std::string(Py_TYPE(object)->tp_name) +
                       "; None, bool, int, float, a DLPack capsule or a raw tensor tuple is expected");
}

py::object from_client_value(const actors::ClientValue& value) { return std::visit(ToPython{}, value); }

void define_gpu_tensor(py::module_& module) {
  module.def("record_stream", record_stream, py::arg("address"), py::arg("stream"));
  py::class_<PyGpuTensor>(module, "GpuTensor")
      .def("__dlpack__", &PyGpuTensor::dlpack, py::arg("stream") = py::none())
      .def("__dlpack_device__", &PyGpuTensor::dlpack_device);
}

py::list plan_list(const actors::Program& program) {
  const auto& annotations = program.graph().annotations;
  const auto found = annotations.find(std::string(kCostsAnnotation));
  const std::string costs = found == annotations.end() ? std::string() : found->second;
  py::list list;
  for (const auto& fragment : program.plan()) {
    py::dict dict;
    dict["index"] = fragment.index;
    dict["device"] = fragment.device;
    dict["node_ranges"] = fragment.node_ranges;
    dict["modules"] = fragment.modules;
    dict["cost"] = fragment.cost;
    dict["constant_bytes"] = fragment.constant_bytes;
    dict["edge_bytes"] = fragment.edge_bytes;
    dict["peak_bytes"] = fragment.peak_bytes;
    dict["pure"] = fragment.pure;
    dict["random"] = fragment.random;
    dict["time_ns"] = stage_time_ns(fragment.cost, costs);
    dict["time_source"] = stage_time_source(costs);
    list.append(dict);
  }
  return list;
}

py::list input_list(const ProgramGraph& graph) {
  std::vector<std::string> symbols;
  for (const auto& symbol : graph.symbols) symbols.push_back(symbol.name);
  py::list list;
  for (const auto& input : graph.inputs) {
    const ValueSpec& spec = graph.values[input.value];
    py::dict dict;
    dict["name"] = input.name;
    dict["kind"] = std::string(value_kind_name(spec.kind));
    dict["dtype"] = py::none();
    if (spec.dtype != DType::kUndefined) dict["dtype"] = std::string(dtype_name(spec.dtype));
    dict["sizes"] = py::none();
    if (spec.sizes) {
      py::list sizes;
      for (const auto& size : *spec.sizes) {
        if (size.is_constant()) {
          sizes.append(size.terms[0].value);
        } else {
          sizes.append(size.to_string(symbols));
        }
      }
      dict["sizes"] = sizes;
    }
    list.append(dict);
  }
  return list;
}

py::dict cluster_dict(const actors::ClusterRecord& record) {
  py::dict dict;
  dict["name"] = record.name;
  dict["run_dir"] = record.run_dir;
  dict["node_pid"] = record.node_pid;
  dict["coordinator_pid"] = record.coordinator_pid;
  dict["epoch"] = record.epoch;
  dict["coordinator_endpoint"] = record.coordinator_endpoint;
  dict["memory_socket"] = record.memory_socket;
  dict["version"] = record.version;
  return dict;
}

}  // namespace callboard::python
