// A folder of a test's own, gone at its end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

struct TemporaryFolder {
  std::string path;

  TemporaryFolder() {
    const char* parent = ::getenv("TMPDIR");
    path = std::string(parent != nullptr ? parent : "/tmp") + "/callboard-test-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) path.clear();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
};
