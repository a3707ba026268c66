#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "messages/frame.h"
#include "messages/graph.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"

namespace callboard::cli {

void add_version(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      app.add_subcommand("version", "Print the version of the program, the protocol and the program format");
  add_output_option(*command, invocation);
  command->callback([&invocation] {
    invocation.run = [&invocation] {
      if (invocation.console.json) {
        print_line(dump(
            {{"version", CALLBOARD_VERSION}, {"protocol", kProtocolVersion}, {"graph_schema", kGraphSchemaVersion}}));
      } else {
        print_line("callboard " CALLBOARD_VERSION " (protocol " + std::to_string(kProtocolVersion) +
                   ", program format " + std::to_string(kGraphSchemaVersion) + ")");
      }
      return kExitOk;
    };
  });
}

}  // namespace callboard::cli
