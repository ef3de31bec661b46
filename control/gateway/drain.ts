import { setTimeout as sleep } from 'node:timers/promises';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { MovesReport } from '../../spec/moves-report.ts';
import type { GatewayAdmin, NodeDrain } from './admin.ts';

/** Looked at so often whether agents have left. */
const look_ms = 500;

export interface DrainOutcome extends NodeDrain {
  /** What its workers had said last of answers that moved, by session. */
  moves: Map<string, MovesReport>;
}

/**
 * Has a node's agents give their running answers to others, and waits until they have left.
 * @throws HpcserveError E_NODE_UNKNOWN, E_NODE_DRAIN, E_GATEWAY_UNREACHABLE
 */
export async function emptyNode(
  admin: GatewayAdmin,
  node: string,
  { timeout_ms, signal }: { timeout_ms: number; signal: AbortSignal },
): Promise<DrainOutcome> {
  const drain = await admin.drainNode(node);
  const waits = new Set(drain.agents.map(({ session_id }) => session_id));
  const moves = new Map<string, MovesReport>();
  const until_ms = performance.now() + timeout_ms;
  for (;;) {
    for (const { session_id, node: of, report } of await admin.listDevices(signal))
      if (of === node && report?.moves) moves.set(session_id, report.moves);
    const left = await admin.agentsOn(node);
    if (!left.some((session_id) => waits.has(session_id))) return { ...drain, moves };
    if (performance.now() > until_ms)
      throw new HpcserveError('E_NODE_DRAIN', {
        what: `${node} is not drained after ${Math.round(timeout_ms / 1000)} s`,
        because: 'answers still run there, or engines have not ended',
      });
    await sleep(look_ms, undefined, { signal });
  }
}
