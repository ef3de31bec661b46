/*
 * A log callback of ggml that writes errors to stderr and nothing else: ggml's threads call it, which no function of
 * JavaScript can take. CUDA's backend logs why it fails and then aborts, so that the reason is in no other place.
 */
#include "kernels.h"
#include <stdio.h>
#include <string.h>

/* Of enum ggml_log_level: the second goes on with the line before. */
enum { LEVEL_ERROR = 4, LEVEL_CONT = 5 };

/*
 * Who asks for memory is told that there is none, and goes on with less: such a line, were it in the log, would pass
 * for the reason of whatever happens later.
 */
static int is_told_otherwise(const char *text) { return strstr(text, "allocat") != NULL; }

HK_API void hk_log_errors(int level, const char *text, void *user_data) {
  static _Thread_local int is_written;
  (void)user_data;
  if (level != LEVEL_CONT) is_written = level == LEVEL_ERROR && !is_told_otherwise(text);
  if (is_written) fputs(text, stderr);
}
