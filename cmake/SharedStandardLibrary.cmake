# libtorch uses the shared libstdc++, and a second, static copy in our library would crash where the two meet (a stream
# formatting a number with the other's locale). Some images have only the archive to link with: name the shared one.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so
                OUTPUT_VARIABLE _linkable OUTPUT_STRIP_TRAILING_WHITESPACE)
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so.6
                OUTPUT_VARIABLE _runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT IS_ABSOLUTE "${_linkable}" AND IS_ABSOLUTE "${_runtime}")
  message(STATUS "no linkable libstdc++.so: linking ${_runtime}")
  link_libraries("${_runtime}")
endif()
