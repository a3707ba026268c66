# CALLBOARD_CUDA=AUTO builds what needs CUDA where nvcc and a CUDA build of torch are found, ON insists, OFF does not.
# Leaves CALLBOARD_WITH_CUDA, CUDA as a language, callboard::dep_torch_cuda and callboard::dep_cudart.
set(CALLBOARD_WITH_CUDA OFF)
if(NOT CALLBOARD_TORCH OR CALLBOARD_CUDA STREQUAL "OFF")
  return()
endif()

# Why CUDA is not built: ON ends here, AUTO goes on without.
macro(callboard_no_cuda why)
  if(CALLBOARD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CALLBOARD_CUDA=ON, but ${why}")
  endif()
  message(STATUS "CUDA: not built, ${why}")
  return()
endmacro()

find_program(CALLBOARD_NVCC nvcc HINTS ENV CUDACXX PATHS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
if(NOT CALLBOARD_NVCC)
  callboard_no_cuda("there is no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
endif()
if(NOT EXISTS "${CALLBOARD_TORCH_ROOT}/lib/libtorch_cuda.so")
  callboard_no_cuda("torch ${CALLBOARD_TORCH_VERSION} is a build without CUDA")
endif()
# The runtime that torch itself loads: a second one in the process would have its own streams and contexts.
file(GLOB callboard_cudart LIST_DIRECTORIES false
  "${CALLBOARD_TORCH_ROOT}/../nvidia/cu*/lib/libcudart.so.*" "${CALLBOARD_TORCH_ROOT}/../nvidia/cuda_runtime/lib/libcudart.so.*"
  "${CALLBOARD_TORCH_ROOT}/lib/libcudart*.so.*")
if(NOT callboard_cudart)
  get_filename_component(callboard_toolkit "${CALLBOARD_NVCC}" REALPATH)
  get_filename_component(callboard_toolkit "${callboard_toolkit}/../.." ABSOLUTE)
  file(GLOB callboard_cudart "${callboard_toolkit}/lib64/libcudart.so" "${callboard_toolkit}/targets/*/lib/libcudart.so")
endif()
if(NOT callboard_cudart)
  callboard_no_cuda("no libcudart was found with torch or nvcc")
endif()
list(GET callboard_cudart 0 CALLBOARD_CUDART)
get_filename_component(CALLBOARD_CUDART "${CALLBOARD_CUDART}" ABSOLUTE)

set(CMAKE_CUDA_COMPILER "${CALLBOARD_NVCC}")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Machine code for A100 and H100/H200, and PTX for what comes after.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # only now: CMake's own test of the compiler does not work without one
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  # CMake before 3.26 does not know that nvcc 12 and later take C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
if(CALLBOARD_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# From its file: importing torch would take a second of each configuration.
file(STRINGS "${CALLBOARD_TORCH_ROOT}/version.py" callboard_torch_cuda REGEX "^cuda[: ]")
string(REGEX MATCH "[0-9]+" callboard_torch_cuda "${callboard_torch_cuda}")
string(REGEX MATCH "^[0-9]+" callboard_nvcc_major "${CMAKE_CUDA_COMPILER_VERSION}")
if(NOT callboard_torch_cuda STREQUAL callboard_nvcc_major)
  callboard_no_cuda("nvcc is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}, torch of CUDA ${callboard_torch_cuda}")
endif()

# The runtime alone, without LibTorch.
add_library(callboard_dep_cudart INTERFACE)
target_include_directories(callboard_dep_cudart SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_link_libraries(callboard_dep_cudart INTERFACE ${CALLBOARD_CUDART})
get_filename_component(callboard_cudart_folder "${CALLBOARD_CUDART}" DIRECTORY)
add_library(callboard::dep_cudart ALIAS callboard_dep_cudart)

add_library(callboard_dep_torch_cuda INTERFACE)
target_include_directories(callboard_dep_torch_cuda SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
# Also where no symbol of it is used: loading it is what registers the operators' kernels.
target_link_libraries(callboard_dep_torch_cuda INTERFACE callboard::dep_torch
  -Wl,--no-as-needed ${CALLBOARD_TORCH_ROOT}/lib/libtorch_cuda.so ${CALLBOARD_TORCH_ROOT}/lib/libc10_cuda.so
  -Wl,--as-needed ${CALLBOARD_CUDART})
target_link_options(callboard_dep_torch_cuda INTERFACE
  "LINKER:-rpath-link,${callboard_cudart_folder}" "LINKER:--allow-shlib-undefined")
add_library(callboard::dep_torch_cuda ALIAS callboard_dep_torch_cuda)
set(CALLBOARD_WITH_CUDA ON)
message(STATUS "CUDA: built with nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
