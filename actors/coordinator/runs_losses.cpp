// The part of Runs that acts on deaths: whose requests fail, which of them run again (CO-7), and who caused it.
#include <algorithm>
#include <utility>

#include "actors/coordinator/runs.h"

namespace callboard::actors {

void Runs::device_lost(const DeviceLoss& loss) {
  std::vector<RunId> hit;
  std::vector<RunId> freed;
  std::vector<RunId> pending;  // the process was to run it, or did
  for (auto& [id, run] : runs_) {
    bool touched = false;
    for (RunSlot& slot : run.slots) {
      if (slot.sent_to != loss.who || !may_still_read(slot)) continue;
      touched = touched || slot.state == SlotState::kPending;
      if (loss.ended) freed.push_back(id);
      slot.state = loss.ended ? SlotState::kEnded : SlotState::kCutOff;
    }
    if (touched) pending.push_back(id);
    const bool suspects =
        run.phase == RunPhase::kRunning && run.suspicion &&
        std::any_of(run.slots.begin(), run.slots.end(), [&](const RunSlot& slot) { return slot.sent_to == loss.who; });
    if ((touched && run.phase == RunPhase::kRunning) || suspects) hit.push_back(id);
    const bool hopeless =
        loss.failed && (run.phase == RunPhase::kWaiting || run.phase == RunPhase::kRetrying) &&
        std::find(run.program->devices.begin(), run.program->devices.end(), loss.device) != run.program->devices.end();
    if (hopeless) hit.push_back(id);
  }
  blame(loss, pending);
  for (RunId id : hit) {
    Error error = loss.error;
    const auto found = runs_.find(id);
    if (found == runs_.end() || found->second.phase == RunPhase::kEnding) continue;  // of a program that is quarantined
    const Run& run = found->second;
    if (run.phase == RunPhase::kRunning && !loss.failed && may_run_again(run)) {
      run_again(id, error);
      continue;
    }
    if (run.phase != RunPhase::kRunning) {
      error.code = ErrorCode::kActorUnavailable;
      error.message += ", so " + run_name(run) + " cannot start" + (run.attempt > 1 ? " again" : "");
    } else {
      error.message += " while " + run_name(run) + " used it";
      if (run.attempt > 1) {
        error.message += ", its attempt " + std::to_string(run.attempt) + " and last one";
        error.hint = "its devices ended under every attempt: see the detail and `callboard logs`";
      }
      if (context_.options.retry_pure && !run.program->pure()) {
        error.message += "; it may have run, and does not run again by itself: it has state, effects or random numbers";
      }
    }
    end(id, OutcomeStatus::kFailed, std::move(error));
  }
  for (RunId id : freed) quiesce_if_done(id);
  tell_state_losses();
}

/// A request that was submitted before the loss and has not started would run on the initial values like one that is
/// submitted later. It is told now, not when it could start: until then it may be cancelled, and the notice with it.
/// In order of submission, all that ran on the lost state is before the notice, and all that did not is behind it.
void Runs::tell_state_losses() {
  std::map<RunId, Error> told;
  for (const auto& [client, queues] : waiting_) {
    for (const auto& [program, ids] : queues) {
      Run& first = runs_.at(ids.front());
      if (auto loss = programs_.take_state_loss(*first.program, client)) told.emplace(first.id, std::move(*loss));
    }
  }
  for (auto& [id, error] : told) end(id, OutcomeStatus::kFailed, std::move(error));
}

bool Runs::may_run_again(const Run& run) const {
  return context_.options.retry_pure && !context_.stopping && run.attempt < context_.options.attempts_max &&
         run.program->pure();
}

void Runs::run_again(RunId id, const Error& why) {
  Run& run = runs_.at(id);
  ++context_.counters.retried;
  context_.log(log::Level::kInfo, "run_again",
               "request " + std::to_string(run.request) + " (program '" + run.program->name + "') after attempt " +
                   std::to_string(run.attempt) + ": " + why.message);
  withdraw(run, Error(ErrorCode::kCancelled, "another attempt of it follows"));
  if (run.suspicion) std::erase_if(suspicions_, [id](const auto& due) { return due.second == id; });
  run.suspicion.reset();
  run.phase = RunPhase::kRetrying;
  quiesce_if_done(id);
}

void Runs::requeue(Run& run) {
  return_credit(run);
  run.credited.clear();
  run.slots.clear();
  programs_.run_withdrawn(*run.program);
  leave_devices(run);
  ++run.attempt;
  run.phase = RunPhase::kWaiting;
  std::deque<RunId>& ids = waiting_[run.client][run.program];
  ids.insert(std::lower_bound(ids.begin(), ids.end(), run.id), run.id);
  if (run.runs_alone) {
    for (DeviceIndex index : run.program->devices) members_.device(index).waits_alone.insert(run.id);
  }
  std::optional<Error> hopeless = quarantine_.objection(run.program->hash);
  if (const Error* why = run.program->broken()) hopeless = broken_error(*run.program, *why);
  if (hopeless) end(run.id, OutcomeStatus::kFailed, std::move(*hopeless));
}

void Runs::leave_devices(const Run& run) {
  if (!run.runs_alone) return;
  for (DeviceIndex index : run.program->devices) {
    Device& device = members_.device(index);
    device.waits_alone.erase(run.id);
    if (device.alone == run.id) device.alone = 0;
  }
}

/// Among several that were at the device nobody can be blamed. They run alone from then on, one after the other, so
/// that the next death has one cause. In order of submission, so that nobody waits for ever.
bool Runs::keeps_distance(const Run& run, const Device& device) {
  if (device.alone != 0) return false;
  const bool behind = !device.waits_alone.empty() && *device.waits_alone.begin() < run.id;
  return !behind && (!run.runs_alone || device.in_flight == 0);
}

void Runs::blame(const DeviceLoss& loss, const std::vector<RunId>& pending) {
  if (!loss.by_itself || pending.empty()) return;
  if (pending.size() > 1) {
    for (RunId id : pending) runs_.at(id).runs_alone = true;
    return;
  }
  const Program& program = *runs_.at(pending.front()).program;
  std::string devices;
  for (DeviceIndex index : program.devices) devices += (devices.empty() ? "" : ", ") + members_.device(index).name;
  const std::optional<Error> refused = quarantine_.charge(program, std::move(devices), loss.error);
  if (!refused) return;
  context_.log(log::Level::kError, "quarantined", refused->message);
  std::vector<RunId> ids;
  for (const auto& [id, run] : runs_) {
    if (run.program == &program && run.phase != RunPhase::kEnding) ids.push_back(id);
  }
  for (RunId id : ids) end(id, OutcomeStatus::kFailed, *refused);
}

}  // namespace callboard::actors
