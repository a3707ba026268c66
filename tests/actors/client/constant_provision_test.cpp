#include "actors/client/constant_provision.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "actors/client/safetensors.h"
#include "tests/actors/client/temporary_folder.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

constexpr std::uint64_t kTensorBytes = 128u << 10;

/// A node actor that has nothing, and keeps what it is given.
class RecordingLane final : public MemoryLane {
 public:
  Status add_segment(SegmentId, UniqueFd, std::uint64_t) override { return {}; }
  void drop_segment(SegmentId) override {}
  Result<kernels::OpenedSegment> open_segment(const ActorId&, SegmentId) override {
    return fail(ErrorCode::kUnsupported, "not here");
  }
  void release(const ActorId&, LeaseId) override {}
  void report_held(const ActorId&, std::vector<SegmentId>) override {}
  Result<std::vector<ContentHash>> find_constants(std::span<const ContentHash> hashes) override {
    return std::vector<ContentHash>(hashes.begin(), hashes.end());
  }
  Status add_constants(kernels::ConstantPack pack) override {
    if (pack.file && refuse_files) return fail(ErrorCode::kFileChanged, "refused");
    packs.push_back(std::move(pack));
    return {};
  }
  Result<OpenedConstant> open_constant(const ContentHash&) override {
    return fail(ErrorCode::kUnsupported, "not here");
  }
  void release_constants(std::vector<ContentHash>) override {}

  bool refuse_files = false;
  std::vector<kernels::ConstantPack> packs;
};

std::string content(char letter) { return std::string(kTensorBytes, letter); }
ContentHash hash_of(const std::string& text) { return ContentHash::of(text.data(), text.size()); }

/// Two tensors in a safetensors file, and a graph that wants them.
struct Saved {
  explicit Saved(std::uint64_t pad = 0) {
    std::vector<SafetensorsItem> items;
    const std::string padding(pad, ' ');
    if (pad > 0) items.push_back({"pad", DType::kUInt8, {static_cast<std::int64_t>(pad)}, padding.data()});
    for (const std::string* text : {&a, &b}) {
      items.push_back({text->substr(0, 1), DType::kUInt8, {static_cast<std::int64_t>(kTensorBytes)}, text->data()});
      graph.constants.push_back({text->substr(0, 1), 0, hash_of(*text), kTensorBytes,
                                 TensorMeta::contiguous(DType::kUInt8, {static_cast<std::int64_t>(kTensorBytes)})});
      hashes.push_back(hash_of(*text));
    }
    REQUIRE(write_safetensors(path, items, {}));
    file = std::make_shared<const WeightsFile>(WeightsFile{open_for_reading(path).value(), path});
    mapped = SafetensorsFile::open(path).value();
  }

  /// As a program file gives them.
  std::vector<ConstantBytes> by_file() const {
    std::vector<ConstantBytes> given = by_memory();
    for (ConstantBytes& each : given) {
      each.file = file;
      each.offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(each.data) -
                                               static_cast<const std::byte*>(mapped.keep.get()));
    }
    return given;
  }
  /// As a module gives them whose parameters are views of the mapped file.
  std::vector<ConstantBytes> by_memory() const {
    return {{hash_of(a), mapped.data(*mapped.find("a")), kTensorBytes},
            {hash_of(b), mapped.data(*mapped.find("b")), kTensorBytes}};
  }
  void overwrite(const char* tensor, char letter) const {
    const UniqueFd writable(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    REQUIRE(::pwrite(writable.get(), &letter, 1, static_cast<off_t>(mapped.find(tensor)->offset)) == 1);
  }

  const std::string a = content('a');
  const std::string b = content('b');
  TemporaryFolder folder;
  const std::string path = folder.path + "/weights.safetensors";
  ProgramGraph graph;
  std::vector<ContentHash> hashes;
  std::shared_ptr<const WeightsFile> file;
  SafetensorsFile mapped;
};

bool has(const kernels::ConstantPack& pack, const std::string& text) {
  const auto span = std::ranges::find(pack.spans, hash_of(text), &ConstantSpan::hash);
  if (span == pack.spans.end()) return false;
  std::string read(span->bytes, '\0');
  REQUIRE(::pread(pack.fd.get(), read.data(), read.size(), static_cast<off_t>(span->offset)) ==
          static_cast<ssize_t>(read.size()));
  return read == text;
}

