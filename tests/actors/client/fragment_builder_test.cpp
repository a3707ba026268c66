#include "actors/client/fragment_builder.h"

#include <unistd.h>

#include <cstring>

#include "actors/client/safetensors.h"
#include "messages/codec.h"
#include "tests/actors/client/temporary_folder.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

ValueSpec tensor(std::string name) { return {std::move(name), ValueKind::kTensor, DType::kFloat32, {}}; }

ConstantStorage storage_of(const std::vector<float>& values) {
  return {values.data(), values.size() * sizeof(float), nullptr};
}

/// y = x + w, with w a constant of two floats.
struct Sum {
  std::vector<float> weights{1.5f, 2.5f};
  FragmentBuilder builder{"sum"};
  ValueId x, w, y;

  Sum() {
    x = builder.add_tensor_input("x", DType::kFloat32, {{Expr::constant(2)}}).value();
    w = builder.add_constant("w", storage_of(weights), TensorMeta::contiguous(DType::kFloat32, {2})).value();
    y = builder.call("aten::add.Tensor", {ArgValue{x}, ArgValue{w}}, tensor("y")).value();
    REQUIRE(builder.add_output("y", y));
  }
};

template <class T>
ErrorCode code_of(const T& result) {
  return result ? ErrorCode::kOk : result.error().code;
}

}  // namespace

TEST_CASE("a program of an input, a constant, a node and an output is whole", "[fragment_builder]") {
  Sum sum;
  auto graph = sum.builder.finish();
  REQUIRE(graph);
  CHECK(graph->name == "sum");
  REQUIRE(graph->nodes.size() == 1);
  CHECK(graph->nodes[0].name == "add_0");
  CHECK(graph->values.size() == 3);
  CHECK(graph->values[sum.y].name == "y");
  REQUIRE(graph->constants.size() == 1);
  CHECK(graph->constants[0].storage == ContentHash::of(sum.weights.data(), 8));
  CHECK(graph->constants[0].storage_bytes == 8);
}

TEST_CASE("tied weights and equal storages are kept once", "[fragment_builder]") {
  const std::vector<float> first{1, 2, 3, 4};
  const std::vector<float> equal = first;
  FragmentBuilder builder;
  const auto meta = TensorMeta::contiguous(DType::kFloat32, {4});
  TensorMeta half = TensorMeta::contiguous(DType::kFloat32, {2});
  half.storage_offset = 2;
  REQUIRE(builder.add_constant("a", storage_of(first), meta));
  REQUIRE(builder.add_constant("tied", storage_of(first), half));
  REQUIRE(builder.add_constant("equal", storage_of(equal), meta));
  CHECK(builder.graph().constants.size() == 3);
  REQUIRE(builder.constants().size() == 1);
  CHECK(builder.constant_bytes() == 16);
  CHECK(builder.constants()[0].data == first.data());
  CHECK(builder.find_storage(builder.constants()[0].hash) != nullptr);
  CHECK(builder.find_storage(ContentHash{}) == nullptr);
}

TEST_CASE("the builder keeps what keeps a storage", "[fragment_builder]") {
  auto owner = std::make_shared<std::vector<float>>(4, 1.0f);
  auto twin = std::make_shared<std::vector<float>>(4, 1.0f);
  {
    FragmentBuilder builder;
    const auto meta = TensorMeta::contiguous(DType::kFloat32, {4});
    REQUIRE(builder.add_constant("a", {owner->data(), 16, owner}, meta));
    REQUIRE(builder.add_constant("b", {twin->data(), 16, twin}, meta));
    CHECK(owner.use_count() == 2);
    CHECK(twin.use_count() == 2);
  }
  CHECK(owner.use_count() == 1);
  CHECK(twin.use_count() == 1);
}

