# A component of its own, so that it links kernels/memory and the rest of actors/core does not.
callboard_component(memory_lane
  SOURCES memory_lane.cpp
  PUBLIC callboard::messages callboard::memory
  PRIVATE callboard::core Threads::Threads)
