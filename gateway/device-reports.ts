import type { DeviceDescription } from '../spec/session-record.ts';
import { agentPaths } from '../spec/wire.ts';
import type { RoutingTable } from './routing/table.ts';
import type { SessionLink } from './session-link.ts';

/** A worker answers between two iterations; one that takes longer is shown as silent. */
const answer_ms = 5000;

/** A device that native models share, and what its worker says; as `GET /hpcserve/v1/devices` gives it. */
interface DeviceRow {
  session_id: string;
  node: string;
  site: string;
  deployment?: string;
  job_id?: string;
  devices: DeviceDescription[];
  /** A `DeviceReport`, passed on as it came. */
  report?: unknown;
  /** Why there is none. */
  error?: string;
}

/** Asks the workers of all devices that this gateway reaches, at once, over their sessions. */
export function deviceReports(table: RoutingTable<SessionLink>): Promise<DeviceRow[]> {
  const links = table.sessions().flatMap(({ record, reachable, replicas }) => {
    const link = replicas[0]?.session;
    return link && record.metadata.engine === 'native' ? [{ record, reachable, link }] : [];
  });
  return Promise.all(
    links.map(async ({ record, reachable, link }): Promise<DeviceRow> => {
      const { node, site, deployment, job_id, devices } = record.metadata;
      const row: DeviceRow = { session_id: record.session_id, node, site, devices };
      if (deployment !== undefined) row.deployment = deployment;
      if (job_id !== undefined) row.job_id = job_id;
      if (!reachable) return { ...row, error: 'the session cannot be reached' };
      try {
        return { ...row, report: await link.ask(agentPaths.device, answer_ms) };
      } catch (error) {
        return { ...row, error: (error as Error).message };
      }
    }),
  );
}
