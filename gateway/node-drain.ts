import { Pool } from 'undici';
import { pinnedConnector, type RelayFallback, type SessionIdentity, sessionOrigin } from '../mesh/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { SessionRecord } from '../spec/session-record.ts';
import { agentPaths } from '../spec/wire.ts';

/** An agent answers at once, and drains then. */
const answer_ms = 5000;

/** Who is asked, and by whom. */
interface Mesh {
  records: readonly SessionRecord[];
  own: SessionIdentity;
  relayFallback: RelayFallback;
}

/** An agent that drains. */
export interface DrainingAgent {
  session_id: string;
  site: string;
  deployment?: string;
  job_id?: string;
}

/** Agents of a node that have not left the mesh. */
export function agentsOn(node: string, records: readonly SessionRecord[]): SessionRecord[] {
  return records.filter(
    ({ lifecycle, metadata }) =>
      metadata.role === 'node-agent' && metadata.node === node && lifecycle !== 'LEFT',
  );
}

/** What came of asking the agents of a node. */
interface AskedAgents {
  agents: DrainingAgent[];
  /** Agents that do not answer; their nodes may be gone. */
  unreachable: { session_id: string; because: string }[];
}

/**
 * Has every agent of a node give its running answers to others, and end.
 * @throws HpcserveError E_NODE_UNKNOWN: no agent is there; E_NODE_DRAIN: none of them does so
 */
export async function drainNode(node: string, mesh: Mesh): Promise<AskedAgents> {
  const agents = agentsOn(node, mesh.records);
  if (agents.length === 0) throw unknownNode(node, mesh.records);
  const drain: AskedAgents = { agents: [], unreachable: [] };
  await Promise.all(
    agents.map(async (agent) => {
      const because = await askToDrain(agent, mesh);
      if (because === undefined) drain.agents.push(describe(agent));
      else drain.unreachable.push({ session_id: agent.session_id, because });
    }),
  );
  if (drain.agents.length > 0) return drain;
  throw new HpcserveError('E_NODE_DRAIN', {
    what: `no agent on ${node} drains`,
    because: drain.unreachable.map(({ because }) => because),
  });
}

function unknownNode(node: string, records: readonly SessionRecord[]): HpcserveError {
  const names = new Set(
    records
      .filter(({ lifecycle, metadata }) => metadata.role === 'node-agent' && lifecycle !== 'LEFT')
      .map(({ metadata }) => metadata.node),
  );
  return new HpcserveError('E_NODE_UNKNOWN', {
    what: `no agent runs on ${node}`,
    because: names.size === 0 ? 'no agent runs at all' : `agents run on ${[...names].sort().join(', ')}`,
  });
}

/** @returns why it does not; undefined where it does */
async function askToDrain(agent: SessionRecord, { own, relayFallback }: Mesh): Promise<string | undefined> {
  const pool = new Pool(sessionOrigin(agent), { connect: pinnedConnector(agent, own, { relayFallback }) });
  try {
    const { statusCode, body } = await pool.request({
      method: 'POST',
      path: agentPaths.drain,
      signal: AbortSignal.timeout(answer_ms),
    });
    const text = await body.text();
    return statusCode === 202 ? undefined : `it answers ${statusCode}: ${text.slice(0, 300)}`;
  } catch (error) {
    return (error as Error).message;
  } finally {
    await pool.destroy();
  }
}

function describe({ session_id, metadata }: SessionRecord): DrainingAgent {
  const { site, deployment, job_id } = metadata;
  const drains: DrainingAgent = { session_id, site };
  if (deployment !== undefined) drains.deployment = deployment;
  if (job_id !== undefined) drains.job_id = job_id;
  return drains;
}
