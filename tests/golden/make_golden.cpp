// make_golden DIR            writes the golden frames
// make_golden --check DIR    compares them with what this program would write; 1 if anything differs
// make_golden --corpus DIR   writes seeds for the fuzzers: DIR/{frame,packet,program,fragment,error}/…
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "messages/codec.h"
#include "tests/golden/golden_messages.h"

namespace {

namespace fs = std::filesystem;
using callboard::golden::GoldenPacket;

std::map<std::string, std::string> golden_frames() {
  std::map<std::string, std::string> files;
  for (const GoldenPacket& packet : callboard::golden::golden_packets()) {
    auto frame = callboard::encode_packet(packet.envelope, packet.message);
    if (!frame) {
      std::cerr << packet.name << ": " << frame.error().to_string() << "\n";
      std::exit(2);
    }
    files[packet.name + ".bin"] = std::move(*frame);
  }
  return files;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void write_file(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

int check(const fs::path& folder) {
  int differences = 0;
  const auto report = [&differences](const std::string& name, const char* what) {
    std::cerr << name << " " << what << "\n";
    ++differences;
  };
  const std::map<std::string, std::string> files = golden_frames();
  for (const auto& [name, bytes] : files) {
    if (!fs::exists(folder / name))
      report(name, "is missing");
    else if (read_file(folder / name) != bytes)
      report(name, "differs: the protocol has changed");
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".bin" && files.count(name) == 0) report(name, "belongs to no message");
  }
  std::cout << files.size() << " golden frames, " << differences << " differences\n";
  return differences == 0 ? 0 : 1;
}

void write_corpus(const fs::path& folder) {
  for (const auto& [name, frame] : golden_frames()) {
    write_file(folder / "frame" / name, frame);
    // What fuzz_packet takes: the type (2 bytes), then the body.
    write_file(folder / "packet" / name, frame.substr(6, 2) + frame.substr(callboard::kFrameHeaderBytes));
  }
  write_file(folder / "program" / "golden", callboard::encode_program(callboard::golden::golden_program()));
  write_file(folder / "fragment" / "golden", callboard::encode_fragment(callboard::golden::golden_fragment()));
  write_file(folder / "error" / "golden", callboard::encode_error(callboard::golden::golden_error()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  if (argc < 2 || argc > 3 || (argc == 3 && mode != "--check" && mode != "--corpus")) {
    std::cerr << "make_golden [--check|--corpus] DIR\n";
    return 2;
  }
  const fs::path folder = argv[argc - 1];
  if (mode == "--check") return check(folder);
  if (mode == "--corpus") {
    write_corpus(folder);
    return 0;
  }
  for (const auto& [name, bytes] : golden_frames()) write_file(folder / name, bytes);
  return 0;
}
