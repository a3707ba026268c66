add_executable(memory_lane_peer memory_lane_peer.cpp)
callboard_target(memory_lane_peer)
target_link_libraries(memory_lane_peer PRIVATE callboard::memory_lane)

callboard_test(memory_broker
  SOURCES memory_broker_peers_test.cpp memory_broker_test.cpp shared_constants_test.cpp
  LINK callboard::memory_broker Threads::Threads TIMEOUT 240)
target_compile_definitions(test_memory_broker PRIVATE CALLBOARD_LANE_PEER="$<TARGET_FILE:memory_lane_peer>")
add_dependencies(test_memory_broker memory_lane_peer)
