#include "config/installation.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <stdlib.h>

#include "tests/support/test.h"

namespace fs = std::filesystem;
using callboard::config::device_program_of;
using callboard::config::interpreter_beside;

namespace {

/// A folder with empty files in it, gone at the end.
class Tree {
 public:
  Tree() {
    char name[] = "/tmp/callboard-installation-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root_ = name;
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  ~Tree() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  std::string file(const std::string& path) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream{root_ / path};
    return (root_ / path).string();
  }
  std::string name(const std::string& path) const { return (root_ / path).string(); }

 private:
  fs::path root_;
};

}  // namespace

TEST_CASE("the device's program beside the command comes first") {
  const Tree tree;
  const std::string self = tree.file("bin/callboard");
  const std::string in_package = tree.file("lib/python3.11/site-packages/callboard/bin/callboard-device");
  CHECK(device_program_of(self) == in_package);
  const std::string beside = tree.file("bin/callboard-device");
  CHECK(device_program_of(self) == beside);
}

TEST_CASE("a command of an environment finds the package's program, whatever pip calls the folder") {
  for (const char* packages :
       {"lib/python3.11/site-packages/", "lib64/python3.12/site-packages/", "lib/python3.11/dist-packages/", ""}) {
    const Tree tree;
    const std::string self = tree.file("bin/callboard");
    tree.file("lib/python3/note.txt");
    const std::string program = tree.file(std::string(packages) + "callboard/bin/callboard-device");
    CHECK(device_program_of(self) == program);
  }
}

TEST_CASE("where no device's program is, the place beside the command is named") {
  const Tree tree;
  CHECK(device_program_of(tree.file("bin/callboard")) == tree.name("bin/callboard-device"));
  CHECK(device_program_of("/no/such/folder/bin/callboard") == "/no/such/folder/bin/callboard-device");
}

TEST_CASE("a package's program belongs to the Python of its environment") {
  const Tree tree;
  const std::string program = tree.file("lib/python3.11/site-packages/callboard/bin/callboard-device");
  CHECK(interpreter_beside(program).empty());
  const std::string python3 = tree.file("bin/python3");
  CHECK(interpreter_beside(program) == python3);
  const std::string python = tree.file("bin/python");
  CHECK(interpreter_beside(program) == python);
}

TEST_CASE("a program outside a package belongs to no Python") {
  const Tree tree;
  tree.file("bin/python");
  CHECK(interpreter_beside(tree.file("bin/callboard-device")).empty());
  CHECK(interpreter_beside(tree.file("lib/python3.11/site-packages/other/bin/callboard-device")).empty());
  CHECK(interpreter_beside("callboard-device").empty());
}
