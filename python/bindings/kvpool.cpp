// The module callboard.kvpool; python/callboard/kvpool.pyi is its contract. pybind11 turns what the core throws into
// Python's exceptions: invalid_argument into ValueError, out_of_range into IndexError, bad_alloc into MemoryError and
// other std::exceptions into RuntimeError.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kv_pool.h"

namespace callboard::python {
namespace {

namespace py = pybind11;
using kernels::BlockPool;

/// A one-dimensional array of integers that int64 can hold; of a sequence of ints one is made. TypeError, ValueError.
py::array integers(const py::object& value, const char* name) {
  py::array array = py::array::ensure(value);
  if (!array) {
    PyErr_Clear();
    throw py::type_error(std::string(name) + " is no array");
  }
  if (array.ndim() != 1) {
    throw py::value_error(std::string(name) + " has " + std::to_string(array.ndim()) + " dimensions; it must have one");
  }
  // numpy makes float64 of an empty list.
  if (array.size() == 0) return py::array_t<std::int32_t>(0);
  const char kind = array.dtype().kind();
  if ((kind == 'i' || kind == 'u') && !(kind == 'u' && array.dtype().itemsize() == sizeof(std::uint64_t))) return array;
  throw py::type_error(std::string(name) + " is an array of " + std::string(py::str(array.dtype())) +
                       "; allowed: integers of at most 64 bits with a sign, best int32");
}

template <class T>
std::int64_t count_equal(const py::array& tokens, std::int64_t wanted) {
  const auto values = tokens.unchecked<T, 1>();  // by strides: the memory is read where it lies
  // The array is kept by the caller's reference, and no Python object is touched below.
  const py::gil_scoped_release release;
  std::int64_t count = 0;
  for (py::ssize_t i = 0; i < values.shape(0); ++i) count += static_cast<std::int64_t>(values(i)) == wanted ? 1 : 0;
  return count;
}

/// Whether elements can be read as T where they lie: the type, the byte order and the alignment are right.
template <class T>
bool lies_as(const py::array& array) {
  constexpr int kAligned = py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  return py::isinstance<py::array_t<T>>(array) && (array.flags() & kAligned) != 0;
}

std::int64_t count_eos(const py::object& tokens, std::int64_t eos) {
  const py::array array = integers(tokens, "tokens");
  if (lies_as<std::int32_t>(array)) return count_equal<std::int32_t>(array, eos);
  if (lies_as<std::int64_t>(array)) return count_equal<std::int64_t>(array, eos);
  using Converted = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
  return count_equal<std::int64_t>(Converted(array), eos);
}

using Blocks = std::vector<std::int32_t>;

template <class T>
std::vector<std::int64_t> copied(const py::array& array) {
  const auto values = array.unchecked<T, 1>();
  std::vector<std::int64_t> out(static_cast<std::size_t>(values.shape(0)));
  for (py::ssize_t i = 0; i < values.shape(0); ++i) out[static_cast<std::size_t>(i)] = values(i);
  return out;
}

/// The GIL is kept from the first look at `counts` to the end. (numpy's own conversions let go of it.)
std::optional<std::vector<Blocks>> allocate_many(BlockPool& pool, const py::object& counts) {
  const py::array array = integers(counts, "counts");
  if (lies_as<std::int32_t>(array)) return pool.allocate_many(copied<std::int32_t>(array));
  return pool.allocate_many(copied<std::int64_t>(py::array_t<std::int64_t, py::array::forcecast>(array)));
}

/// numpy's memory, read where it lies.
using Tokens = py::array_t<std::int32_t, py::array::c_style>;

std::span<const std::int32_t> span_of(const Tokens& tokens, const char* name) {
  if (tokens.ndim() != 1) {
    throw py::value_error(std::string(name) + " has " + std::to_string(tokens.ndim()) +
                          " dimensions; it must have one");
  }
  return {tokens.data(), static_cast<std::size_t>(tokens.size())};
}

std::size_t common_prefix_of_arrays(const Tokens& a, const Tokens& b) {
  const auto first = span_of(a, "a");
  const auto second = span_of(b, "b");
  const py::gil_scoped_release release;
  return kernels::common_prefix(first, second);
}

/// pybind11 has copied both, element by element, before this is called.
std::size_t common_prefix_of_lists(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  const py::gil_scoped_release release;
  return kernels::common_prefix(a, b);
}

std::string repr(const BlockPool& pool) { return "<BlockPool free=" + std::to_string(pool.num_free()) + ">"; }

}  // namespace
}  // namespace callboard::python

PYBIND11_MODULE(kvpool, module) {
  namespace python = callboard::python;
  namespace py = pybind11;
  using callboard::kernels::BlockPool;
  module.doc() = "Blocks of a paged KV cache by number, and what a scheduler asks of token sequences.";
  py::class_<BlockPool>(module, "BlockPool",
                        "A fixed number of blocks, each free or held by one or more owners. No lock of its own: its\n"
                        "methods keep the GIL, which lets one thread in at a time.")
      .def(py::init<std::int64_t>(), py::arg("num_blocks"))
      .def("allocate", &BlockPool::allocate, py::arg("n"),
           "n blocks with one owner each, ascending from a fresh pool; None if n is negative or more than are free.")
      .def("allocate_many", &python::allocate_many, py::arg("counts"),
           "For each count a list of so many blocks: all of them, or None and the pool as it was. ValueError for a\n"
           "negative count.\n\n"
           "Keeps the GIL: counts is a Python object, whose memory may be read only with it, and the pool has no lock\n"
           "but the GIL. Let go of it here, and another thread could take the blocks that this one has just counted.")
      .def("retain", &BlockPool::retain, py::arg("block"),
           "One owner more. IndexError: no such block. RuntimeError: it is free.")
      .def("release", &BlockPool::release, py::arg("block"),
           "One owner less; without any the block is free. IndexError: no such block. RuntimeError: it is free.")
      .def_property_readonly("num_free", &BlockPool::num_free, "How many blocks nobody holds.")
      .def_property_readonly("num_blocks", &BlockPool::num_blocks, "How many blocks there are.")
      .def("__repr__", &python::repr);
  // Arrays of int32 first, without conversion: what is no such array goes to the second.
  module.def("common_prefix", &python::common_prefix_of_arrays, py::arg("a").noconvert(), py::arg("b").noconvert());
  module.def(
      "common_prefix", &python::common_prefix_of_lists, py::arg("a"), py::arg("b"),
      "How many tokens both have in common at their start. Lets go of the GIL while it compares. numpy int32 arrays "
      "are read where they lie, other sequences are copied first.");
  module.def("count_eos", &python::count_eos, py::arg("tokens"), py::arg("eos"),
             "How many tokens are eos. int32 and int64 arrays are read where they lie, whatever their strides; other\n"
             "integers are converted first. TypeError for what holds no integers. Lets go of the GIL while it counts.");
}
