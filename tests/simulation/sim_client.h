// A client's process: the product's Session, and a user who loads programs, submits, cancels and checks what comes
// back.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/client/session.h"
#include "tests/simulation/memory.h"
#include "tests/simulation/network.h"

namespace callboard::simulation {

class Simulator;

class SimClient {
 public:
  SimClient(Simulator& simulator, ActorId self);
  void start();
  void die();           ///< SIGKILL
  void close();         ///< lets go of its programs and says goodbye
  bool alive() const { return alive_; }
  bool died() const { return died_; }
  const std::shared_ptr<Channel>& channel() const { return channel_; }
  /// What is still open.
  std::string leftovers() const;
  /// Requests that are open longer than CS-1 allows.
  void check_hung();

 private:
  struct Program {
    ProgramGraph graph;
    Placement placement;
    ContentHash hash;
    bool loaded = false;
    bool counting = false;
    std::map<RequestSeq, std::uint64_t> versions;  ///< of the state, as requests brought it
    std::set<RequestSeq> notices;                  ///< requests that ended with kStateLost
    int tries = 0;
  };
  struct Open {
    std::size_t program = 0;
    std::vector<WireValue> inputs;
    std::vector<Content> contents;
    TimePoint deadline = kNever;
    bool completed = false;
    bool freed = false;
    bool cancelled = false;
  };

  Program make_program();
  void load(std::size_t index);
  void submit();
  void act(actors::Session::Actions actions);
  void loaded(const ProgramLoaded& answer);
  void completed(RequestSeq request, Outcome outcome);
  void check_value(const Open& open, Program& program, const Outcome& outcome);
  void check_state(Program& program, RequestSeq request, std::uint64_t version);
  Content oracle(const Program& program, const std::vector<Content>& inputs) const;
  void inputs_free(RequestSeq request);
  void settle(RequestSeq request);
  void discard(const WireValue& value);
  void beat();

  Simulator& sim_;
  World& world_;
  const ActorId self_;
  bool alive_ = true;
  bool died_ = false;
  std::unique_ptr<actors::Session> session_;
  Alarm alarm_;
  std::shared_ptr<Channel> channel_;
  std::vector<Program> programs_;
  std::map<RequestSeq, Open> open_;
  std::map<RequestSeq, std::size_t> load_of_;
  std::size_t loading_ = 0;
  int left_ = 0;  // requests that are still to be made
};

}  // namespace callboard::simulation
