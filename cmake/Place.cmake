# place_library(target package_folder): an editable install and `make build` put the library into the source tree,
# a wheel build installs it into the wheel.
option(TORCH_NPU_INPLACE "put built libraries into the source tree" ON)
if(SKBUILD AND NOT SKBUILD_STATE STREQUAL "editable")
  set(TORCH_NPU_INPLACE OFF)
endif()

function(place_library target folder)
  if(TORCH_NPU_INPLACE)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/${folder})
  else()
    install(TARGETS ${target} LIBRARY DESTINATION ${folder})
  endif()
endfunction()
