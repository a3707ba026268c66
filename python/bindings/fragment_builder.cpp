#include <pybind11/stl.h>

#include <map>

#include "messages/codec.h"
#include "python/bindings/bindings.h"

namespace callboard::python {
namespace {

using actors::FragmentBuilder;

FragmentBuilder::Slot to_slot(py::handle value) {
  if (value.is_none()) return FragmentBuilder::Slot::unused();
  if (!PyList_Check(value.ptr())) return FragmentBuilder::Slot::one(to_spec(value));
  FragmentBuilder::Slot slot{true, {}};
  for (const py::handle item : py::reinterpret_borrow<py::list>(value)) {
    slot.values.push_back(item.is_none() ? std::optional<ValueSpec>() : to_spec(item));
  }
  return slot;
}

py::object id_or_none(ValueId value) {
  if (value == kNoValue) return py::none();
  return py::int_(value);
}

py::list ids_of(const std::vector<NodeOutput>& outputs) {
  py::list ids;
  for (const auto& output : outputs) {
    if (!output.is_list) {
      ids.append(id_or_none(output.values.front()));
      continue;
    }
    py::list items;
    for (const ValueId value : output.values) items.append(id_or_none(value));
    ids.append(items);
  }
  return ids;
}

std::size_t add_symbol(PyFragmentBuilder& self, const std::string& name, std::int64_t min,
                       std::optional<std::int64_t> max) {
  return value_or_raise(
      self.use([&](FragmentBuilder& builder) { return builder.add_symbol(name, min, max.value_or(INT64_MAX)); }));
}

ValueId add_input(PyFragmentBuilder& self, const std::string& name, std::optional<std::string> dtype, py::object sizes,
                  const std::string& kind) {
  ValueSpec spec;
  spec.name = name;
  spec.kind = to_kind(kind);
  if (dtype) spec.dtype = to_dtype(*dtype);
  if (!sizes.is_none()) {
    spec.sizes.emplace();
    for (const py::handle size : py::cast<py::sequence>(sizes)) spec.sizes->push_back(to_expr(size));
  }
  return value_or_raise(self.use([&](FragmentBuilder& builder) { return builder.add_input(std::move(spec)); }));
}

ValueId add_constant(PyFragmentBuilder& self, const std::string& name, std::pair<std::uintptr_t, std::uint64_t> storage,
                     const std::string& dtype, py::object sizes, py::object strides, std::int64_t offset,
                     py::object owner, bool requires_grad) {
  TensorMeta meta;
  meta.dtype = to_dtype(dtype);
  meta.sizes = to_int_list(sizes, "sizes");
  meta.strides = to_int_list(strides, "strides");
  meta.storage_offset = offset;
  actors::ConstantStorage kept{reinterpret_cast<const void*>(storage.first), storage.second,
                               keep_object(std::move(owner))};
  return value_or_raise(self.use([&](FragmentBuilder& builder) {
    return builder.add_constant(name, std::move(kept), std::move(meta), requires_grad);
  }));
}

py::list add_node(PyFragmentBuilder& self, const std::string& op, py::object args, py::object kwargs,
                  py::object outputs, const std::string& name, const std::string& module_path,
                  const std::string& source, double cost) {
  Node node;
  node.op = op;
  node.name = name;
  node.module_path = module_path;
  node.source = source;
  node.cost = cost;
  for (const py::handle argument : py::cast<py::sequence>(args)) node.args.push_back(to_argument(argument));
  if (!kwargs.is_none()) {
    for (const auto& [key, argument] : py::cast<py::dict>(kwargs)) {
      node.kwargs.emplace_back(py::cast<std::string>(key), to_argument(argument));
    }
  }
  std::vector<FragmentBuilder::Slot> slots;
  for (const py::handle output : py::cast<py::sequence>(outputs)) slots.push_back(to_slot(output));
  return ids_of(value_or_raise(
      self.use([&](FragmentBuilder& builder) { return builder.add_node(std::move(node), std::move(slots)); })));
}

void save(PyFragmentBuilder& self, const std::string& path, py::object placement) {
  const Placement where = to_placement(placement);
  check_or_raise(self.use([&](FragmentBuilder& builder) -> Status {
    CALLBOARD_ASSIGN(const ProgramGraph graph, builder.finish());
    return actors::save_program(path, graph, where, builder.constants());
  }));
}

py::bytes encode(PyFragmentBuilder& self) {
  return value_or_raise(self.use([](FragmentBuilder& builder) -> Result<std::string> {
    CALLBOARD_ASSIGN(const ProgramGraph graph, builder.finish());
    return encode_program(graph);
  }));
}

}  // namespace

PyFragmentBuilder::~PyFragmentBuilder() {
  builder_ = FragmentBuilder();
  drop_deferred();
}

void define_fragment_builder(py::module_& module) {
  py::class_<PyFragmentBuilder>(module, "FragmentBuilder")
      .def(py::init<std::string>(), py::arg("name") = "")
      .def("add_symbol", &add_symbol, py::arg("name"), py::arg("min") = 0, py::arg("max") = py::none())
      .def("add_input", &add_input, py::arg("name"), py::arg("dtype") = py::none(), py::arg("sizes") = py::none(),
           py::arg("kind") = "tensor")
      .def("add_constant", &add_constant, py::arg("name"), py::arg("storage"), py::arg("dtype"), py::arg("sizes"),
           py::arg("strides"), py::arg("offset") = 0, py::arg("owner") = py::none(), py::arg("requires_grad") = false)
      .def(
          "add_state",
          [](PyFragmentBuilder& self, const std::string& name, ValueId before, ValueId after) {
            check_or_raise(self.use([&](FragmentBuilder& builder) { return builder.add_state(name, before, after); }));
          },
          py::arg("name"), py::arg("before"), py::arg("after"))
      .def("add_node", &add_node, py::arg("op"), py::arg("args") = py::tuple(), py::arg("kwargs") = py::none(),
           py::arg("outputs") = py::tuple(), py::arg("name") = "", py::arg("module_path") = "", py::arg("source") = "",
           py::arg("cost") = 0.0)
      .def(
          "add_output",
          [](PyFragmentBuilder& self, const std::string& name, py::object source) {
            ProgramOutput output = to_output(name, source);
            check_or_raise(self.use([&](FragmentBuilder& builder) { return builder.add_output(std::move(output)); }));
          },
          py::arg("name"), py::arg("source"))
      .def(
          "set_annotation",
          [](PyFragmentBuilder& self, const std::string& key, const std::string& value) {
            self.use([&](FragmentBuilder& builder) { builder.set_annotation(key, value); });
          },
          py::arg("key"), py::arg("value"))
      .def_property_readonly("node_count",
                             [](PyFragmentBuilder& self) {
                               return self.use([](FragmentBuilder& builder) { return builder.graph().nodes.size(); });
                             })
      .def_property_readonly("constant_bytes",
                             [](PyFragmentBuilder& self) {
                               return self.use([](FragmentBuilder& builder) { return builder.constant_bytes(); });
                             })
      .def("check",
           [](PyFragmentBuilder& self) {
             check_or_raise(self.use([](FragmentBuilder& builder) -> Status {
               CALLBOARD_TRY(builder.finish());
               return {};
             }));
           })
      .def("encode", &encode)
      .def("save", &save, py::arg("path"), py::arg("placement") = py::none());
}

}  // namespace callboard::python
