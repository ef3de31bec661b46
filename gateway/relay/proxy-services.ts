import type { RequestLimits } from '../keys/request-limits.ts';
import type { GatewayLog } from '../log.ts';
import type { GatewayMetrics } from '../metrics.ts';
import type { PromptKnowledge } from '../routing/prompt-knowledge.ts';
import type { Router } from '../routing/router.ts';
import type { Defragmenter } from '../sharing/defragmenter.ts';
import type { Tracing } from '../telemetry/tracing.ts';
import type { PromptTracer } from '../trace/prompt-tracer.ts';
import type { DemandMeter } from '../workload/demand-meter.ts';
import type { WorkloadMeter } from '../workload/workload-meter.ts';
import type { JournalMemory } from './journal/journal-memory.ts';
import type { RequestAccounts } from './request-accounts.ts';
import type { WaitingLine } from './waiting-line.ts';
import type { WaitingRoom } from './waiting-room.ts';

/** What the requests of one process share; what is counted for the whole gateway may be counted by another one. */
export interface ProxyServices {
  router: Router;
  prompts: PromptKnowledge;
  accounts: RequestAccounts;
  limits: RequestLimits;
  metrics: Pick<GatewayMetrics, 'retried' | 'continued' | 'refused'>;
  log: GatewayLog;
  journals: JournalMemory;
  workload: Pick<WorkloadMeter, 'arrived' | 'refused' | 'longAnswer'>;
  demand: Pick<DemandMeter, 'began'>;
  /** Absent: nothing is kept of prompts. */
  tracer?: PromptTracer | undefined;
  /** Absent: requests are not traced. */
  tracing?: Tracing | undefined;
  defragmenter: Pick<Defragmenter, 'makeRoom'>;
  waiting: Waiting;
}

/** How long is waited: for a replica where there is none, and for a client that does not read. */
export interface Waiting {
  /** Where none is known to come: it may be started again, or come back. */
  continue_ms: number;
  /** Where one loads. */
  load_wait_ms: number;
  /** Where the model sleeps: until its job has told of a replica. */
  wake_wait_ms: number;
  /** Where replicas came and their places are taken; then it is given to one of them, and waits there. */
  held_ms: number;
  /** A stream says so often that it waits. */
  comment_ms: number;
  /** A client that takes no bytes for so long is cut off. */
  stall_ms: number;
  /** For requests that have not begun to be answered. */
  room: WaitingRoom;
  line: WaitingLine;
}
