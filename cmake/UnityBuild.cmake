# Compiles files of a folder together, which spares most of the time that goes into headers. Off in
# scripts/dev_build.sh, where one changed file is what is compiled.
option(DLB_UNITY "Compile the files of a folder together, up to eight at a time" ON)

# unite_folders(TARGET files...): names a group for every folder's files.
function(unite_folders target)
  if(NOT DLB_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(file ${ARGN})
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/csrc" OUTPUT_VARIABLE name)
    cmake_path(GET name PARENT_PATH folder)
    string(REPLACE "/" "_" folder "${folder}")
    if(NOT DEFINED files_of_${folder})
      set(files_of_${folder} 0)
    endif()
    math(EXPR batch "${files_of_${folder}} / 8")
    math(EXPR files_of_${folder} "${files_of_${folder}} + 1")
    set_source_files_properties("${file}" PROPERTIES UNITY_GROUP "${folder}_${batch}")
  endforeach()
endfunction()
