#pragma once

#include "kernels/device_backend.h"

namespace callboard::kernels {

/// The host's processor. Its "streams" are the threads themselves: a copy is done when copy() returns and an event is
/// ready as soon as it is recorded; which stream is current is a thread-local identity, kept so that a kernel that
/// leaves another one current is found on every kind of device.
Result<std::unique_ptr<DeviceBackend>> make_cpu_backend();

}  // namespace callboard::kernels