TEST_CASE("R47: a constant that reaches beyond its storage is refused", "[fragment_builder]") {
  const std::vector<float> values(4);
  FragmentBuilder builder;
  TensorMeta meta = TensorMeta::contiguous(DType::kFloat32, {4});
  meta.storage_offset = 1;
  auto refused = builder.add_constant("weight", storage_of(values), meta);
  CHECK(code_of(refused) == ErrorCode::kBadGraph);
  CHECK(refused.error().message.find("weight") != std::string::npos);
  meta.storage_offset = -1;
  CHECK(code_of(builder.add_constant("w", storage_of(values), meta)) == ErrorCode::kBadGraph);
  meta = TensorMeta::contiguous(DType::kFloat32, {INT64_MAX, 4});
  CHECK(code_of(builder.add_constant("w", storage_of(values), meta)) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_constant("w", {nullptr, 16, {}}, TensorMeta::contiguous(DType::kFloat32, {4}))) ==
        ErrorCode::kBadArgument);
  CHECK(builder.graph().values.empty());
  CHECK(builder.constants().empty());
  CHECK(code_of(builder.add_constant("i", storage_of(values), TensorMeta::contiguous(DType::kInt32, {1}), true)) ==
        ErrorCode::kBadGraph);
  CHECK(builder.add_constant("empty", {nullptr, 0, {}}, TensorMeta::contiguous(DType::kFloat32, {0})));
}

TEST_CASE("misuse is refused where it happens and leaves the builder as it was", "[fragment_builder]") {
  Sum sum;
  auto& builder = sum.builder;
  const ProgramGraph before = builder.graph();
  CHECK(code_of(builder.add_input(tensor(""))) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_input(tensor("x"))) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_output("y", sum.y)) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_output("z", 99)) == ErrorCode::kUseBeforeDefinition);
  CHECK(code_of(builder.add_output({"z", ArgSymbol{Expr::symbol(0)}})) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_output({"z", ArgSymbol{Expr::value(0)}})) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_state("s", sum.x, sum.y)) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_state("s", sum.w, 99)) == ErrorCode::kUseBeforeDefinition);
  CHECK(code_of(builder.add_symbol("s", 3, 2)) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_symbol("")) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_input({"n", ValueKind::kInt, DType::kInt64, {}})) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_tensor_input("t", DType::kFloat32, {{Expr::symbol(0)}})) == ErrorCode::kBadGraph);
  for (const char* op : {"", "add", "::add", "aten::", "aten::add ", "aten::.Tensor", "aten::add."}) {
    CHECK(code_of(builder.call(op, {}, tensor("z"))) == ErrorCode::kBadGraph);
  }
  for (const Argument& bad :
       std::initializer_list<Argument>{ArgValue{99}, ArgValueList{{0, 99}}, ArgOptionalValueList{{99}}}) {
    auto refused = builder.call("aten::neg", {bad}, tensor("z"));
    REQUIRE(code_of(refused) == ErrorCode::kUseBeforeDefinition);
    CHECK(refused.error().op == "aten::neg");
    CHECK(refused.error().node == 1);
  }
  CHECK(code_of(builder.call("aten::neg", {ArgSymbol{Expr::symbol(0)}}, tensor("z"))) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.call("aten::neg", {ArgIntList{{Expr{}}}}, tensor("z"))) == ErrorCode::kBadGraph);
  CHECK(code_of(builder.add_node({"aten::neg", {}, {}, {}, "", "", "", 0}, {FragmentBuilder::Slot{false, {}}})) ==
        ErrorCode::kBadArgument);
  CHECK(builder.graph() == before);
}

TEST_CASE("R37: unused, list and missing outputs keep their places", "[fragment_builder]") {
  Sum sum;
  auto outputs =
      sum.builder.add_node({"some::op", {ArgOptionalValueList{{sum.x, kNoValue}}}, {}, {}, "", "", "", 0},
                           {FragmentBuilder::Slot::unused(), FragmentBuilder::Slot{true, {tensor("a"), std::nullopt}},
                            FragmentBuilder::Slot{true, {}}, FragmentBuilder::Slot::one(tensor("b"))});
  REQUIRE(outputs);
  REQUIRE(outputs->size() == 4);
  CHECK(outputs->at(0).values == std::vector<ValueId>{kNoValue});
  CHECK(outputs->at(1).is_list);
  CHECK(outputs->at(1).values == std::vector<ValueId>{3, kNoValue});
  CHECK(outputs->at(2).values.empty());
  CHECK(outputs->at(3).values == std::vector<ValueId>{4});
}

