/* A libcuda.so.1 with one GPU that does nothing, in the signatures of cuda.h: what tcbench asks of the driver before
   anything of CUDA is installed. CAPABILITY is 70 for 7.0, DRIVER the newest CUDA it runs, 13000 for 13.0; both are in
   the environment. What cuda.h calls an error is one here. */
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, DEVICE = 41 };

static int begun;

static int from_environment(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

int cuInit(unsigned int flags) {
  if (flags != 0) return INVALID_VALUE;
  begun = 1;
  return OK;
}

int cuDriverGetVersion(int *version) {
  if (!version) return INVALID_VALUE;
  *version = from_environment("DRIVER");
  return OK;
}

int cuDeviceGetCount(int *count) {
  if (!begun) return NOT_INITIALIZED;
  if (!count) return INVALID_VALUE;
  *count = 1;
  return OK;
}

int cuDeviceGet(int *device, int ordinal) {
  if (!begun) return NOT_INITIALIZED;
  if (!device || ordinal != 0) return INVALID_VALUE;
  *device = DEVICE;
  return OK;
}

int cuDeviceGetName(char *name, int length, int device) {
  if (device != DEVICE) return INVALID_DEVICE;
  if (!name || length < 1) return INVALID_VALUE;
  strncpy(name, "One GPU", (size_t)length);
  return OK;
}

int cuDeviceGetPCIBusId(char *text, int length, int device) {
  if (device != DEVICE) return INVALID_DEVICE;
  if (!text || length < 13) return INVALID_VALUE;
  strncpy(text, "0000:3B:00.0", (size_t)length);
  return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  if (device != DEVICE) return INVALID_DEVICE;
  if (!bytes) return INVALID_VALUE;
  *bytes = (size_t)192 << 30;
  return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (device != DEVICE) return INVALID_DEVICE;
  if (!value) return INVALID_VALUE;
  switch (attribute) {
    case 16: *value = 80; return OK;                                  /* MULTIPROCESSOR_COUNT */
    case 75: *value = from_environment("CAPABILITY") / 10; return OK; /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = from_environment("CAPABILITY") % 10; return OK; /* COMPUTE_CAPABILITY_MINOR */
  }
  return INVALID_VALUE;
}
