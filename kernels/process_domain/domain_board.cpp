#include "kernels/process_domain/domain_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "messages/base/plain_text.h"

namespace callboard::kernels {

namespace {

Error no_memory(const char* what) {
  return Error(ErrorCode::kResourceExhausted,
               std::string("no shared page for a GIL domain: ") + what + ": " + std::strerror(errno),
               errno == EMFILE ? "raise the limit of open files (ulimit -n, RLIMIT_NOFILE)" : "");
}

Result<UniqueFd> create_file(const char* name, off_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail(no_memory("memfd_create"));
  if (bytes > 0 && ::ftruncate(fd.get(), bytes) != 0) return fail(no_memory("ftruncate"));
  return fd;
}

}  // namespace

void BoardText::set(std::string_view text) {
  text = text.substr(0, text_.size() - 1);
  for (std::size_t i = 0; i < text.size(); ++i) text_[i].store(text[i], std::memory_order_relaxed);
  text_[text.size()].store('\0', std::memory_order_relaxed);
}

std::string BoardText::get() const {
  std::string text;
  for (const std::atomic<char>& one : text_) {
    const char c = one.load(std::memory_order_relaxed);
    if (c == '\0') break;
    text += c;
  }
  return plain_text(text, text_.size());
}

Result<MappedBoard> MappedBoard::open(int fd) {
  void* data = ::mmap(nullptr, sizeof(DomainBoard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return fail(no_memory("mmap"));
  return MappedBoard(static_cast<DomainBoard*>(data));
}

Result<std::pair<MappedBoard, UniqueFd>> MappedBoard::create() {
  CALLBOARD_ASSIGN(UniqueFd fd, create_file("callboard:gil-board", sizeof(DomainBoard)));
  // A child that cuts it short would end the device that looks at it.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return fail(no_memory("sealing"));
  CALLBOARD_ASSIGN(MappedBoard board, open(fd.get()));
  return std::pair(std::move(board), std::move(fd));
}

MappedBoard::~MappedBoard() {
  if (board_ != nullptr) ::munmap(board_, sizeof(DomainBoard));
}

Result<UniqueFd> create_words() { return create_file("callboard:last-words", 0); }

}  // namespace callboard::kernels
