// Constants on their way from whoever loads a program to the host's node actor: which ones it lacks, which of them can
// be mapped where they lie in a file, and the rest in one segment.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "actors/client/client.h"
#include "actors/core/memory_lane.h"
#include "messages/graph.h"

namespace callboard::actors {

/// Afterwards the node actor has every one of `hashes` (the storages of the graph's constants), used by this process.
/// Asks and answers on the caller's thread; reads and hashes what goes by file, copies what does not.
///
/// By file go the constants that lie in one on 64 bytes, on a file system of this host (see tells_of_changes()): those
/// given with their file, and those given as memory that maps one, as safetensors.torch.load_file() and
/// torch.load(mmap=True) make it. What is in the file is compared with the hash. Where it differs, memory that was
/// written to, or whose file was, is copied; a constant given with its file is kCorrupted.
///
/// kConstantMissing names all that neither the host nor `given` has, in one error; kOutOfMemory; kFileChanged.
Status provide_constants(MemoryLane& lane, const ProgramGraph& graph, const std::vector<ContentHash>& hashes,
                         std::span<const ConstantBytes> given);

/// kCorrupted: what is stored in the file as this constant is something else.
Error wrong_bytes(const std::string& path, const std::string& constant);

}  // namespace callboard::actors
