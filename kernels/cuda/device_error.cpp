#include "kernels/cuda/device_error.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace callboard::kernels::cuda {

namespace {

// By number. kDevice is what NVIDIA's text calls "leaves the process in an inconsistent state", and with it what says
// that memory or a context cannot be trusted any more (uncorrectable errors, a destroyed context, a late failure that
// nobody can assign to a call).
constexpr CodeInfo kCodes[] = {
    {0, "cudaSuccess", Failure::kNone},
    {1, "cudaErrorInvalidValue", Failure::kUsage},
    {2, "cudaErrorMemoryAllocation", Failure::kOutOfMemory},
    {3, "cudaErrorInitializationError", Failure::kEnvironment},
    {4, "cudaErrorCudartUnloading", Failure::kDevice},
    {5, "cudaErrorProfilerDisabled", Failure::kUsage},
    {6, "cudaErrorProfilerNotInitialized", Failure::kUsage},
    {7, "cudaErrorProfilerAlreadyStarted", Failure::kRequest},
    {8, "cudaErrorProfilerAlreadyStopped", Failure::kUsage},
    {9, "cudaErrorInvalidConfiguration", Failure::kRequest},
    {12, "cudaErrorInvalidPitchValue", Failure::kUsage},
    {13, "cudaErrorInvalidSymbol", Failure::kUsage},
    {16, "cudaErrorInvalidHostPointer", Failure::kUsage},
    {17, "cudaErrorInvalidDevicePointer", Failure::kUsage},
    {18, "cudaErrorInvalidTexture", Failure::kUsage},
    {19, "cudaErrorInvalidTextureBinding", Failure::kUsage},
    {20, "cudaErrorInvalidChannelDescriptor", Failure::kUsage},
    {21, "cudaErrorInvalidMemcpyDirection", Failure::kUsage},
    {22, "cudaErrorAddressOfConstant", Failure::kUsage},
    {23, "cudaErrorTextureFetchFailed", Failure::kUsage},
    {24, "cudaErrorTextureNotBound", Failure::kUsage},
    {25, "cudaErrorSynchronizationError", Failure::kDevice},
    {26, "cudaErrorInvalidFilterSetting", Failure::kUsage},
    {27, "cudaErrorInvalidNormSetting", Failure::kUsage},
    {28, "cudaErrorMixedDeviceExecution", Failure::kUsage},
    {31, "cudaErrorNotYetImplemented", Failure::kUsage},
    {32, "cudaErrorMemoryValueTooLarge", Failure::kUsage},
    {34, "cudaErrorStubLibrary", Failure::kEnvironment},
    {35, "cudaErrorInsufficientDriver", Failure::kEnvironment},
    {36, "cudaErrorCallRequiresNewerDriver", Failure::kEnvironment},
    {37, "cudaErrorInvalidSurface", Failure::kUsage},
    {43, "cudaErrorDuplicateVariableName", Failure::kUsage},
    {44, "cudaErrorDuplicateTextureName", Failure::kUsage},
    {45, "cudaErrorDuplicateSurfaceName", Failure::kUsage},
    {46, "cudaErrorDevicesUnavailable", Failure::kEnvironment},
    {49, "cudaErrorIncompatibleDriverContext", Failure::kEnvironment},
    {52, "cudaErrorMissingConfiguration", Failure::kRequest},
    {53, "cudaErrorPriorLaunchFailure", Failure::kDevice},
    {65, "cudaErrorLaunchMaxDepthExceeded", Failure::kRequest},
    {66, "cudaErrorLaunchFileScopedTex", Failure::kRequest},
    {67, "cudaErrorLaunchFileScopedSurf", Failure::kRequest},
    {68, "cudaErrorSyncDepthExceeded", Failure::kRequest},
    {69, "cudaErrorLaunchPendingCountExceeded", Failure::kRequest},
    {98, "cudaErrorInvalidDeviceFunction", Failure::kRequest},
    {100, "cudaErrorNoDevice", Failure::kEnvironment},
    {101, "cudaErrorInvalidDevice", Failure::kEnvironment},
    {102, "cudaErrorDeviceNotLicensed", Failure::kEnvironment},
    {103, "cudaErrorSoftwareValidityNotEstablished", Failure::kEnvironment},
    {127, "cudaErrorStartupFailure", Failure::kEnvironment},
    {200, "cudaErrorInvalidKernelImage", Failure::kRequest},
    {201, "cudaErrorDeviceUninitialized", Failure::kEnvironment},
    {205, "cudaErrorMapBufferObjectFailed", Failure::kStaleHandle},
    {206, "cudaErrorUnmapBufferObjectFailed", Failure::kStaleHandle},
    {207, "cudaErrorArrayIsMapped", Failure::kUsage},
    {208, "cudaErrorAlreadyMapped", Failure::kUsage},
    {209, "cudaErrorNoKernelImageForDevice", Failure::kRequest},
    {210, "cudaErrorAlreadyAcquired", Failure::kUsage},
    {211, "cudaErrorNotMapped", Failure::kUsage},
    {212, "cudaErrorNotMappedAsArray", Failure::kUsage},
    {213, "cudaErrorNotMappedAsPointer", Failure::kUsage},
    {214, "cudaErrorECCUncorrectable", Failure::kDevice},
    {215, "cudaErrorUnsupportedLimit", Failure::kUsage},
    {216, "cudaErrorDeviceAlreadyInUse", Failure::kEnvironment},
    {217, "cudaErrorPeerAccessUnsupported", Failure::kUnreachable},
    {218, "cudaErrorInvalidPtx", Failure::kRequest},
    {219, "cudaErrorInvalidGraphicsContext", Failure::kUsage},
    {220, "cudaErrorNvlinkUncorrectable", Failure::kDevice},
    {221, "cudaErrorJitCompilerNotFound", Failure::kRequest},
    {222, "cudaErrorUnsupportedPtxVersion", Failure::kRequest},
    {223, "cudaErrorJitCompilationDisabled", Failure::kRequest},
    {224, "cudaErrorUnsupportedExecAffinity", Failure::kRequest},
    {225, "cudaErrorUnsupportedDevSideSync", Failure::kRequest},
    {226, "cudaErrorContained", Failure::kDevice},
    {300, "cudaErrorInvalidSource", Failure::kRequest},
    {301, "cudaErrorFileNotFound", Failure::kRequest},
    {302, "cudaErrorSharedObjectSymbolNotFound", Failure::kEnvironment},
    {303, "cudaErrorSharedObjectInitFailed", Failure::kEnvironment},
    {304, "cudaErrorOperatingSystem", Failure::kEnvironment},
    {400, "cudaErrorInvalidResourceHandle", Failure::kUsage},
    {401, "cudaErrorIllegalState", Failure::kUsage},
    {402, "cudaErrorLossyQuery", Failure::kUsage},
    {500, "cudaErrorSymbolNotFound", Failure::kRequest},
    {600, "cudaErrorNotReady", Failure::kNotReady},
    {700, "cudaErrorIllegalAddress", Failure::kDevice},
    {701, "cudaErrorLaunchOutOfResources", Failure::kRequest},
    {702, "cudaErrorLaunchTimeout", Failure::kDevice},
    {703, "cudaErrorLaunchIncompatibleTexturing", Failure::kRequest},
    {704, "cudaErrorPeerAccessAlreadyEnabled", Failure::kUsage},
    {705, "cudaErrorPeerAccessNotEnabled", Failure::kUnreachable},
    {708, "cudaErrorSetOnActiveProcess", Failure::kUsage},
    {709, "cudaErrorContextIsDestroyed", Failure::kDevice},
    {710, "cudaErrorAssert", Failure::kDevice},
    {711, "cudaErrorTooManyPeers", Failure::kUnreachable},
    {712, "cudaErrorHostMemoryAlreadyRegistered", Failure::kUsage},
    {713, "cudaErrorHostMemoryNotRegistered", Failure::kUsage},
    {714, "cudaErrorHardwareStackError", Failure::kDevice},
    {715, "cudaErrorIllegalInstruction", Failure::kDevice},
    {716, "cudaErrorMisalignedAddress", Failure::kDevice},
    {717, "cudaErrorInvalidAddressSpace", Failure::kDevice},
    {718, "cudaErrorInvalidPc", Failure::kDevice},
    {719, "cudaErrorLaunchFailure", Failure::kDevice},
    {720, "cudaErrorCooperativeLaunchTooLarge", Failure::kRequest},
    {721, "cudaErrorTensorMemoryLeak", Failure::kDevice},
    {800, "cudaErrorNotPermitted", Failure::kEnvironment},
    {801, "cudaErrorNotSupported", Failure::kUnreachable},
    {802, "cudaErrorSystemNotReady", Failure::kEnvironment},
    {803, "cudaErrorSystemDriverMismatch", Failure::kEnvironment},
    {804, "cudaErrorCompatNotSupportedOnDevice", Failure::kEnvironment},
    {805, "cudaErrorMpsConnectionFailed", Failure::kEnvironment},
    {806, "cudaErrorMpsRpcFailure", Failure::kDevice},
    {807, "cudaErrorMpsServerNotReady", Failure::kEnvironment},
    {808, "cudaErrorMpsMaxClientsReached", Failure::kEnvironment},
    {809, "cudaErrorMpsMaxConnectionsReached", Failure::kEnvironment},
    {810, "cudaErrorMpsClientTerminated", Failure::kDevice},
    {811, "cudaErrorCdpNotSupported", Failure::kRequest},
    {812, "cudaErrorCdpVersionMismatch", Failure::kRequest},
    {900, "cudaErrorStreamCaptureUnsupported", Failure::kRequest},
    {901, "cudaErrorStreamCaptureInvalidated", Failure::kRequest},
    {902, "cudaErrorStreamCaptureMerge", Failure::kRequest},
    {903, "cudaErrorStreamCaptureUnmatched", Failure::kRequest},
    {904, "cudaErrorStreamCaptureUnjoined", Failure::kRequest},
    {905, "cudaErrorStreamCaptureIsolation", Failure::kRequest},
    {906, "cudaErrorStreamCaptureImplicit", Failure::kRequest},
    {907, "cudaErrorCapturedEvent", Failure::kRequest},
    {908, "cudaErrorStreamCaptureWrongThread", Failure::kRequest},
    {909, "cudaErrorTimeout", Failure::kDevice},
    {910, "cudaErrorGraphExecUpdateFailure", Failure::kRequest},
    {911, "cudaErrorExternalDevice", Failure::kDevice},
    {912, "cudaErrorInvalidClusterSize", Failure::kRequest},
    {913, "cudaErrorFunctionNotLoaded", Failure::kRequest},
    {914, "cudaErrorInvalidResourceType", Failure::kUsage},
    {915, "cudaErrorInvalidResourceConfiguration", Failure::kUsage},
    {999, "cudaErrorUnknown", Failure::kDevice},
};

std::string_view hint_for(Failure failure) {
  switch (failure) {
    case Failure::kOutOfMemory:
      return "let go of results that are not needed any more, or use smaller batches";
    case Failure::kStaleHandle:
      return "the process that made the tensor has ended or taken its memory back";
    case Failure::kUnreachable:
      return "take copies through host memory; `callboard doctor` says which paths work here";
    case Failure::kEnvironment:
      return "check the driver, CUDA_VISIBLE_DEVICES and what the container may use; `callboard doctor` does";
    case Failure::kDevice:
      return "the device actor ends and is started again; if it happens again, look for an illegal access in a kernel, "
             "or for Xid messages in the kernel log";
    default:
      return {};
  }
}

}  // namespace

