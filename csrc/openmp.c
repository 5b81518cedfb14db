/* The OpenMP library that PyTorch has loaded, on Linux. */
#define _GNU_SOURCE
#include "threads.h"

#if defined(__linux__)

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    int has_torch, has_other_openmp, is_torch_library;
    char path[PATH_MAX]; /* of libgomp; empty if there is none */
} Libraries;

/* Is this the name of a library, whatever its version: libgomp.so.1, or libgomp-98b21ff3.so.1? */
static int is_library(const char *file, const char *name) {
    const size_t length = strlen(name);
    return !strncmp(file, name, length) && (file[length] == '.' || file[length] == '-');
}

static int read_library(struct dl_phdr_info *info, size_t size, void *data) {
    Libraries *libraries = data;
    const char *path = info->dlpi_name, *slash = strrchr(path, '/');
    (void)size;
    if (!slash) return 0;
    const char *file = slash + 1;
    if (is_library(file, "libtorch_cpu")) libraries->has_torch = 1;
    if (is_library(file, "libiomp5") || is_library(file, "libomp")) libraries->has_other_openmp = 1;
    if (!is_library(file, "libgomp") || slash - path >= PATH_MAX) return 0;
    /* Other packages keep their own copy in a folder named *.libs: that pool is not PyTorch's. */
    char folder[PATH_MAX];
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    const char *parent = strrchr(folder, '/');
    if (strstr(parent ? parent : folder, ".libs")) return 0;
    const int is_torch_library = strstr(folder, "/torch/") != NULL;
    if (!libraries->path[0] || (is_torch_library && !libraries->is_torch_library)) {
        libraries->is_torch_library = is_torch_library;
        snprintf(libraries->path, sizeof libraries->path, "%s", path);
    }
    return 0;
}

void *find_openmp_parallel(void) {
    Libraries libraries = {0};
    dl_iterate_phdr(read_library, &libraries);
    if (!libraries.has_torch || libraries.has_other_openmp || !libraries.path[0]) return NULL;
    void *library = dlopen(libraries.path, RTLD_NOLOAD | RTLD_NOW);
    return library ? dlsym(library, "GOMP_parallel") : NULL;
}

#else

void *find_openmp_parallel(void) { return NULL; }

#endif
