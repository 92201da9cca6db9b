# Makes the packs that the package ships (csrc/cl/stores/pack.h) out of their texts in packs/, which cmake/pack_text.py
# describes. A pack of the same name in packs/ is taken as it is: one that holds programs too, made for a release.

function(shipped_packs result)
  set(outputs)
  file(GLOB texts CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/packs/*.txt")
  file(GLOB packs CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/packs/*.pack")
  foreach(source IN LISTS texts packs)
    cmake_path(GET source STEM LAST_ONLY name)
    set(output "${CMAKE_CURRENT_BINARY_DIR}/packs/${name}.pack")
    if(source MATCHES "\\.pack$")
      add_custom_command(OUTPUT "${output}" DEPENDS "${source}"
                         COMMAND "${CMAKE_COMMAND}" -E copy "${source}" "${output}")
    elseif("${CMAKE_CURRENT_SOURCE_DIR}/packs/${name}.pack" IN_LIST packs)
      continue()
    else()
      add_custom_command(OUTPUT "${output}" DEPENDS "${source}" cmake/pack_text.py
                         COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pack_text.py"
                                 "${source}" "${output}")
    endif()
    list(APPEND outputs "${output}")
  endforeach()
  set(${result} ${outputs} PARENT_SCOPE)
endfunction()
