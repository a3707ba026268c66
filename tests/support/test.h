// Catch2 for our tests. Include it last: LibTorch defines CHECK too, and Catch2's must win.
#pragma once

#ifdef CHECK
#undef CHECK
#endif
#include <catch2/catch.hpp>
