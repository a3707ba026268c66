// simulate --seed N [--count N] [--verbose]: runs simulated clusters; prints what happened and what broke.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/simulation/simulator.h"

int main(int argc, char** argv) {
  callboard::simulation::SimulationOptions options;
  std::uint64_t count = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--verbose") == 0) {
      options.verbose = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: simulate [--seed N] [--count N] [--verbose]\n");
      return 2;
    }
  }
  std::uint64_t broken = 0;
  for (std::uint64_t i = 0; i < count; ++i, ++options.seed) {
    callboard::simulation::Simulator simulator(options);
    const bool held = simulator.run();
    const auto& t = simulator.tally();
    if (!held || count == 1) {
      std::printf("%s", simulator.report().c_str());
      std::printf("submitted %llu ok %llu failed %llu cancelled %llu expired %llu retried %llu; kills %llu "
                  "restarts %llu\n",
                  static_cast<unsigned long long>(t.submitted), static_cast<unsigned long long>(t.ok),
                  static_cast<unsigned long long>(t.failed), static_cast<unsigned long long>(t.cancelled),
                  static_cast<unsigned long long>(t.expired), static_cast<unsigned long long>(t.retried),
                  static_cast<unsigned long long>(t.kills),
                  static_cast<unsigned long long>(t.restarts));
    }
    if (!held) ++broken;
  }
  std::printf("%llu of %llu runs broke an invariant\n", static_cast<unsigned long long>(broken),
              static_cast<unsigned long long>(count));
  return broken == 0 ? 0 : 1;
}
