// Answers operations: at once, or when the devices that were asked have answered. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/coordinator/operations.h"
#include "actors/coordinator/programs.h"
#include "actors/coordinator/runs.h"

namespace callboard::actors {

class OperationDesk {
 public:
  OperationDesk(CoreContext& context, Members& members, Programs& programs, Runs& runs)
      : context_(context), members_(members), programs_(programs), runs_(runs) {}

  void operation(const ActorId& client, const Operation& order, TimePoint now);
  void device_reply(const ActorId& from, DeviceReply reply);
  void device_lost(const ActorId& who, const Error& why);
  void client_lost(const ActorId& client);
  /// wait_ready, and what is overdue. At the end of each step.
  void settle(TimePoint now);
  TimePoint next_due() const;
  std::size_t pending() const { return waits_.size() + questions_.size(); }

 private:
  /// A client that waits until all devices are ready.
  struct ReadyWait {
    ActorId client;
    RequestSeq request = 0;
    TimePoint deadline = kNever;
  };
  /// A question that went to one or several devices.
  struct Question {
    ActorId client;
    RequestSeq request = 0;
    TimePoint deadline = kNever;
    bool merge_trace = false;
    std::map<std::uint64_t, ActorId> asked;       // query number -> who has not answered
    std::map<std::string, std::string> results;   // by device
    std::vector<Error> errors;
  };

  Result<std::optional<std::string>> perform(const ActorId& client, RequestSeq request, const OperationCall& call,
                                             TimePoint now);
  Result<std::optional<std::string>> restart_actor(const OperationCall& call);
  Result<std::optional<std::string>> shutdown(const OperationCall& call);
  Result<std::optional<std::string>> cancel(const OperationCall& call);
  Result<std::optional<std::string>> quarantine_release(const OperationCall& call);
  Result<std::optional<std::string>> trace(Question question, const OperationCall& call);
  Result<std::optional<std::string>> device_query(Question question, const OperationCall& call);
  Result<DeviceIndex> named_device(const std::string& name) const;
  void ask(Question& question, DeviceIndex device, const std::string& name, const std::string& arguments);
  void answer(const ActorId& client, RequestSeq request, Result<std::string> result);
  void finish(std::uint64_t question);
  static Result<std::string> merged(const Question& question);

  CoreContext& context_;
  Members& members_;
  Programs& programs_;
  Runs& runs_;
  std::vector<ReadyWait> waits_;
  std::map<std::uint64_t, Question> questions_;
  std::map<std::uint64_t, std::uint64_t> question_of_query_;
  std::uint64_t next_number_ = 1;
};

}  // namespace callboard::actors
