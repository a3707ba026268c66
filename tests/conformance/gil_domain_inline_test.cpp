#include "tests/conformance/gil_domain_suite.h"

TEST_CASE("the inline domain holds to what every GIL domain holds to") {
  using namespace callboard;
  const auto domain = testing::make_domain(kernels::conformance::suite_entries());
  kernels::conformance::check_gil_domain(*domain, "inline");
}
