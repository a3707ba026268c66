callboard_test(memory_lane
  SOURCES memory_lane_test.cpp unix_socket_test.cpp
  LINK callboard::memory_lane Threads::Threads)
