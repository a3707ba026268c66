// The module callboard._native; python/callboard/_native.pyi is its contract.
#include <pybind11/stl.h>

#include "actors/core/output_file.h"
#include "actors/core/run_dir.h"
#include "config/cluster_config.h"
#include "messages/frame.h"
#include "python/bindings/bindings.h"

namespace callboard::python {
namespace {

std::string validate_config(const std::string& text, const std::string& file) {
  return value_or_raise(without_gil([&]() -> Result<std::string> {
    CALLBOARD_ASSIGN(const config::ClusterConfig parsed, config::parse_cluster(text, file));
    return config::to_yaml(parsed);
  }));
}

py::list list_clusters() {
  py::list list;
  for (const auto& record : without_gil([] { return actors::list_clusters(); })) list.append(cluster_dict(record));
  return list;
}

}  // namespace
}  // namespace callboard::python

PYBIND11_MODULE(_native, module) {
  namespace python = callboard::python;
  namespace py = pybind11;
  python::watch_interpreter_end();
  python::define_errors(module);
  python::define_fragment_builder(module);
  python::define_gpu_tensor(module);
  python::define_client(module);
  module.def("version", [] { return CALLBOARD_VERSION; });
  module.def("protocol_version", [] { return callboard::kProtocolVersion; });
  module.def("validate_config", &python::validate_config, py::arg("text"), py::arg("file") = "<string>");
  module.def("config_schema", [] { return callboard::config::cluster_schema_json(); });
  module.def(
      "check_output_file",
      [](const std::string& path) {
        python::check_or_raise(python::without_gil([&] { return callboard::actors::check_output_file(path); }));
      },
      py::arg("path"));
  module.def("list_clusters", &python::list_clusters);
  module.def(
      "find_cluster",
      [](const std::string& name) {
        return python::cluster_dict(
            python::value_or_raise(python::without_gil([&] { return callboard::actors::find_cluster(name); })));
      },
      py::arg("name_or_path") = "");
}
