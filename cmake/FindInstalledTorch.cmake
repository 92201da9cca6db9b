# Finds the torch that the interpreter has installed (2.11 to 2.13, CPU or CUDA wheel) without importing it and
# without a CUDA toolkit. Targets: torch::c10 torch::torch_cpu torch::torch torch::torch_python; TORCH_LIB_DIR.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
"import importlib.util as u, importlib.metadata as m, os
s = u.find_spec('torch')
print(os.path.dirname(s.origin) if s else '', m.version('torch') if s else '', sep=';', end='')"
  OUTPUT_VARIABLE _torch RESULT_VARIABLE _rc)
if(NOT _rc EQUAL 0 OR _torch MATCHES "^;")
  message(FATAL_ERROR "torch is not installed for ${Python_EXECUTABLE}. Install it: pip install 'torch>=2.11,<2.14'")
endif()
list(GET _torch 0 TORCH_DIR)
list(GET _torch 1 TORCH_VERSION)
if(TORCH_VERSION VERSION_LESS 2.11 OR TORCH_VERSION VERSION_GREATER_EQUAL 2.14)
  message(FATAL_ERROR "torch ${TORCH_VERSION} is not supported (2.11 to 2.13 are). "
                      "Install one: pip install 'torch>=2.11,<2.14'")
endif()
message(STATUS "torch ${TORCH_VERSION} in ${TORCH_DIR}")
set(TORCH_LIB_DIR "${TORCH_DIR}/lib")
foreach(_lib c10 torch_cpu torch torch_python)
  add_library(torch::${_lib} SHARED IMPORTED)
  set_target_properties(torch::${_lib} PROPERTIES
    IMPORTED_LOCATION "${TORCH_LIB_DIR}/lib${_lib}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_DIR}/include")
endforeach()
set_target_properties(torch::torch_python PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${TORCH_DIR}/include;${TORCH_DIR}/include/torch/csrc/api/include")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCH_MINOR "${TORCH_VERSION}")
add_compile_definitions(DLB_TORCH_MINOR="${TORCH_MINOR}")

# A torch that was built without distributed has c10d's headers but none of its symbols.
set(TORCH_HAS_DISTRIBUTED OFF)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
"import mmap, sys
with open(sys.argv[1], 'rb') as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    sys.exit(m.find(b'_ZN4c10d7BackendC2Eii') < 0)" "${TORCH_LIB_DIR}/libtorch_cpu.so"
  RESULT_VARIABLE _rc)
if(_rc EQUAL 0 AND EXISTS "${TORCH_DIR}/include/torch/csrc/distributed/c10d/Backend.hpp")
  set(TORCH_HAS_DISTRIBUTED ON)
endif()
message(STATUS "torch.distributed: ${TORCH_HAS_DISTRIBUTED}")
