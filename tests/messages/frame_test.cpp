#include "messages/frame.h"

#include "messages/limits.h"
#include "tests/support/test.h"

namespace callboard {
namespace {

ErrorCode refusal(std::string_view frame) {
  const auto read = read_frame(frame);
  return read ? ErrorCode::kOk : read.error().code;
}

TEST_CASE("a frame gives back version, type and body") {
  const std::string frame = make_frame(7, "body", 9).value();
  const FrameView view = read_frame(frame).value();
  CHECK(view.version == 9);
  CHECK(view.type == 7);
  CHECK(view.body == "body");
  CHECK(view.body.data() == frame.data() + kFrameHeaderBytes);
  CHECK(read_frame(make_frame(1, "").value()).value().body.empty());
}

TEST_CASE("the header is 24 bytes, little endian, the same on every machine") {
  const std::string frame = make_frame(0x0203, "abc", 0x0405).value();
  REQUIRE(frame.size() == kFrameHeaderBytes + 3);
  CHECK(frame.substr(0, 16) == std::string("CBRD\x05\x04\x03\x02\x03\0\0\0\0\0\0\0", 16));
}

TEST_CASE("sealing in place gives the bytes of a copy") {
  std::string frame(kFrameHeaderBytes, '\0');
  frame += "body";
  REQUIRE(seal_frame(frame, 3));
  CHECK(frame == make_frame(3, "body").value());
}

TEST_CASE("every flipped bit of a frame is noticed") {
  const std::string frame = make_frame(3, "some body of a message").value();
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    std::string damaged = frame;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    INFO("bit " << bit);
    CHECK(refusal(damaged) != ErrorCode::kOk);
  }
}

TEST_CASE("a shortened frame is truncated, a lengthened one corrupted") {
  const std::string frame = make_frame(3, "some body").value();
  for (std::size_t size = 0; size < frame.size(); ++size)
    CHECK(refusal(frame.substr(0, size)) == ErrorCode::kTruncated);
  CHECK(refusal(frame + "x") == ErrorCode::kCorrupted);
  CHECK(refusal(frame) == ErrorCode::kOk);
}

TEST_CASE("foreign bytes are corrupted, a foreign version is not") {
  std::string frame = make_frame(3, "x").value();
  frame[0] = 'X';
  CHECK(refusal(frame) == ErrorCode::kCorrupted);
  CHECK(refusal("GET / HTTP/1.1\r\nHost: x\r\n\r\n") == ErrorCode::kCorrupted);
  CHECK(refusal(make_frame(3, "x", 0xffff).value()) == ErrorCode::kOk);
}

TEST_CASE("a frame may have 16 MiB with its header, not one byte more") {
  const std::string body(limits::kMessageBytesMax - kFrameHeaderBytes, 'x');
  const std::string frame = make_frame(3, body).value();
  CHECK(frame.size() == limits::kMessageBytesMax);
  CHECK(refusal(frame) == ErrorCode::kOk);
  CHECK(make_frame(3, body + "x").error().code == ErrorCode::kTooLarge);
  std::string one_more(limits::kMessageBytesMax + 1, 'x');
  CHECK(seal_frame(one_more, 3).error().code == ErrorCode::kTooLarge);
  CHECK(refusal(one_more) == ErrorCode::kTooLarge);
}

TEST_CASE("R60: a length that the frame does not have is refused by its header alone") {
  std::string frame = make_frame(3, "x").value();
  frame[8] = frame[9] = frame[10] = frame[11] = '\xff';
  CHECK(refusal(frame) == ErrorCode::kTooLarge);
  frame[11] = 0;
  frame[10] = '\x7f';
  CHECK(refusal(frame) == ErrorCode::kTruncated);
}

}  // namespace
}  // namespace callboard
