#include "actors/core/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

namespace files = std::filesystem;
using test::TempDir;

std::string text_in(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::size_t count_in(const std::string& folder) {
  return static_cast<std::size_t>(std::distance(files::directory_iterator(folder), files::directory_iterator()));
}

Status write_whole(const std::string& path, const std::string& text) {
  CALLBOARD_ASSIGN(OutputFile file, OutputFile::create(path));
  CALLBOARD_TRY(file.write(text));
  return file.finish();
}

TEST_CASE("a file is there when it is whole, and what was there before stays until then") {
  TempDir folder;
  const std::string path = folder.file("x");
  put(path, "old");
  {
    auto file = OutputFile::create(path);
    REQUIRE(file);
    REQUIRE(file->write("half"));
    CHECK(text_in(path) == "old");
  }
  CHECK(text_in(path) == "old");
  CHECK(count_in(folder.path()) == 1);
  REQUIRE(write_whole(path, "new"));
  CHECK(text_in(path) == "new");
  CHECK(count_in(folder.path()) == 1);
}

TEST_CASE("what is no regular file is refused and left as it is") {
  TempDir folder;
  const auto refused = [](const std::string& path) {
    const Status possible = check_output_file(path);
    REQUIRE_FALSE(possible);
    CHECK(possible.error().code == ErrorCode::kBadInput);
    CHECK(possible.error().message.find("'" + path + "'") != std::string::npos);
    CHECK(OutputFile::create(path).error() == possible.error());
    return possible.error().message;
  };
  SECTION("a device, where a rename would put a file in its place") {
    CHECK(refused("/dev/full").find("it is a device") != std::string::npos);
    struct stat info = {};
    REQUIRE(::stat("/dev/full", &info) == 0);
    CHECK(S_ISCHR(info.st_mode));
  }
  SECTION("a folder") {
    CHECK(refused(folder.path()).find("it is a folder") != std::string::npos);
    CHECK(refused(folder.file("new/")).find("the name of a folder") != std::string::npos);
  }
  SECTION("a pipe, also by a link") {
    REQUIRE(::mkfifo(folder.file("pipe").c_str(), 0600) == 0);
    files::create_symlink("pipe", folder.file("link"));
    CHECK(refused(folder.file("pipe")).find("it is a pipe") != std::string::npos);
    CHECK(refused(folder.file("link")).find("it is a pipe") != std::string::npos);
  }
  SECTION("a link to nothing") {
    files::create_symlink("nothing", folder.file("link"));
    CHECK(refused(folder.file("link")).find("not there") != std::string::npos);
  }
  SECTION("a path through a file") {
    put(folder.file("file"), "");
    CHECK_FALSE(check_output_file(folder.file("file/x")));
  }
}

TEST_CASE("paths that name nothing are refused") {
  CHECK(check_output_file("").error().code == ErrorCode::kBadInput);
  const Status nul = check_output_file(std::string("a\0b", 3));
  REQUIRE_FALSE(nul);
  CHECK(nul.error().message.find("NUL") != std::string::npos);
  const Status absent = check_output_file("/nonexistent/x");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == ErrorCode::kFileNotFound);
  CHECK(absent.error().message.find("'/nonexistent'") != std::string::npos);
  CHECK_FALSE(files::exists("/nonexistent"));
}

TEST_CASE("a link to a file is followed, and stays a link") {
  TempDir folder;
  files::create_directory(folder.file("elsewhere"));
  put(folder.file("elsewhere/x"), "old");
  files::create_symlink("elsewhere/x", folder.file("link"));
  REQUIRE(write_whole(folder.file("link"), "new"));
  CHECK(files::is_symlink(folder.file("link")));
  CHECK(text_in(folder.file("elsewhere/x")) == "new");
  CHECK(count_in(folder.file("elsewhere")) == 1);
}

TEST_CASE("what comes to lie at the path while the file is written is not replaced unless it is a file") {
  TempDir folder;
  const std::string path = folder.file("x");
  auto file = OutputFile::create(path);
  REQUIRE(file);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_FALSE(file->finish());
  struct stat info = {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK(S_ISFIFO(info.st_mode));
}

TEST_CASE("two writers of one path do not meet") {
  TempDir folder;
  const std::string path = folder.file("x");
  auto first = OutputFile::create(path);
  auto second = OutputFile::create(path);
  REQUIRE(first);
  REQUIRE(second);
  REQUIRE(first->write("first"));
  REQUIRE(second->write("second"));
  REQUIRE(first->finish());
  REQUIRE(second->finish());
  CHECK(text_in(path) == "second");
  CHECK(count_in(folder.path()) == 1);
}

TEST_CASE("one file is the same by every path") {
  TempDir folder;
  put(folder.file("x"), "");
  files::create_hard_link(folder.file("x"), folder.file("hard"));
  files::create_symlink("x", folder.file("soft"));
  put(folder.file("y"), "");
  CHECK(is_same_file(folder.file("x"), folder.file("hard")));
  CHECK(is_same_file(folder.file("soft"), folder.path() + "/./x"));
  CHECK_FALSE(is_same_file(folder.file("x"), folder.file("y")));
  CHECK_FALSE(is_same_file(folder.file("x"), folder.file("absent")));
  CHECK_FALSE(is_same_file(folder.file("absent"), folder.file("absent")));
}

}  // namespace
}  // namespace callboard::actors
