#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "config/cluster_config.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"

namespace callboard::cli {

void add_config(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("config", "What a cluster file may hold: schema, reference, effective values");
  command->require_subcommand(1);
  command->footer(R"(
Examples:
  callboard config reference                       all keys, as Markdown
  callboard config schema > cluster.schema.json    for an editor; then, as the first line of the file:
                                                   # yaml-language-server: $schema=cluster.schema.json
  callboard config show cluster.yaml               the file with all defaults filled in)");

  CLI::App* schema = command->add_subcommand("schema", "Print the JSON Schema (2020-12) of the cluster file");
  schema->callback([&invocation] {
    invocation.run = [] {
      print(config::cluster_schema_json());
      return kExitOk;
    };
  });
  CLI::App* reference =
      command->add_subcommand("reference", "Print all keys with type, default and meaning, as Markdown");
  reference->callback([&invocation] {
    invocation.run = [] {
      print(config::cluster_reference_markdown());
      return kExitOk;
    };
  });
  CLI::App* show = command->add_subcommand("show", "Print a cluster file with all defaults filled in");
  auto file = std::make_shared<std::string>();
  show->add_option("FILE", *file, "Cluster file; - is standard input")->required();
  show->callback([file, &invocation] {
    invocation.run = [file, &invocation] {
      const auto config = config::load_cluster(*file);
      if (!config) return report(config.error(), invocation.console);
      print(config::to_yaml(*config));
      return kExitOk;
    };
  });
}

}  // namespace callboard::cli
