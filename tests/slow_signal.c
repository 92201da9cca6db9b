// Preloaded into a process: threads that ask for it go on late after they have woken another one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static __thread int slow;

void slow_signals_here(void) { slow = 1; }

int pthread_cond_signal(pthread_cond_t* condition) {
  static int (*real)(pthread_cond_t*);
  if (!real) real = (int (*)(pthread_cond_t*))dlsym(RTLD_NEXT, "pthread_cond_signal");
  const int status = real(condition);
  if (slow) usleep(500000);
  return status;
}
