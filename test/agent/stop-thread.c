// Stops one thread of a process, as a driver does in which it hangs: the others go on, and not even SIGKILL ends the
// process before this program has ended. usage: stop-thread TID
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  pid_t thread = (pid_t)atol(argv[1]);
  if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0 || ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0) {
    perror("ptrace");
    return 1;
  }
  int status;
  if (waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status)) return 1;
  puts("stopped");
  fflush(stdout);
  for (;;) pause();
}