CodeInfo code_info(Code code) {
  const auto* found = std::lower_bound(std::begin(kCodes), std::end(kCodes), code,
                                       [](const CodeInfo& info, Code wanted) { return info.code < wanted; });
  if (found != std::end(kCodes) && found->code == code) return *found;
  return {code, "unknown CUDA error", Failure::kDevice};
}

ErrorCode error_code(Failure failure) {
  switch (failure) {
    case Failure::kNone:
    case Failure::kNotReady:
      return ErrorCode::kOk;
    case Failure::kOutOfMemory:
      return ErrorCode::kOutOfMemory;
    case Failure::kRequest:
      return ErrorCode::kKernelFailed;
    case Failure::kStaleHandle:
      return ErrorCode::kTensorLost;
    case Failure::kUnreachable:
      return ErrorCode::kUnsupported;
    case Failure::kEnvironment:
      return ErrorCode::kEnvironment;
    case Failure::kUsage:
      return ErrorCode::kInternal;
    case Failure::kDevice:
      return ErrorCode::kDeviceFailed;
  }
  return ErrorCode::kInternal;
}

std::string DeviceUuid::to_string() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

DeviceHealth::DeviceHealth(std::string device, std::function<void(const Error&)> on_failed)
    : device_(std::move(device)), on_failed_(std::move(on_failed)) {}

