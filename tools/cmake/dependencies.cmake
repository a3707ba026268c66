# Third-party libraries as targets callboard::dep_*. Versions are checked here, once.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(spdlog 1.10 REQUIRED)
find_package(yaml-cpp 0.7 REQUIRED)
find_package(Boost 1.74 REQUIRED)
# Only the version and the places are taken from pkg-config: its target's flags differ between the first configuration and
# later ones (cached), and everything would be compiled twice.
pkg_check_modules(zmq REQUIRED libzmq>=4.3.4)
find_library(CALLBOARD_ZMQ_LIBRARY zmq HINTS ${zmq_LIBRARY_DIRS} REQUIRED)
find_path(CALLBOARD_ZMQ_INCLUDE zmq.h HINTS ${zmq_INCLUDE_DIRS} REQUIRED)
add_library(callboard_dep_zmq INTERFACE)
target_include_directories(callboard_dep_zmq SYSTEM INTERFACE ${CALLBOARD_ZMQ_INCLUDE})
target_link_libraries(callboard_dep_zmq INTERFACE ${CALLBOARD_ZMQ_LIBRARY})
add_library(callboard::dep_zmq ALIAS callboard_dep_zmq)
find_path(CALLBOARD_EXPECTED_INCLUDE tl/expected.hpp REQUIRED)
find_path(CALLBOARD_MSGPACK_INCLUDE msgpack.hpp REQUIRED)
find_path(CALLBOARD_XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(CALLBOARD_JSON_INCLUDE nlohmann/json.hpp REQUIRED)
find_path(CALLBOARD_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)

add_library(callboard_dep_msgpack INTERFACE)
target_include_directories(callboard_dep_msgpack SYSTEM INTERFACE ${CALLBOARD_MSGPACK_INCLUDE})
target_compile_definitions(callboard_dep_msgpack INTERFACE MSGPACK_NO_BOOST=0)
add_library(callboard::dep_msgpack ALIAS callboard_dep_msgpack)

if(CALLBOARD_TORCH)
  if(NOT CALLBOARD_VENV AND DEFINED ENV{CALLBOARD_VENV})
    # Kept, so that a build that configures itself anew finds it without the variable.
    set(CALLBOARD_VENV "$ENV{CALLBOARD_VENV}" CACHE PATH "Python environment with torch, made by tools/setup" FORCE)
  endif()
  if(NOT CALLBOARD_INTERPRETER)
    set(CALLBOARD_INTERPRETER "${CALLBOARD_VENV}/bin/python")
  endif()
  if(NOT EXISTS "${CALLBOARD_INTERPRETER}")
    message(FATAL_ERROR "there is no Python '${CALLBOARD_INTERPRETER}': run tools/setup and set CALLBOARD_VENV to the folder that tools/setup --print-env names, or configure with -DCALLBOARD_TORCH=OFF")
  endif()
  execute_process(
    COMMAND "${CALLBOARD_INTERPRETER}" -c "import importlib.util,os,importlib.metadata as m;print(os.path.dirname(importlib.util.find_spec('torch').origin));print(m.version('torch'))"
    OUTPUT_VARIABLE callboard_torch_facts RESULT_VARIABLE callboard_torch_result OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT callboard_torch_result EQUAL 0)
    message(FATAL_ERROR "no torch in ${CALLBOARD_INTERPRETER}: run tools/setup")
  endif()
  string(REPLACE "\n" ";" callboard_torch_facts "${callboard_torch_facts}")
  list(GET callboard_torch_facts 0 CALLBOARD_TORCH_ROOT)
  list(GET callboard_torch_facts 1 CALLBOARD_TORCH_VERSION)
  # By name, not TORCH_LIBRARIES: that would load libtorch_cuda, NCCL and cuDNN into every device actor
  # (350 MiB against 115 MiB resident).
  add_library(callboard_dep_torch INTERFACE)
  target_include_directories(callboard_dep_torch SYSTEM INTERFACE
    ${CALLBOARD_TORCH_ROOT}/include ${CALLBOARD_TORCH_ROOT}/include/torch/csrc/api/include)
  # With their whole paths, so that CMake knows the folders: it takes them out again of what is installed.
  target_link_libraries(callboard_dep_torch INTERFACE
    ${CALLBOARD_TORCH_ROOT}/lib/libtorch_cpu.so ${CALLBOARD_TORCH_ROOT}/lib/libc10.so)
  target_compile_definitions(callboard_dep_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  add_library(callboard::dep_torch ALIAS callboard_dep_torch)
endif()
