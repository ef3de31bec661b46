/** Exit codes of the `hpcserve` command; documented in docs/errors.md, tied to it by a test. */
export const exitCodes = {
  0: 'success',
  1: 'an internal error: a defect of hpcserve',
  2: 'wrong usage: an unknown command, option or argument',
  3: 'a configuration or model.yaml that is wrong',
  4: 'a model that is missing, damaged or unsupported',
  5: 'no placement satisfies the constraints',
  6: 'Slurm refused the job',
  7: 'Slurm, a host or a service could not be reached',
  8: 'the deployment failed after it was submitted',
  9: 'the named thing does not exist',
  10: 'a conflict: a stale plan, a lock, or a name that is taken',
  11: 'an engine failed',
  12: 'a local resource is missing: disk, port, permission, library',
  13: 'a check did not pass (doctor, bench)',
  130: 'interrupted by the user (Ctrl-C)',
} as const;

export type ExitCode = keyof typeof exitCodes;
