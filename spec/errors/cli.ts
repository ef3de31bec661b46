import { defineErrors } from './define.ts';

/** What can be wrong with how a command was typed, or with the place it was typed at. */
export const cliErrors = defineErrors({
  E_USAGE: {
    cause: 'An unknown command, option or argument, or a value that an option does not take.',
    fix: 'see `hpcserve --help`, or `hpcserve COMMAND --help` for examples',
    http_status: 400,
    exit_code: 2,
  },
  E_INTERRUPTED: {
    cause: 'The command was interrupted (Ctrl-C); jobs that were submitted go on.',
    fix: 'see what runs with `hpcserve status`; end it with `hpcserve stop NAME`',
    http_status: 499,
    exit_code: 130,
  },
  E_CHECKS_FAILED: {
    cause: 'At least one check of `hpcserve doctor` did not pass.',
    fix: 'run the command printed beside each failed check, then doctor again',
    http_status: 500,
    exit_code: 13,
  },
  E_LOGS_UNKNOWN: {
    cause: 'Logs were asked for of a node or a replica that the deployment does not have.',
    fix: 'see the nodes and replicas with `hpcserve status NAME`; `--old` adds jobs that were replaced',
    http_status: 404,
    exit_code: 9,
  },
  E_USER_UNKNOWN: {
    cause:
      'Your user name or home folder is needed, and this machine has no entry for your uid: a container that was started with a uid alone, or a user directory that is away.',
    fix: 'set USER and HOME, or run where `id -un` prints your name; `id -u` prints the uid',
    http_status: 503,
    exit_code: 12,
  },
  E_CONFIG_KEY: {
    cause: 'A configuration key that does not exist.',
    fix: 'list the keys with `hpcserve config show`',
    http_status: 404,
    exit_code: 9,
  },
  E_FILE_EXISTS: {
    cause: 'A file that the command would write exists, and is not overwritten without being asked to.',
    fix: 'name another file, or give --force',
    http_status: 409,
    exit_code: 10,
  },
  E_CREDENTIALS: {
    cause: 'There is no API key for this gateway, or the file of keys cannot be read or is open to others.',
    fix: 'make a key with `hpcserve keys create`, or set HPCSERVE_API_KEY',
    http_status: 401,
    exit_code: 9,
  },
  E_CONFIRM: {
    cause: 'The command asks before it goes on, and there is no terminal to ask at.',
    fix: 'give --yes',
    http_status: 400,
    exit_code: 2,
  },
  E_PACKAGE: {
    cause:
      'The relocatable archive cannot be made: a program, a package or a built file that it needs is missing.',
    fix: 'Install or build what the error names, then run `npm run package` again.',
    http_status: 500,
    exit_code: 12,
  },
  E_NATIVE_ADD: {
    cause:
      'A backend for GPUs cannot be fetched, is not what was chosen, or is not built for this architecture.',
    fix: 'where no npm registry is reached, fetch the package elsewhere (`npm pack`) and give its file with --from',
    http_status: 502,
    exit_code: 12,
  },
  E_QUICKSTART: {
    cause: 'The quickstart deployed its model, and the first question to it was not answered.',
    fix: 'read the lines of `doctor` above that are not PASSED, and `npm run --silent hpcserve -- logs quickstart --site local`; end it with `stop` in place of `logs`',
    http_status: 503,
    exit_code: 8,
  },
  E_REMOTE_PROGRAM: {
    cause:
      'A command for a site over ssh runs on its login node, and hpcserve is not installed there, or is of another version.',
    fix: 'Unpack the same version there (`npm run package` makes the archive) and set runtime.install_dir in the site config.',
    http_status: 503,
    exit_code: 12,
  },
});
