// The common part of OpenCL layers between loader and driver: the calls of the driver, a copy of them, and
// the loader's two entry points. A layer defines replace_calls(), which puts its own functions into the copy.
#pragma once
#include <CL/cl_layer.h>
#include <string.h>

static const struct _cl_icd_dispatch* next;  // the driver's, or the next layer's
static struct _cl_icd_dispatch mine;

static void replace_calls(void);

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t size, void* value,
                                               size_t* size_needed) {
  if (what != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
  if (value && size >= sizeof(cl_layer_api_version)) *(cl_layer_api_version*)value = CL_LAYER_API_VERSION_100;
  if (size_needed) *size_needed = sizeof(cl_layer_api_version);
  return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint entries, const struct _cl_icd_dispatch* target,
                                            cl_uint* entries_made, const struct _cl_icd_dispatch** made) {
  next = target;
  memcpy(&mine, target, entries * sizeof(void*) < sizeof mine ? entries * sizeof(void*) : sizeof mine);
  replace_calls();
  *made = &mine;
  *entries_made = sizeof mine / sizeof(void*);
  return CL_SUCCESS;
}
