/** A gateway in this process before the real node agents of a site, with a key and the official client. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI, { type ClientOptions } from 'openai';
import { pino } from 'pino';
import { startGateway } from '../../gateway/gateway.ts';
import type { GatewayTimes } from '../../gateway/gateway-times.ts';
import type { GatewayConfig } from '../../spec/state-layout.ts';
import type { Site } from '../agent/support.ts';
import { eventually } from '../mesh/support.ts';
import { testConfig } from './support.ts';

export interface SessionRow {
  session_id: string;
  reachable: boolean;
  lifecycle: string;
  models: { name: string; state: string; running: number; unreported: number }[];
}

export interface SiteGateway extends AsyncDisposable {
  /** Without `/v1`. */
  url: string;
  key: string;
  /** JSON lines it logged so far. */
  logged: string[];
  /** The official client, which asks once. */
  client(options?: ClientOptions): OpenAI;
  admin(path: string, init?: RequestInit): Promise<Response>;
  /** Sessions that answer now, as the gateway sees them; of one model where it is named. */
  serving(model?: string): Promise<SessionRow[]>;
  /** Waits until so many replicas of a model can be asked. */
  untilServing(model: string, replicas: number, deadline_ms?: number): Promise<void>;
  /** Streams that went on elsewhere, as its metrics count them. */
  continuations(): Promise<number>;
}

export async function gatewayOf(
  site: Site,
  times: Partial<GatewayTimes> = {},
  change: Partial<GatewayConfig> = {},
): Promise<SiteGateway> {
  const logged: string[] = [];
  mkdirSync(join(site.folder, 'deployments'), { recursive: true });
  const gateway = await startGateway(
    testConfig(site.folder, {
      site: 'local',
      provider: site.provider.name,
      provider_key_file: site.provider_key_file,
      mesh_folder: site.mesh_folder,
      ...change,
    }),
    {
      log: pino({ level: 'debug' }, { write: (line: string) => void logged.push(line) }),
      times: { poll_ms: 50, drain_ms: 2000, ...times },
    },
  );
  const { url } = gateway.endpoint;
  const admin: SiteGateway['admin'] = (path, init = {}) =>
    fetch(url + path, {
      ...init,
      headers: { authorization: `Bearer ${gateway.admin_token}`, 'content-type': 'application/json' },
    });
  const made = await admin('/hpcserve/v1/keys', { method: 'POST', body: JSON.stringify({ name: 'tester' }) });
  const { key } = (await made.json()) as { key: string };
  const serving: SiteGateway['serving'] = async (model) => {
    const { sessions } = (await (await admin('/hpcserve/v1/table')).json()) as { sessions: SessionRow[] };
    return sessions.filter(
      ({ reachable, lifecycle, models }) =>
        reachable &&
        lifecycle === 'SERVING' &&
        models.some(({ name, state }) => state === 'serving' && (model === undefined || name === model)),
    );
  };
  return {
    url,
    key,
    logged,
    admin,
    serving,
    client: (options = {}) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, ...options }),
    untilServing: async (model, replicas, deadline_ms) => {
      await eventually(
        async () => (await serving(model)).length === replicas,
        `${replicas} replicas of ${model}`,
        deadline_ms,
      );
    },
    continuations: async () => {
      const text = await (await admin('/metrics')).text();
      return Number(/^hpcserve_continuations_total\{[^}]*\} (\d+)/m.exec(text)?.[1] ?? 0);
    },
    [Symbol.asyncDispose]: () => gateway.close(),
  };
}
