/** The processes of a gateway, as commands show them. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { WorkerState } from '../../spec/gateway-processes.ts';
import type { StateLayout } from '../../spec/state-layout.ts';
import { GatewayAdmin } from './admin.ts';
import { readLastConfig } from './files.ts';
import { type GatewayStatus, readAdminToken } from './process.ts';

const answer_ms = 3_000;

export interface ProcessesReport {
  /** How many are to relay requests; 1: the gateway itself does. */
  processes: number;
  /** Those that relay for it, each as it is; absent where that is not known. */
  workers?: WorkerState[];
  /** Why it is not known. */
  because?: string;
}

/** Of a gateway that answers; undefined of others. One that relays by itself has nothing to be asked. */
export async function inspectProcesses(
  layout: StateLayout,
  status: GatewayStatus,
): Promise<ProcessesReport | undefined> {
  if (status.state !== 'running') return undefined;
  const { processes = 1 } = readLastConfig(layout) ?? {};
  if (processes === 1) return { processes, workers: [] };
  try {
    const admin = new GatewayAdmin(status.endpoint, readAdminToken(layout));
    return await admin.processes(AbortSignal.timeout(answer_ms));
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    return { processes, because: [error.message, ...error.because].join(': ') };
  }
}

/** How many of them answer, in words; undefined where the gateway relays by itself. */
export function describeProcesses({ processes, workers, because }: ProcessesReport): string | undefined {
  if (processes === 1) return undefined;
  if (!workers) return `${processes} workers, and how they are is not known (${because})`;
  const answering = workers.filter(({ state }) => state === 'answers').length;
  return `${answering} of ${processes} workers answer`;
}
