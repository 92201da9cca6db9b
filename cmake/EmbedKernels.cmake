# embed_kernels(OUT files...): turns each .cl/.clh into a raw string in a generated .cpp, found at run time by its path
# relative to csrc/kernels.
function(embed_kernels out)
  set(_gen "${CMAKE_CURRENT_BINARY_DIR}/embedded_kernels.cpp")
  add_custom_command(
    OUTPUT "${_gen}"
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed_kernels.py" "${_gen}"
            "${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels" ${ARGN}
    DEPENDS ${ARGN} "${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed_kernels.py"
    COMMENT "Embedding OpenCL kernels")
  set(${out} "${_gen}" PARENT_SCOPE)
endfunction()
