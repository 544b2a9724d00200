/* What souk asks of NVML, for two cards that are not there: the first counts and is limited, the
   second does neither. */
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6 };
static unsigned limit = 700000;
static const char *uuids[2] = {"GPU-0a", "GPU-0b"};

/* A card is its number and one: none is a null pointer. */
static int number(void *card) { return (int)(intptr_t)card - 1; }
static void *card(int number) { return (void *)(intptr_t)(number + 1); }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = 2;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **made) {
  if (index > 1) return INVALID;
  *made = card((int)index);
  return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **made) {
  for (int i = 0; i < 2; i++)
    if (!strcmp(uuid, uuids[i])) {
      *made = card(i);
      return SUCCESS;
    }
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *of, char *text, unsigned length) {
  strncpy(text, uuids[number(of)], length);
  return SUCCESS;
}

int nvmlDeviceGetName(void *of, char *text, unsigned length) {
  strncpy(text, number(of) ? "Fake T4" : "Fake H100", length);
  return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *of, unsigned long long *millijoules) {
  if (number(of)) return UNSUPPORTED;
  *millijoules = 12345;
  return SUCCESS;
}

struct rates {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void *of, struct rates *made) {
  if (number(of)) return UNSUPPORTED;
  made->gpu = 37;
  made->memory = 5;
  return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimit(void *of, unsigned *milliwatts) {
  if (number(of)) return UNSUPPORTED;
  *milliwatts = limit;
  return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *of, unsigned *least, unsigned *most) {
  if (number(of)) return UNSUPPORTED;
  *least = 200000;
  *most = 700000;
  return SUCCESS;
}

int nvmlDeviceSetPowerManagementLimit(void *of, unsigned milliwatts) {
  if (number(of)) return UNSUPPORTED;
  limit = milliwatts;
  return SUCCESS;
}
