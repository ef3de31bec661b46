import { syncPath, writeFileAtomicallyAsync } from '../../host/whole-file.ts';
import type { ErrorJson } from '../../spec/errors/error.ts';
import type { ProcessEnd } from './serving-process.ts';

/** Why a unit was given up: `<node>.<unit>.failure.json` in the launch folder. */
export interface FailureReport {
  format: 1;
  at_ms: number;
  node: string;
  unit: string;
  session_id: string;
  /** Whether going on was of no use, and for whom. */
  fatal?: string | undefined;
  error: ErrorJson;
  exit_code?: number | null | undefined;
  signal?: string | null | undefined;
  /** The whole log, and its last lines. */
  log_file: string;
  lines: readonly string[];
}

/** Of what an engine wrote, so many of its last lines are in the report; the whole log is beside it. */
const report_lines = 200;

export function failureReport(
  { error, fatal, exit_code, signal, tail = [] }: ProcessEnd,
  of: Pick<FailureReport, 'node' | 'unit' | 'session_id' | 'log_file'>,
): FailureReport {
  const lines = tail.slice(-report_lines);
  return { format: 1, at_ms: Date.now(), ...of, fatal, error: error!.toJSON(), exit_code, signal, lines };
}

/**
 * Puts what is known of a failure onto the disk of the shared filesystem before anybody leaves: the report, and what
 * the engine itself has written to its log.
 */
export async function shipFailure(path: string, report: FailureReport): Promise<void> {
  await syncLog(report.log_file);
  await writeFileAtomicallyAsync(path, `${JSON.stringify(report, null, 2)}\n`);
}

/** An engine that was never started has no log. */
async function syncLog(path: string): Promise<void> {
  try {
    await syncPath(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
}
