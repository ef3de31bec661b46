import type { ErrorCode } from '../../spec/errors/registry.ts';
import { Unsent } from '../upstream/pool.ts';

/**
 * What an answer that is an error says of its replica.
 * - `final`: the request is at fault: nobody else would do better
 * - `busy`: it is full: another may have room
 * - `uncomputed`: it is ending, not there yet, or did not accept this gateway: one in its place may be there soon
 * - `moved`: its device is freed for others; whoever was full before may be asked again
 * - `ended`: its engine ended or hung while it worked on the request, for which the request may be the reason
 * - `stopped`: the same, and what is known points at the request
 * - `failed`: it did worse than it should; whether the request harmed it, nobody knows
 */
export type ReplicaRefusal = 'final' | 'busy' | 'uncomputed' | 'moved' | 'ended' | 'stopped' | 'failed';

/** What became of a replica that could not answer, as far as that tells whether another may be asked. */
export type AttemptFailure = 'unreached' | ReplicaRefusal;

const meanings: ReadonlyMap<string, ReplicaRefusal> = new Map<ErrorCode, ReplicaRefusal>([
  ['E_POOL_FULL', 'busy'],
  ['E_REQUEST_MOVED', 'moved'],
  ['E_AGENT_NOT_READY', 'uncomputed'],
  ['E_MODEL_NOT_READY', 'uncomputed'],
  ['E_WORKER_DRAINING', 'uncomputed'],
  ['E_AGENT_UPSTREAM', 'ended'],
  ['E_AGENT_ENGINE_STALLED', 'ended'],
  ['E_REPLICA_SILENT', 'ended'],
]);

/**
 * @param code of the error in the answer's envelope, where it has one
 * @param final the replica says that it is no use to ask another
 */
export function replicaRefusal(status: number, code: string | undefined, final = false): ReplicaRefusal {
  if (final) return code === 'E_REPLICA_SILENT' ? 'stopped' : 'final';
  if (isMeshRefusal(status)) return 'uncomputed';
  if (status === 429) return 'busy';
  if (status < 500) return 'final';
  // Of other answers it is not known what was done before them: an engine's computation may have failed on the request.
  return meanings.get(code ?? '') ?? 'failed';
}

/** What is to be thought of a replica whose connection failed. `unreached`: it had nothing of the request. */
export function connectionFailure(error: Error): 'unreached' | 'ended' {
  return error instanceof Unsent ? 'unreached' : 'ended';
}

/** The session did not accept this gateway; the client's key has nothing to do with it. */
export function isMeshRefusal(status: number): boolean {
  return status === 401 || status === 403 || status === 421;
}
