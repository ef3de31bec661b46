// Stops a thread of a process while it computes in a library, as a driver does in which it hangs: the others go on,
// and not even SIGKILL ends the process before this program has ended. Elsewhere the thread could hold a lock for
// which all others would wait. usage: stop-thread PID PART_OF_LIBRARY_NAME
#include <dirent.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int is_in(const char *pid, const char *library, unsigned long address) {
  char line[4608];
  snprintf(line, sizeof line, "/proc/%s/maps", pid);
  FILE *maps = fopen(line, "r");
  if (!maps) return 0;
  int found = 0;
  unsigned long from, to;
  while (!found && fgets(line, sizeof line, maps))
    found = sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= address && address < to && strstr(line, library);
  fclose(maps);
  return found;
}

/** Where a stopped thread is; 0 where that is not known. */
static unsigned long counter_of(pid_t thread) {
  struct user_regs_struct registers;
  struct iovec into = {&registers, sizeof registers};
  if (ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, &into) != 0) return 0;
#if defined(__x86_64__)
  return registers.rip;
#else
  return registers.pc;
#endif
}

/** Whether the thread is stopped now, and in the library. */
static int stop(pid_t thread, const char *pid, const char *library) {
  if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0) return 0;
  int status;
  if (ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0 || waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status))
    return 0;
  if (is_in(pid, library, counter_of(thread))) return 1;
  ptrace(PTRACE_DETACH, thread, 0, 0);
  return 0;
}

/** A try takes as long as the threads take to be scheduled, each: the clock ends this, not a number of tries. */
static const time_t TRIES_S = 20;

static time_t now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  char folder[64];
  snprintf(folder, sizeof folder, "/proc/%s/task", argv[1]);
  for (const time_t end_s = now_s() + TRIES_S; now_s() < end_s;) {
    DIR *tasks = opendir(folder);
    if (!tasks) return 1;
    for (struct dirent *entry; (entry = readdir(tasks));) {
      pid_t thread = (pid_t)atol(entry->d_name);
      if (thread <= 0 || strcmp(entry->d_name, argv[1]) == 0 || !stop(thread, argv[1], argv[2])) continue;
      puts("stopped");
      fflush(stdout);
      for (;;) pause();
    }
    closedir(tasks);
    usleep(1000);
  }
  fputs("no thread was met in that library\n", stderr);
  return 1;
}
