/* Stands in for the CUDA calls of an exported launcher: prints what a launch asks for as one line of JSON.

   Loaded with global visibility before the launcher, whose symbols it answers.  The structures are CUDA's cudaLaunchConfig_t and
   cudaLaunchAttribute. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { int id; char pad[4]; unsigned value[16]; } Attribute;
typedef struct { Dim3 grid, block; size_t smem; void *stream; Attribute *attributes; unsigned count; } Config;
enum { CLUSTER_DIMENSION = 4, OPT_IN_SMEM = 1 << 18 };

static char kernel_name[1024];

int _cudaLaunchKernelEx(const Config *c, void *kernel, void **arguments) {
  unsigned cluster[3] = {1, 1, 1};
  for (unsigned i = 0; i < c->count; i++)
    if (c->attributes[i].id == CLUSTER_DIMENSION)
      for (int d = 0; d < 3; d++) cluster[d] = c->attributes[i].value[d];
  printf("{\"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"cluster\": [%u, %u, %u], \"dynamic_smem\": %zu, ",
         kernel_name, c->grid.x, c->grid.y, c->grid.z, c->block.x, c->block.y, c->block.z, cluster[0], cluster[1], cluster[2], c->smem);
  printf("\"stream\": %llu, \"arguments\": [", (unsigned long long)(uintptr_t)c->stream);
  const char *types = getenv("ARGUMENT_TYPES"); /* one letter per argument: w for 32 bits, q for 64 */
  for (int i = 0; types[i]; i++)
    printf("%s%llu", i ? ", " : "", types[i] == 'w' ? (unsigned long long)*(uint32_t *)arguments[i] : (unsigned long long)*(uint64_t *)arguments[i]);
  printf("]}\n");
  fflush(stdout);
  return 0;
}

int _cudaLibraryLoadData(void **library, const void *code) { *library = (void *)code; return 0; }
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  snprintf(kernel_name, sizeof kernel_name, "%s", name); /* the caller's buffer does not outlive the call */
  *kernel = library;
  return 0;
}
int _cudaGetDevice(int *device) { *device = 0; return 0; }
int _cudaDeviceGetAttribute(int *value, int attribute, int device) { *value = OPT_IN_SMEM; return 0; }
int _cudaFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) { return 0; }
int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) { *value = 0; return 0; }

int cuda_dialect_init_library_once(void **library, int (*load)(void **), int (*load_to_device)(void **, int)) {
  if (*library) return 0;
  void *loaded = NULL;
  int status = load(&loaded);
  if (!status) status = load_to_device(&loaded, 0);
  if (!status) *library = loaded;
  return status;
}
