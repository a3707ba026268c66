// Frames over one Unix stream socket between two processes of a host: no thread in between, so a message costs one
// system call and one wake-up a side, where ZeroMQ's I/O threads take three.
//
// Hub and Line meet over ZeroMQ. Once a Line is welcome, it connects to the Hub's second socket ("<endpoint>.d"), says
// hello there, and both send their frames this way. It is one more transport under the same Link, which puts in order
// and makes up for what a change between the two may lose; if the lane ends, frames go over ZeroMQ again.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/core/channel.h"
#include "actors/core/loop.h"
#include "messages/base/error.h"
#include "messages/base/fd.h"
#include "messages/limits.h"

namespace callboard::actors {

/// Of one loop, in its turn. Never blocks.
class DirectLane {
 public:
  struct Events {
    /// Each whole frame, unchecked but for its length. May destroy the lane.
    std::function<void(std::string_view frame)> frame;
    /// The peer closed it, it broke, or what came is no frame. At most once; nothing comes afterwards. May destroy it.
    std::function<void(const std::string& why)> ended;
  };
  /// A frame that announces more than `frame_max` bytes ends it.
  DirectLane(Loop& loop, UniqueFd socket, Events events, std::size_t frame_max = limits::kMessageBytesMax);
  ~DirectLane();  ///< finishes
  DirectLane(const DirectLane&) = delete;
  DirectLane& operator=(const DirectLane&) = delete;

  /// Written before the loop parks, together with all others of the round. False: full, or it has ended.
  bool put(const Frame& frame);
  bool ended() const { return ended_; }
  void set_frame_max(std::size_t frame_max) { frame_max_ = frame_max; }
  /// Writes what the system takes at once and closes it, without a word to anyone. False: something was left over.
  bool finish();

 private:
  void flush();
  void block(bool on);
  void on_write_failed(const std::string& why);
  void on_ready();
  void read_in();
  /// False if the lane ended or was destroyed.
  bool take_frames();
  void end(const std::string& why);

  Loop& loop_;
  UniqueFd socket_;
  const std::shared_ptr<const Events> events_;  // shared, so that a callback may destroy the lane
  std::size_t frame_max_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);

  std::deque<Frame> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::size_t written_ = 0;  // of the first waiting frame
  bool flush_planned_ = false;
  bool blocked_ = false;  // the system takes nothing now: the loop tells when it does

  std::vector<char> read_;  // [begin_, end_) is what came and was not taken yet
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool ended_ = false;
  bool quiet_ = false;  // finishing: nobody is told any more
};

/// The path beside a ZeroMQ ipc path; empty where it would be too long (then there is no direct lane).
std::string direct_lane_path(const std::string& ipc_path);

}  // namespace callboard::actors
