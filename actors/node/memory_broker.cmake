callboard_component(memory_broker
  SOURCES constant_store.cpp memory_broker.cpp
  PUBLIC callboard::messages callboard::memory_lane)