TEST_CASE("a saved program is loaded with its constants, placement and annotations", "[program_file]") {
  Sum sum;
  sum.builder.set_annotation("tree", "{}");
  REQUIRE(sum.builder.add_constant("empty", {}, TensorMeta::contiguous(DType::kFloat32, {0})));
  const ProgramGraph graph = sum.builder.finish().value();
  Placement placement;
  placement.devices = {"cpu1"};
  TemporaryFolder folder;
  const std::string path = folder.path + "/sum.safetensors";
  REQUIRE(save_program(path, graph, placement, sum.builder.constants()));
  auto saved = load_program_file(path);
  REQUIRE(saved);
  CHECK(saved->graph == graph);
  CHECK(saved->placement == placement);
  REQUIRE(saved->constants.size() == 2);
  CHECK(saved->constants[0].hash == graph.constants[0].storage);
  CHECK(std::memcmp(saved->constants[0].data, sum.weights.data(), 8) == 0);

  SECTION("without the bytes of a constant it is not saved") {
    auto refused = save_program(path, graph, placement, {});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kConstantMissing);
    CHECK(refused.error().message.find("'w'") != std::string::npos);
  }
}

TEST_CASE("a loaded program file stays what it was, whatever comes to lie at its path", "[program_file]") {
  Sum sum;
  const ProgramGraph graph = sum.builder.finish().value();
  TemporaryFolder folder;
  const std::string path = folder.path + "/sum.safetensors";
  REQUIRE(save_program(path, graph, {}, sum.builder.constants()));
  const auto saved = load_program_file(path);
  REQUIRE(saved);
  REQUIRE(::unlink(path.c_str()) == 0);
  CHECK_FALSE(load_program_file(path));
  const auto again = load_program_file(saved->file);
  REQUIRE(again);
  CHECK(again->graph == graph);
  CHECK(std::memcmp(again->constants[0].data, sum.weights.data(), 8) == 0);
}

TEST_CASE("a program file that was changed is refused", "[program_file]") {
  Sum sum;
  const ProgramGraph graph = sum.builder.finish().value();
  TemporaryFolder folder;
  const std::string path = folder.path + "/sum.safetensors";
  REQUIRE(save_program(path, graph, {}, sum.builder.constants()));
  auto file = SafetensorsFile::open(path).value();
  const auto rewritten = [&](auto change) {
    std::vector<SafetensorsItem> items;
    auto metadata = file.metadata;
    std::vector<std::string> bytes;
    bytes.reserve(file.entries.size());
    for (const auto& entry : file.entries) {
      bytes.emplace_back(reinterpret_cast<const char*>(file.data(entry)), entry.bytes);
      items.push_back({entry.name, DType::kUInt8, entry.sizes, nullptr});
    }
    change(items, bytes, metadata);
    for (std::size_t i = 0; i < items.size(); ++i) items[i].data = bytes[i].data();
    const std::string other = folder.path + "/other.safetensors";
    REQUIRE(write_safetensors(other, items, metadata));
    auto loaded = load_program_file(other);
    if (!loaded) return loaded.error().code;
    const Status status = verify_constants(*loaded);
    return status ? ErrorCode::kOk : status.error().code;
  };
  CHECK(rewritten([](auto&, auto&, auto&) {}) == ErrorCode::kOk);
  CHECK(rewritten([](auto&, auto& bytes, auto&) { bytes[0][0] ^= 1; }) == ErrorCode::kCorrupted);
  CHECK(rewritten([](auto& items, auto&, auto&) { items[0].name = "gone"; }) == ErrorCode::kConstantMissing);
  CHECK(rewritten([](auto& items, auto&, auto&) { items.back().name = "gone"; }) == ErrorCode::kMalformed);
  CHECK(rewritten([](auto&, auto&, auto& metadata) { metadata.erase("format"); }) == ErrorCode::kMalformed);
  CHECK(rewritten([](auto& items, auto&, auto&) { items[0].sizes = {4}; }) == ErrorCode::kCorrupted);
  CHECK(rewritten([](auto&, auto& bytes, auto&) { bytes.back().back() ^= 1; }) == ErrorCode::kCorrupted);
  CHECK(rewritten([](auto&, auto& bytes, auto&) {
          const FrameView frame = read_frame(bytes.back()).value();
          bytes.back() = make_frame(frame.type, std::string(frame.body), kProtocolVersion + 1).value();
        }) == ErrorCode::kVersionMismatch);
}
