#include "tests/conformance/gil_domain_suite.h"
#include "tests/kernels/process_domain/support/process_fixture.h"

TEST_CASE("the domain in a process holds to what every GIL domain holds to") {
  using namespace callboard;
  kernels::PythonOptions options = testing::process_options({});
  options.kernels = kernels::conformance::suite_entries();
  const auto domain = testing::make_process_domain(std::move(options));
  kernels::conformance::check_gil_domain(*domain, "process");
}
