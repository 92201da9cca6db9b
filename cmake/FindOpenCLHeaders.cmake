# OpenCL's C headers only: the library itself is loaded at run time. Result: OPENCL_HEADERS_DIR.
find_path(OPENCL_HEADERS_DIR CL/cl.h HINTS ENV OPENCL_HEADERS_DIR "${Python_PREFIX}/include")
if(NOT OPENCL_HEADERS_DIR)
  message(FATAL_ERROR "OpenCL headers (CL/cl.h) not found. Install them: apt-get install opencl-headers "
                      "(Debian, Ubuntu), dnf install opencl-headers (Fedora), or point OPENCL_HEADERS_DIR at the "
                      "folder that holds CL/.")
endif()
