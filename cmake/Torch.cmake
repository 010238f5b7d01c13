# Targets torch::cpu (libtorch_cpu, libc10) and torch::python, from the torch that the Python interpreter imports.
# torch's own CMake package is not used: it also asks for MKL, CUDA and protobuf of the machine that built it.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "torch: ${TORCH_ROOT}")

add_library(torch_cpu_import INTERFACE)
add_library(torch::cpu ALIAS torch_cpu_import)
target_include_directories(torch_cpu_import SYSTEM INTERFACE
  ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(torch_cpu_import INTERFACE ${TORCH_ROOT}/lib/libtorch_cpu.so ${TORCH_ROOT}/lib/libc10.so)

add_library(torch_python_import INTERFACE)
add_library(torch::python ALIAS torch_python_import)
target_link_libraries(torch_python_import INTERFACE torch::cpu ${TORCH_ROOT}/lib/libtorch_python.so)