TEST_CASE("constants of a file on 64 bytes go by file, and nothing of them is copied") {
  const Saved saved;
  const auto given = GENERATE(true, false) ? saved.by_file() : saved.by_memory();
  RecordingLane lane;
  REQUIRE(provide_constants(lane, saved.graph, saved.hashes, given));
  REQUIRE(lane.packs.size() == 1);
  const kernels::ConstantPack& pack = lane.packs.front();
  REQUIRE(pack.file);
  REQUIRE(pack.file->path == saved.path);
  REQUIRE(pack.bytes == pack.file->identity.bytes);
  REQUIRE((::fcntl(pack.fd.get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  REQUIRE(has(pack, saved.a));
  REQUIRE(has(pack, saved.b));
}

TEST_CASE("constants of a file off 64 bytes are copied to where they are on 64") {
  const Saved saved(24);
  const auto given = GENERATE(true, false) ? saved.by_file() : saved.by_memory();
  RecordingLane lane;
  REQUIRE(provide_constants(lane, saved.graph, saved.hashes, given));
  REQUIRE(lane.packs.size() == 1);
  REQUIRE_FALSE(lane.packs[0].file);
  for (const ConstantSpan& span : lane.packs[0].spans) REQUIRE(span.offset % 64 == 0);
  REQUIRE(has(lane.packs[0], saved.a));
  REQUIRE(has(lane.packs[0], saved.b));
}

TEST_CASE("memory that was written to since it was mapped is copied, and the rest of its file is not") {
  Saved saved;
  auto* const written = const_cast<std::byte*>(saved.mapped.data(*saved.mapped.find("b")));
  const std::string changed = "x" + saved.b.substr(1);
  *written = std::byte{'x'};
  saved.graph.constants[1].storage = saved.hashes[1] = hash_of(changed);
  auto given = saved.by_memory();
  given[1].hash = hash_of(changed);
  RecordingLane lane;
  REQUIRE(provide_constants(lane, saved.graph, saved.hashes, given));
  REQUIRE(lane.packs.size() == 2);
  REQUIRE(lane.packs[0].file);
  REQUIRE(has(lane.packs[0], saved.a));
  REQUIRE(lane.packs[0].spans.size() == 1);
  REQUIRE_FALSE(lane.packs[1].file);
  REQUIRE(has(lane.packs[1], changed));
}

TEST_CASE("memory whose file is another one by now, or is refused, is copied") {
  const Saved saved;
  RecordingLane lane;
  SECTION("replaced") {
    const std::string other = content('z');
    const std::vector<SafetensorsItem> items{
        {"z", DType::kUInt8, {static_cast<std::int64_t>(kTensorBytes)}, other.data()}};
    REQUIRE(write_safetensors(saved.path, items, {}));
  }
  SECTION("gone") { REQUIRE(::unlink(saved.path.c_str()) == 0); }
  SECTION("changed while it was read") { lane.refuse_files = true; }
  REQUIRE(provide_constants(lane, saved.graph, saved.hashes, saved.by_memory()));
  REQUIRE(lane.packs.size() == 1);
  REQUIRE_FALSE(lane.packs[0].file);
  REQUIRE(has(lane.packs[0], saved.a));
}

TEST_CASE("a file that does not hold what its program says is refused, however it would have gone") {
  for (const std::uint64_t pad : {0, 24}) {
    const Saved saved(pad);
    saved.overwrite("b", 'x');
    RecordingLane lane;
    const Status status = provide_constants(lane, saved.graph, saved.hashes, saved.by_file());
    REQUIRE_FALSE(status);
    CHECK(status.error().code == ErrorCode::kCorrupted);
    CHECK(status.error().message.find(saved.path) != std::string::npos);
    CHECK(lane.packs.empty());
  }
  const Saved saved;
  RecordingLane lane;
  lane.refuse_files = true;
  CHECK(provide_constants(lane, saved.graph, saved.hashes, saved.by_file()).error().code == ErrorCode::kFileChanged);
}

TEST_CASE("what nobody has is named, all at once") {
  const Saved saved;
  RecordingLane lane;
  const Status status = provide_constants(lane, saved.graph, saved.hashes, {});
  REQUIRE_FALSE(status);
  CHECK(status.error().code == ErrorCode::kConstantMissing);
  CHECK(status.error().causes.size() == 2);
  CHECK(lane.packs.empty());
}

}  // namespace
}  // namespace callboard::actors
