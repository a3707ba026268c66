// The exception of our own kernels.
#pragma once

#include <exception>
#include <utility>

#include "messages/base/error.h"

namespace callboard::kernels {

/// What a kernel of our own throws when it has more to say than a text: code, hint and detail (a Python traceback)
/// arrive at the client as they are; operator and node are added. Holds plain data, no Python object. All in the
/// header: plug-ins throw it, too, and exceptions meet by their type's name.
class KernelFailure : public std::exception {
 public:
  explicit KernelFailure(Error error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message.c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
};

}  // namespace callboard::kernels
