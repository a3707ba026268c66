#include "tests/conformance/device_backend_suite.h"

CALLBOARD_DEVICE_BACKEND_SUITE("cpu", "", )
