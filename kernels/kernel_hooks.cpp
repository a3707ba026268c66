#include "kernels/kernel_hooks.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/all.h>
#include <ATen/ops/isfinite.h>
#include <nlohmann/json.hpp>

#include "messages/limits.h"

namespace callboard::kernels {

namespace {

double microseconds(Duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

bool all_finite(const at::Tensor& tensor) {
  // One-byte floating types have no isfinite of their own in ATen.
  const at::Tensor wide = tensor.element_size() == 1 ? tensor.to(at::kFloat) : tensor;
  return at::all(at::isfinite(wide)).item<bool>();
}

}  // namespace

std::uint32_t trace_thread() {
  static thread_local const auto number = static_cast<std::uint32_t>(gettid());
  return number;
}

void TraceRing::add(Span span) {
  std::lock_guard lock(mutex_);
  if (spans_.size() == kSpansMax) {
    spans_.pop_front();
    ++dropped_;
  }
  spans_.push_back(std::move(span));
}

namespace {

nlohmann::json event_of(const TraceRing::Span& span, int pid) {
  nlohmann::json arguments = {{"run", span.run}};
  if (span.info) {
    arguments["node"] = span.info->node;
    if (!span.info->name.empty()) arguments["name"] = span.info->name;
    if (!span.info->module_path.empty()) arguments["module"] = span.info->module_path;
  }
  if (span.failed) arguments["failed"] = true;
  return {{"name", span.info ? span.info->op : std::string(span.what)},
          {"cat", span.info ? "kernel" : "transfer"},
          {"ph", "X"},
          {"ts", microseconds(span.start.time_since_epoch())},
          {"dur", microseconds(span.length)},
          {"pid", pid},
          {"tid", span.thread},
          {"args", std::move(arguments)}};
}

nlohmann::json dropped_event(std::uint64_t count, int pid) {
  return {{"name", "spans dropped"},
          {"cat", "trace"},
          {"ph", "i"},
          {"s", "p"},
          {"pid", pid},
          {"tid", 0},
          {"ts", microseconds(Clock::now().time_since_epoch())},
          {"args", {{"count", count}}}};
}

}  // namespace

TraceBatch TraceRing::take(std::size_t bytes_max) {
  const int pid = getpid();
  TraceBatch batch{"[", false};
  const auto append = [&batch](const nlohmann::json& event) {
    if (batch.events.size() > 1) batch.events += ',';
    // Names come from programs: bytes that are no UTF-8 must not end the process.
    batch.events += event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  while (batch.events.size() < bytes_max) {
    Span span;
    std::uint64_t dropped = 0;
    {
      std::lock_guard lock(mutex_);
      dropped = std::exchange(dropped_, 0);
      if (spans_.empty() && dropped == 0) break;
      if (dropped == 0) {
        span = std::move(spans_.front());
        spans_.pop_front();
      }
    }
    append(dropped > 0 ? dropped_event(dropped, pid) : event_of(span, pid));
  }
  batch.events += ']';
  std::lock_guard lock(mutex_);
  batch.more = !spans_.empty();
  return batch;
}

void TraceHook::before(const KernelCall&) { start_ = Clock::now(); }

std::optional<Error> TraceHook::after(const KernelCall& call, std::span<const Blob* const>) {
  add(call, false);
  return std::nullopt;
}

void TraceHook::failed(const KernelCall& call, const Error&) { add(call, true); }

void TraceHook::add(const KernelCall& call, bool failed) {
  ring_.add({call.info, "", call.run, trace_thread(), start_, Clock::now() - start_, failed});
}

void TimingHook::before(const KernelCall&) { start_ = Clock::now(); }

std::optional<Error> TimingHook::after(const KernelCall& call, std::span<const Blob* const>) {
  add(call, false);
  return std::nullopt;
}

void TimingHook::failed(const KernelCall& call, const Error&) { add(call, true); }

void TimingHook::add(const KernelCall& call, bool failed) {
  const std::int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  std::lock_guard lock(mutex_);
  Total& total = totals_[call.info->op];
  ++total.calls;
  total.failed += failed ? 1 : 0;
  total.total_ns += ns;
  total.max_ns = std::max(total.max_ns, ns);
}

std::map<std::string, TimingHook::Total> TimingHook::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

Status ProfileHook::begin(const ContentHash& program) {
  std::lock_guard lock(mutex_);
  if (on_.load(std::memory_order_relaxed) && program_ != program) {
    return fail(ErrorCode::kOverloaded,
                "program " + program_.hex().substr(0, 12) + " is being profiled on this device, one at a time is",
                "try again when that has ended");
  }
  program_ = program;
  times_.clear();
  on_.store(true, std::memory_order_release);
  return {};
}

void ProfileHook::end(const ContentHash& program) {
  std::lock_guard lock(mutex_);
  if (!on_.load(std::memory_order_relaxed) || program_ != program) return;
  on_.store(false, std::memory_order_release);
  times_ = {};
}

bool ProfileHook::wants(const ContentHash& program) const {
  if (!on_.load(std::memory_order_acquire)) return false;
  std::lock_guard lock(mutex_);
  return on_.load(std::memory_order_relaxed) && program_ == program;
}

Result<ProfileTimes> ProfileHook::take(const ContentHash& program, std::size_t first, std::size_t count) const {
  std::lock_guard lock(mutex_);
  if (!on_.load(std::memory_order_relaxed) || program_ != program) {
    return fail(ErrorCode::kProgramUnknown, "program " + program.hex().substr(0, 12) + " is not profiled here",
                "the device may have been started again: profile anew");
  }
  ProfileTimes taken;
  taken.nodes = times_.size();
  for (std::size_t node = first; node < times_.size() && node - first < count; ++node) {
    std::vector<std::int64_t> runs = times_[node];
    if (!runs.empty()) std::nth_element(runs.begin(), runs.begin() + runs.size() / 2, runs.end());
    taken.median_ns.push_back(runs.empty() ? 0 : runs[runs.size() / 2]);
    taken.runs = std::max(taken.runs, runs.size());
  }
  return taken;
}

void ProfileHook::before(const KernelCall&) { start_ = Clock::now(); }

std::optional<Error> ProfileHook::after(const KernelCall& call, std::span<const Blob* const>) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  if (call.info->node < 0 || call.info->node >= static_cast<std::int64_t>(limits::kNodesMax)) return std::nullopt;
  const auto node = static_cast<std::size_t>(call.info->node);
  std::lock_guard lock(mutex_);
  if (times_.size() <= node) times_.resize(node + 1);
  if (times_[node].size() < kRunsMax) times_[node].push_back(ns);
  return std::nullopt;
}

std::optional<Error> NanCheckHook::after(const KernelCall& call, std::span<const Blob* const> outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]->filled() || !outputs[i]->value().isTensor()) continue;
    const at::Tensor& tensor = outputs[i]->value().toTensor();
    if (!tensor.is_floating_point() && !tensor.is_complex()) continue;
    if (tensor.layout() != at::kStrided || all_finite(tensor)) continue;
    return Error(ErrorCode::kNanFound,
                 "node " + std::to_string(call.info->node) + " (" + call.info->op +
                     ") made a NaN or an infinity in its output " + std::to_string(i),
                 "the first kernel that does; switch the check off where infinities are meant (masks)");
  }
  return std::nullopt;
}

}  // namespace callboard::kernels
