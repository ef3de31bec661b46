import type { LinkUse } from '../solver/streaming/request-load.ts';
import type { DeviceDescription, SessionRecord } from '../spec/session-record.ts';
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
  /** What is taken of the link that models of it are streamed over; absent: none are. */
  link?: LinkUse;
  /** A `DeviceReport`, passed on as it came. */
  report?: unknown;
  /** Why there is none. */
  error?: string;
}

/** A wrapped engine that may sleep, and what its agent says of it. */
interface SleeperRow extends Omit<DeviceRow, 'report' | 'error' | 'link'> {
  /** A `SleepReport`, passed on as it came. */
  report: unknown;
}

/** Asks the agents of all wrapped engines that this gateway reaches. Agents of earlier versions do not say. */
export async function sleeperReports(table: RoutingTable<SessionLink>): Promise<SleeperRow[]> {
  const asked = table.sessions().flatMap(({ record, reachable, replicas }) => {
    const link = replicas[0]?.session;
    if (!link || !reachable || record.metadata.role !== 'engine') return [];
    const row = rowOf(record);
    return [
      link.ask(agentPaths.sleep, answer_ms).then(
        (report): SleeperRow[] => (report === null ? [] : [{ ...row, report }]),
        (): SleeperRow[] => [],
      ),
    ];
  });
  return (await Promise.all(asked)).flat();
}

/** Asks the workers of all devices that this gateway reaches, at once, over their sessions. */
export function deviceReports(table: RoutingTable<SessionLink>): Promise<DeviceRow[]> {
  const links = table.sessions().flatMap(({ record, reachable, replicas, device }) => {
    const link = replicas[0]?.session;
    return link && record.metadata.engine === 'native' ? [{ record, reachable, link, device }] : [];
  });
  return Promise.all(
    links.map(async ({ record, reachable, link, device }): Promise<DeviceRow> => {
      const row: DeviceRow = rowOf(record);
      if (!reachable) return { ...row, error: 'the session cannot be reached' };
      if (device?.streams) row.link = device.use;
      try {
        return { ...row, report: await link.ask(agentPaths.device, answer_ms) };
      } catch (error) {
        return { ...row, error: (error as Error).message };
      }
    }),
  );
}

function rowOf({ session_id, metadata }: SessionRecord): Omit<DeviceRow, 'report' | 'error' | 'link'> {
  const { node, site, deployment, job_id, devices } = metadata;
  const row: ReturnType<typeof rowOf> = { session_id, node, site, devices };
  if (deployment !== undefined) row.deployment = deployment;
  if (job_id !== undefined) row.job_id = job_id;
  return row;
}
