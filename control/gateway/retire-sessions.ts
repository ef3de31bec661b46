/** Tells the mesh that sessions are gone which can no longer say so themselves. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SessionRecord } from '../../spec/session-record.ts';

/**
 * Every session of the mesh for which `isGone` holds becomes LEFT for all members.
 * @param evidence what was seen, such as `Slurm job 42 ended: NODE_FAIL`.
 * @returns why the mesh could not be told; undefined where it was.
 */
export async function retireSessions(
  meshFolder: string,
  isGone: (record: SessionRecord) => boolean,
  evidence: string,
): Promise<HpcserveError | undefined> {
  // Loaded here: the certificates behind the mesh would make every command start half a second later.
  const { RendezvousRegistry, SessionIdentity } = await import('../../mesh/index.ts');
  try {
    const registry = await RendezvousRegistry.open(meshFolder, { create: false });
    try {
      const gone = registry.snapshot().filter((record) => record.lifecycle !== 'LEFT' && isGone(record));
      if (gone.length === 0) return undefined;
      const reporter = await SessionIdentity.create();
      for (const { session_id } of gone) await registry.retire(session_id, evidence, reporter);
      const { state, reason } = registry.status();
      return state === 'ok'
        ? undefined
        : new HpcserveError('E_MESH_FOLDER', { what: `${meshFolder} is ${state}`, because: reason ?? state });
    } finally {
      await registry.close();
    }
  } catch (error) {
    if (error instanceof HpcserveError && (error.code === 'E_MESH_FOLDER' || error.code === 'E_MESH_KEY'))
      return error;
    throw error;
  }
}
