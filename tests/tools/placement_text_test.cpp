#include "tools/callboard/placement_text.h"

#include "tests/support/test.h"

using namespace callboard;
using callboard::cli::parse_placement;

TEST_CASE("auto, a list of devices, and rules are placements") {
  CHECK(parse_placement({"auto"}).value() == Placement{});
  CHECK(parse_placement({"cpu0"}).value().devices == std::vector<std::string>{"cpu0"});
  CHECK(parse_placement({"cpu0,cpu1"}).value().devices == std::vector<std::string>{"cpu0", "cpu1"});
  const Placement rules = parse_placement({"cpu0=encoder,head", "cpu1=decoder.layer.0"}).value();
  CHECK_FALSE(rules.automatic);
  REQUIRE(rules.rules.size() == 2);
  CHECK(rules.rules[0].module_prefixes == std::vector<std::string>{"encoder", "head"});
  CHECK(rules.rules[1].device == "cpu1");
}

TEST_CASE("what is no placement is a usage error that says what is") {
  for (const auto& options : std::vector<std::vector<std::string>>{{""},
                                                                   {"cpu0,"},
                                                                   {"CPU"},
                                                                   {"=a"},
                                                                   {"cpu0="},
                                                                   {"cpu0=a,,b"},
                                                                   {"cpu0", "cpu1"},
                                                                   {"cpu0=a", "cpu1"},
                                                                   {"auto", "cpu0"}}) {
    const auto placement = parse_placement(options);
    REQUIRE_FALSE(placement.has_value());
    CHECK(placement.error().code == ErrorCode::kUsage);
    CHECK(placement.error().hint.find("write auto") == 0);
  }
}
