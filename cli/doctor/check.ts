/** One check of `doctor`: what was found, and the command that mends it. */
export type CheckStatus = 'PASSED' | 'WARNING' | 'FAILED' | 'SKIPPED';

export interface CheckResult {
  check: string;
  status: CheckStatus;
  /** What was found, with numbers and paths. */
  found: string;
  /** What to type or change; on all but PASSED. */
  mend?: string;
}

export const passed = (check: string, found: string): CheckResult => ({ check, status: 'PASSED', found });
export const warning = (check: string, found: string, mend: string): CheckResult => ({
  check,
  status: 'WARNING',
  found,
  mend,
});
export const failed = (check: string, found: string, mend: string): CheckResult => ({
  check,
  status: 'FAILED',
  found,
  mend,
});
/** Not checked here, with the reason; never a pass. */
export const skipped = (check: string, found: string): CheckResult => ({ check, status: 'SKIPPED', found });