Status DeviceHealth::status() const {
  if (!failed()) return {};
  std::lock_guard lock(mutex_);
  return fail(first_);
}

Error DeviceHealth::describe(Code code, std::string_view call, std::string_view about) const {
  const CodeInfo info = code_info(code);
  std::string text(call);
  text += " failed on ";
  text += device_;
  if (!about.empty()) {
    text += " (";
    text += about;
    text += ")";
  }
  text += ": ";
  text += info.name;
  text += " (" + std::to_string(code) + ")";
  return Error(error_code(info.failure), std::move(text), std::string(hint_for(info.failure)));
}

Status DeviceHealth::note(Code code, std::string_view call, std::string_view about) {
  if (failed()) return status();
  if (code == kSuccess) return {};
  const Failure failure = code_info(code).failure;
  Error error = describe(code, call, about);
  if (failure == Failure::kNotReady) error.code = ErrorCode::kInternal;  // no call of ours may answer this unasked
  if (failure != Failure::kDevice) return fail(std::move(error));
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    if (!failed_.load(std::memory_order_relaxed)) {
      first_ = error;
      failed_.store(true, std::memory_order_release);
      first = true;
    }
  }
  if (first && on_failed_) on_failed_(error);
  return status();
}

CurrentDeviceGuard::CurrentDeviceGuard(RuntimeTable& runtime, DeviceHealth& health, int device) : runtime_(runtime) {
  status_ = health.status();
  if (!status_) return;
  int now = -1;
  status_ = health.note(runtime_.get_device(&now), "cudaGetDevice");
  if (!status_ || now == device) return;
  status_ = health.note(runtime_.set_device(device), "cudaSetDevice", "device " + std::to_string(device));
  if (status_) before_ = now;
}

CurrentDeviceGuard::~CurrentDeviceGuard() {
  if (before_ < 0) return;
  bool used = true;
  runtime_.has_context(before_, &used);  // where it cannot tell, as it should be
  if (used) runtime_.set_device(before_);
}

UnwatchedCalls::UnwatchedCalls(RuntimeTable& runtime, DeviceHealth& health) : runtime_(runtime) {
  // Where it is refused, the calls are made all the same: they matter more than somebody's capture.
  static_cast<void>(health.note(runtime_.thread_exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode"));
}

UnwatchedCalls::~UnwatchedCalls() {
  if (mode_ != CaptureMode::kRelaxed) runtime_.thread_exchange_capture_mode(&mode_);
}

}  // namespace callboard::kernels::cuda
