// What a GIL domain counts, as describe() tells it.
#pragma once

#include <string>

#include "kernels/gil_ledger.h"

namespace callboard::kernels {

/// A JSON object: "gil" (acquisitions by site, histograms of waits and holds, queue), "held_blocks", "held_bytes",
/// "copied_results", "copied_result_bytes".
std::string gil_board_json(const GilBoard& board);

}  // namespace callboard::kernels
