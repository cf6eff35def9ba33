/* A libcuda.so.1 with GPUs that do nothing, in the signatures of cuda.h: what tcbench asks of the driver before anything
   of CUDA is installed. In the environment: CAPABILITY is 70 for 7.0, DRIVER the newest CUDA it runs, 13000 for 13.0;
   COUNT of GPUs, if not one; INIT and PCI, the status of starting and of asking for a bus. What cuda.h calls an error is
   one here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, DEVICE = 41 };

static int begun;

static int from_environment(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static int is_device(int device) { return device >= DEVICE && device < DEVICE + from_environment("COUNT", 1); }

int cuInit(unsigned int flags) {
  if (flags != 0) return INVALID_VALUE;
  begun = !from_environment("INIT", OK);
  return from_environment("INIT", OK);
}

int cuDriverGetVersion(int *version) {
  if (!version) return INVALID_VALUE;
  *version = from_environment("DRIVER", 0);
  return OK;
}

int cuDeviceGetCount(int *count) {
  if (!begun) return NOT_INITIALIZED;
  if (!count) return INVALID_VALUE;
  *count = from_environment("COUNT", 1);
  return OK;
}

int cuDeviceGet(int *device, int ordinal) {
  if (!begun) return NOT_INITIALIZED;
  if (!device || !is_device(DEVICE + ordinal)) return INVALID_VALUE;
  *device = DEVICE + ordinal;
  return OK;
}

int cuDeviceGetName(char *name, int length, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  if (!name || length < 1) return INVALID_VALUE;
  strncpy(name, "One GPU", (size_t)length);
  return OK;
}

int cuDeviceGetPCIBusId(char *text, int length, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  if (!text || length < 13) return INVALID_VALUE;
  if (!from_environment("PCI", OK)) snprintf(text, (size_t)length, "0000:%02X:00.0", 0x3B + device - DEVICE);
  return from_environment("PCI", OK);
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  if (!bytes) return INVALID_VALUE;
  *bytes = (size_t)192 << 30;
  return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  if (!value) return INVALID_VALUE;
  switch (attribute) {
    case 16: *value = 80; return OK;                                  /* MULTIPROCESSOR_COUNT */
    case 75: *value = from_environment("CAPABILITY", 0) / 10; return OK; /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = from_environment("CAPABILITY", 0) % 10; return OK; /* COMPUTE_CAPABILITY_MINOR */
  }
  return INVALID_VALUE;
}
