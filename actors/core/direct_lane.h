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
  DirectLane(Loop& loop, UniqueFd socket, Events events);
  ~DirectLane();  ///< writes what the system takes at once
  DirectLane(const DirectLane&) = delete;
  DirectLane& operator=(const DirectLane&) = delete;

  /// Written before the loop parks, together with all others of the round. False: full, or it has ended.
  bool put(const Frame& frame);
  bool ended() const { return ended_; }

 private:
  void flush();
  void on_ready();
  void read_in();
  /// False if the lane ended or was destroyed.
  bool take_frames();
  void end(const std::string& why);

  Loop& loop_;
  UniqueFd socket_;
  const std::shared_ptr<const Events> events_;  // shared, so that a callback may destroy the lane
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
  bool quiet_ = false;  // being destroyed: nobody is told any more
};

/// The path beside a ZeroMQ ipc path; empty where it would be too long (then there is no direct lane).
std::string direct_lane_path(const std::string& ipc_path);

}  // namespace callboard::actors
