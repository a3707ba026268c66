// Callboard's own operators, which come in one shared library (kernels/custom_ops) for devices and Python alike.
#pragma once

#include <string>
#include <string_view>

#include "messages/base/error.h"

namespace callboard::kernels {

/// The namespace of its operators. Python kernels that come with Callboard are in it too.
constexpr std::string_view kOwnNamespace = "callboard::";

/// Opens callboard_ops.so in `folder` (empty: beside this program), for good, which registers its operators with
/// LibTorch's dispatcher. Does nothing where they are registered, whoever did that: Python in this process may have.
/// kEnvironment names the file and what is missing. Any thread.
Status load_own_operators(const std::string& folder = {});

}  // namespace callboard::kernels
