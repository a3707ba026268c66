#include "messages/graph.h"

namespace callboard {

Argument::Argument() = default;
Argument::Argument(const Argument& other) = default;
Argument::Argument(Argument&& other) noexcept = default;
Argument& Argument::operator=(const Argument& other) = default;
Argument& Argument::operator=(Argument&& other) noexcept = default;
Argument::~Argument() = default;
bool operator==(const Argument& a, const Argument& b) {
  return static_cast<const ArgumentVariant&>(a) == static_cast<const ArgumentVariant&>(b);
}

}  // namespace callboard
