// Placements as the command line writes them.
#pragma once

#include <string>
#include <vector>

#include "messages/base/error.h"
#include "messages/graph.h"

namespace callboard::cli {

/// {"auto"}; {"cpu0,cpu1"}: automatic over these; {"cpu0=encoder,embeddings", "cpu1=decoder"}: by module prefixes, the
/// first match wins. kUsage for anything else.
Result<Placement> parse_placement(const std::vector<std::string>& options);

}  // namespace callboard::cli
