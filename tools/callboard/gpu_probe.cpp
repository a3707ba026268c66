#include "tools/callboard/gpu_probe.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include <stdlib.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "actors/core/process.h"
#include "messages/base/clock.h"
#include "messages/base/fd.h"

namespace callboard::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPatience{60};  // a first start of CUDA on a machine with many GPUs takes long

Error refused(const std::string& why, std::string hint = {}) {
  return Error(ErrorCode::kEnvironment, "the GPUs of this machine cannot be asked for: " + why, std::move(hint));
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

template <class Number>
Number number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<Number>() : Number{0};
}

/// The digits, which may be written in either case; "GPU-" and "MIG-" have the same length.
bool same_uuid(const std::string& a, const std::string& b) {
  constexpr std::size_t kPrefix = 4;
  if (a.size() != b.size() || a.size() < kPrefix) return false;
  return std::equal(a.begin() + kPrefix, a.end(), b.begin() + kPrefix,
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string list_of(const std::vector<Gpu>& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus) {
    text += (text.empty() ? "" : "; ") + std::to_string(gpu.index) + ": " + gpu.name + " (" + gpu.uuid + ")";
  }
  return text;
}

}  // namespace

Result<std::vector<Gpu>> probe_gpus(const Programs& programs) {
  std::error_code none;
  const std::string folder = std::filesystem::temp_directory_path(none).string();  // empty: $TMPDIR is no folder
  std::string log = folder + "/callboard-probe-XXXXXX";
  const UniqueFd file(mkstemp(log.data()));
  if (!file) return fail(refused("no file can be made in " + (folder.empty() ? "$TMPDIR" : folder)));
  actors::SpawnOptions options;
  options.program = programs.device;
  options.arguments = {"--probe", "cuda"};
  options.environment = actors::environment_with({});
  options.log_file = log;
  auto process = actors::Process::spawn(options);
  std::string said;
  std::string end = "it could not be started";
  if (process) {
    const auto exit = process->reap_until(after(Clock::now(), kPatience));
    end = exit ? exit->to_string() : "no answer within " + std::to_string(kPatience.count()) + " s";
    said = process->log_tail();
  } else {
    end = process.error().message;
  }
  ::unlink(log.c_str());
  // The last line that is an object: libraries print what they like.
  json answer;
  for (std::size_t begin = 0; begin < said.size();) {
    const std::size_t newline = std::min(said.find('\n', begin), said.size());
    if (json line = json::parse(said.substr(begin, newline - begin), nullptr, false); line.is_object()) {
      answer = std::move(line);
    }
    begin = newline + 1;
  }
  if (answer.contains("error")) {
    const json& error = answer["error"];
    return fail(static_cast<ErrorCode>(number_of<std::uint16_t>(error, "code")), text_of(error, "message"),
                text_of(error, "hint"));
  }
  if (!answer.contains("devices") || !answer["devices"].is_array()) {
    Error error = refused(programs.device + " --probe cuda: " + end);
    error.detail = said;
    return fail(std::move(error));
  }
  std::vector<Gpu> gpus;
  for (const json& device : answer["devices"]) {
    gpus.push_back({number_of<std::uint32_t>(device, "index"), text_of(device, "uuid"), text_of(device, "name"),
                    text_of(device, "compute_capability"), number_of<std::uint64_t>(device, "memory_bytes")});
  }
  return gpus;
}

Status check_gpus(const config::ClusterConfig& config, const std::vector<Gpu>& gpus) {
  const std::string here = std::to_string(gpus.size()) + (gpus.size() == 1 ? " GPU is here" : " GPUs are here");
  const std::string hint = gpus.empty() ? "" : list_of(gpus);
  std::map<std::uint32_t, std::string> owners;
  for (const config::DeviceConfig& device : config.devices) {
    if (device.kind != "cuda") continue;
    const auto found = std::ranges::find_if(gpus, [&](const Gpu& gpu) {
      return device.uuid.empty() ? gpu.index == device.index : same_uuid(gpu.uuid, device.uuid);
    });
    if (found == gpus.end()) {
      const std::string wanted = device.uuid.empty() ? std::to_string(device.index) : device.uuid;
      return fail(ErrorCode::kEnvironment, "device '" + device.name + "' asks for GPU " + wanted + "; " + here, hint);
    }
    const auto [owner, fresh] = owners.try_emplace(found->index, device.name);
    if (!fresh) {
      return fail(ErrorCode::kConfigConflict,
                  "GPU " + std::to_string(found->index) + " (" + found->uuid + ") is asked for by devices '" +
                      owner->second + "' and '" + device.name + "'",
                  "one device actor owns a GPU");
    }
  }
  return {};
}

Status check_devices_here(const config::ClusterConfig& config, const Programs& programs) {
  const auto cuda = std::ranges::find(config.devices, "cuda", &config::DeviceConfig::kind);
  if (cuda == config.devices.end()) return {};
  auto gpus = probe_gpus(programs);
  if (!gpus) {
    Error error = std::move(gpus).error();
    error.message = "device '" + cuda->name + "' cannot start: " + error.message;
    return fail(std::move(error));
  }
  return check_gpus(config, *gpus);
}

}  // namespace callboard::cli
