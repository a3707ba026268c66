# callboard_component(name SOURCES … [PUBLIC libs…] [PRIVATE libs…] [HEAVY])
# makes the static library callboard_<name> with alias callboard::<name>. HEAVY: its sources compile ATen; two at once.
function(callboard_component name)
  cmake_parse_arguments(ARG "HEAVY" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(callboard_${name} STATIC ${ARG_SOURCES})
  add_library(callboard::${name} ALIAS callboard_${name})
  callboard_target(callboard_${name} ${ARG_HEAVY})
  target_link_libraries(callboard_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# For tests and their helpers: half of their compile time would go into optimising code that runs once. What they test
# is optimised.
set(CALLBOARD_RUNS_ONCE -O0)
# For code that waits for people or files, as the command line does.
set(CALLBOARD_RUNS_SELDOM -O1)
if(CALLBOARD_SANITIZE)
  set(CALLBOARD_RUNS_SELDOM -O0)
endif()

# callboard_test(name SOURCES … [LINK libs…] [LABELS …] [HEAVY] [TIMEOUT s]): one Catch2 program, one ctest entry.
function(callboard_test name)
  cmake_parse_arguments(ARG "HEAVY" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  callboard_target(test_${name} ${ARG_HEAVY})
  target_compile_options(test_${name} PRIVATE ${CALLBOARD_RUNS_ONCE})
  target_link_libraries(test_${name} PRIVATE ${ARG_LINK} callboard_catch_main)
  add_test(NAME ${name} COMMAND test_${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# What every target of ours has: the root as include path, warnings as errors.
function(callboard_target target)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_include_directories(${target} SYSTEM PUBLIC ${CALLBOARD_EXPECTED_INCLUDE})
  # Not for nvcc, whose own code for the host does not keep to them.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor;-Werror>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CALLBOARD_UNITY)
    # GCC 12 takes alternatives of a variant that are not there for uninitialised ones where it inlines across sources.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>")
  endif()
  if("HEAVY" IN_LIST ARGN OR "TRUE" IN_LIST ARGN)
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE heavy JOB_POOL_LINK heavy)
  endif()
endfunction()
