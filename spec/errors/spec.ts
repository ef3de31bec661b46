import { defineErrors } from './define.ts';

/** Errors any room may meet, and those of reading model.yaml and site configs. */
export const specErrors = defineErrors({
  E_INTERNAL: {
    cause: 'A defect of hpcserve: something happened that the code did not foresee.',
    fix: 'Run again with HPCSERVE_DEBUG=1 and report the stack trace.',
    http_status: 500,
    exit_code: 1,
  },
  E_FILESYSTEM: {
    cause:
      'The operating system refused to read or write a file: the disk or quota is full, or access is denied.',
    fix: 'Make room or correct the permissions of the path named, then run the command again.',
    http_status: 507,
    exit_code: 12,
  },
  E_CONFIG_YAML: {
    cause: 'A YAML file is not well formed, or a key has a wrong name, type or value.',
    fix: 'Correct the file at the position named.',
    http_status: 400,
    exit_code: 3,
  },
  E_CONFIG_MISSING: {
    cause: 'A configuration file that was named, or a setting that is needed, does not exist.',
    fix: 'Name an existing file, or write one with `hpcserve init`.',
    http_status: 400,
    exit_code: 3,
  },
  E_CONFIG_UNSUPPORTED: {
    cause: 'A setting that the format knows and this version of hpcserve does not act on.',
    fix: 'Remove the setting.',
    http_status: 400,
    exit_code: 3,
  },
  E_CONFIG_CONFLICT: {
    cause: 'Two settings contradict each other.',
    fix: 'Keep one of the two settings.',
    http_status: 400,
    exit_code: 3,
  },
});
