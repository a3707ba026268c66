# What a wheel carries, as component `wheel` of `cmake --install`: in the environment's bin/ the program `callboard`, in
# the package's own bin/ what it starts and opens, in the package its native modules. pyproject.toml adds the Python
# files. Programs find each other by these places (config/installation.h, python/callboard/_installed.py) and LibTorch
# beside the package: no absolute path of the machine that built it is left.
if(SKBUILD)
  set(callboard_scripts "${SKBUILD_SCRIPTS_DIR}")
else()
  set(callboard_scripts bin)
endif()

get_filename_component(callboard_packages "${CALLBOARD_TORCH_ROOT}" DIRECTORY)
# callboard_places(variable from): where LibTorch and the CUDA runtime are, seen from a folder `from` of site-packages.
function(callboard_places variable from)
  set(places "$ORIGIN/${from}/torch/lib")
  if(CALLBOARD_WITH_CUDA)
    get_filename_component(folder "${CALLBOARD_CUDART}" DIRECTORY)
    file(RELATIVE_PATH relative "${callboard_packages}" "${folder}")
    if(NOT relative MATCHES "^\\.\\.")
      set(folder "$ORIGIN/${from}/${relative}")
    endif()
    list(APPEND places "${folder}")
  endif()
  set(${variable} "${places}" PARENT_SCOPE)
endfunction()
callboard_places(callboard_from_bin ../..)
callboard_places(callboard_from_package ..)

set(callboard_installed callboard-device callboard_ops callboard_python callboard_client_c)
if(CALLBOARD_WITH_CUDA)
  list(APPEND callboard_installed callboard_cuda callboard_cuda_client)
endif()
set_target_properties(${callboard_installed} PROPERTIES INSTALL_RPATH "${callboard_from_bin}")
set(callboard_modules callboard_native callboard_plain_ops callboard_kvpool)
set_target_properties(${callboard_modules} PROPERTIES INSTALL_RPATH "${callboard_from_package}")

# Only this is built for a wheel: no examples, no benchmarks.
add_custom_target(wheel DEPENDS callboard ${callboard_installed} ${callboard_modules})

install(TARGETS callboard RUNTIME DESTINATION "${callboard_scripts}" COMPONENT wheel)
install(TARGETS ${callboard_installed} RUNTIME DESTINATION callboard/bin COMPONENT wheel
  LIBRARY DESTINATION callboard/bin COMPONENT wheel)
install(TARGETS ${callboard_modules} LIBRARY DESTINATION callboard COMPONENT wheel)
install(FILES "${PROJECT_SOURCE_DIR}/actors/client/c_api.h" DESTINATION callboard/include/actors/client COMPONENT wheel)
