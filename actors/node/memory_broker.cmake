callboard_component(memory_broker
  SOURCES memory_broker.cpp shared_constants.cpp
  PUBLIC callboard::messages callboard::memory_lane)
