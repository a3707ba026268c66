# What a build can be told. Presets (CMakePresets.json) set these.
option(CALLBOARD_TESTS "Build the tests" ON)
option(CALLBOARD_TORCH "Build what links LibTorch (kernels, device actor)" ON)
set(CALLBOARD_CUDA "AUTO" CACHE STRING "Build the plug-in for GPUs: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE CALLBOARD_CUDA PROPERTY STRINGS AUTO ON OFF)
option(CALLBOARD_PYTHON "Build the Python package's native module" ON)
option(CALLBOARD_FUZZ "Build the libFuzzer targets (clang)" OFF)
option(CALLBOARD_FAILPOINTS "Compile failpoints in" OFF)
set(CALLBOARD_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
set(CALLBOARD_VENV "" CACHE PATH "Python environment with torch, made by tools/setup")
set(CALLBOARD_INTERPRETER "" CACHE FILEPATH "Another Python with torch than CALLBOARD_VENV/bin/python")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
# Debug information of the line only: a third of the object size and compile time of -g.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG -fno-omit-frame-pointer")

if(CALLBOARD_SANITIZE)
  add_compile_options(-fsanitize=${CALLBOARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # The check of vtables opens a pipe for each object that it meets: a process without free descriptors fails it.
  add_compile_options(-fno-sanitize=vptr)
  add_compile_definitions(CALLBOARD_SANITIZED)
  if(CALLBOARD_SANITIZE STREQUAL "thread")
    add_compile_definitions(CALLBOARD_SANITIZED_THREAD)
  endif()
  add_link_options(-fsanitize=${CALLBOARD_SANITIZE})
endif()

# Several sources in one compile: reading the headers of LibTorch, JSON or CLI11 costs more than compiling what uses them.
# Off in preset dev, where one source is compiled again and again, and where a missing include shows.
option(CALLBOARD_UNITY "Compile several sources of a target at once" ON)
if(CALLBOARD_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 9)
endif()

find_program(CALLBOARD_CCACHE ccache)
if(CALLBOARD_CCACHE)
  # Relative paths, so that another checkout of the same sources finds what this one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      "${CALLBOARD_CCACHE}")
endif()
if(CMAKE_GENERATOR STREQUAL "Ninja")
  # A compile of ATen takes above 1 GiB; two at once whatever the machine.
  set_property(GLOBAL PROPERTY JOB_POOLS heavy=2)
endif()
