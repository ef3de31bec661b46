/** What a bench gives a gateway: its config, a key, and sessions of one launch. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type Delegation, launchScope, type ProviderKey } from '../../mesh/index.ts';
import type { Heartbeat } from '../../spec/agent-state.ts';
import type { KeySettings } from '../../spec/key-settings.ts';
import type { SessionMetadata } from '../../spec/session-record.ts';
import { type GatewayConfig, gatewayFiles } from '../../spec/state-layout.ts';

export function writeGatewayConfig(
  folder: string,
  mesh_folder: string,
  provider_key_file: string,
  port: number,
  processes?: number,
): GatewayConfig {
  const config: GatewayConfig = {
    format: 1,
    site: 'bench',
    provider: 'bench@bench',
    provider_key_file,
    host: '127.0.0.1',
    port,
    mesh_folder,
    keys_folder: join(dirname(mesh_folder), 'keys'),
    gateway_folder: join(folder, 'gateway'),
    deployments_folder: join(folder, 'deployments'),
    mesh: { host: '127.0.0.1', bootstrap: [], relay: [] },
  };
  if (processes !== undefined) config.processes = processes;
  mkdirSync(config.gateway_folder, { mode: 0o700, recursive: true });
  writeFileSync(join(config.gateway_folder, gatewayFiles.config), JSON.stringify(config));
  return config;
}

export async function makeKey(
  origin: string,
  { gateway_folder }: GatewayConfig,
  settings: KeySettings = {},
): Promise<string> {
  const token = readFileSync(join(gateway_folder, gatewayFiles.admin_token), 'utf8').trim();
  const made = await fetch(`${origin}/hpcserve/v1/keys`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'bench', settings }),
  });
  const { key } = (await made.json()) as { key: string };
  return key;
}

/** Of all sessions of the bench. */
export const launch_id = '0123456789abcdef';

export function delegationOf(provider: ProviderKey): Delegation {
  const not_after_s = Math.floor(Date.now() / 1000) + 86_400;
  return provider.delegate({ name: 'bench@bench', scope: launchScope(launch_id), not_after_s });
}

export function metadata(model: string, port: number): SessionMetadata {
  return {
    role: 'engine',
    node: 'bench',
    hostname: 'bench',
    site: 'bench',
    provider: 'bench@bench',
    launch_id,
    tier: 'stable',
    engine: 'bench',
    devices: [],
    models: [{ name: model, aliases: [], state: 'serving', precision: 'none', context_tokens: 4096 }],
    addresses: [{ host: '127.0.0.1', port }],
  };
}

export function beat(session_id: string, model: string, sequence: number): Heartbeat {
  const load = { name: model, state: 'serving', running: 0, waiting: 0, max_sequences: 4096 } as const;
  return { session_id, sequence, models: [{ ...load, kv_tokens_total: 0, kv_tokens_used: 0 }] };
}

export async function untilServed(
  origin: string,
  key: string,
  models: readonly string[],
  limit_ms = 15_000,
): Promise<void> {
  const deadline = performance.now() + limit_ms;
  for (;;) {
    const listed = await fetch(`${origin}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
    const { data } = (await listed.json()) as { data: { id: string }[] };
    if (models.every((model) => data.some(({ id }) => id === model))) return;
    if (performance.now() > deadline)
      throw new Error(`the gateway did not find ${models.join(', ')} within ${limit_ms / 1000} s`);
    await delay(50);
  }
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address ? address.port : 0));
    });
  });
}
