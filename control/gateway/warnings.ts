/** What whoever starts or looks at a gateway should know of the way to it. */
import { join } from 'node:path';
import { z } from 'zod';
import { readJsonIfThere } from '../../host/whole-file.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SiteConfig } from '../../spec/site.ts';
import {
  type GatewayEndpoint,
  gatewayFiles,
  type StateLayout,
  type TakenPort,
} from '../../spec/state-layout.ts';
import { GatewayAdmin, type KeyFacts } from './admin.ts';
import { isLoopback, readAdminToken } from './process.ts';

const takenPortSchema: z.ZodType<TakenPort> = z.object({
  port: z.int(),
  uid: z.int(),
  found_at_ms: z.number(),
});

export interface GatewayWarning {
  about: 'encryption' | 'port';
  found: string;
  mend: string;
}

/**
 * @param endpoint of a gateway that answers
 * @throws as `GatewayAdmin`
 */
export async function warningsOf(
  site: SiteConfig,
  layout: StateLayout,
  endpoint: GatewayEndpoint,
): Promise<GatewayWarning[]> {
  return [...clearText(site, endpoint), ...(await takenPort(layout, endpoint))];
}

/** The same in a line each, for those who only start it: what cannot be found out is a line too. */
export async function warningLines(
  site: SiteConfig,
  layout: StateLayout,
  endpoint: GatewayEndpoint,
): Promise<string[]> {
  try {
    const warnings = await warningsOf(site, layout, endpoint);
    return warnings.map(({ found, mend }) => `${found}: ${mend}`);
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    return [[error.message, ...error.because].join(': ')];
  }
}

function clearText(site: SiteConfig, { host, url }: GatewayEndpoint): GatewayWarning[] {
  if (isLoopback(host) || url.startsWith('https:')) return [];
  return [
    {
      about: 'encryption',
      found: `the gateway listens on ${host} without TLS, so keys and prompts cross the network in clear`,
      mend: `set \`gateway: { tls: { self_signed: true } }\` in the config of ${site.name}, or gateway.host: 127.0.0.1, and start the gateway again`,
    },
  ];
}

/** As long as a key is valid that could have been shown to whoever had the port. */
async function takenPort(layout: StateLayout, endpoint: GatewayEndpoint): Promise<GatewayWarning[]> {
  const json = readJsonIfThere(join(layout.gateway_folder, gatewayFiles.taken_port));
  const taken = takenPortSchema.safeParse(json);
  if (!taken.success) return [];
  const { port, uid, found_at_ms } = taken.data;
  const keys = await new GatewayAdmin(endpoint, readAdminToken(layout)).listKeys();
  const shown = keys.filter(
    (key: KeyFacts) => key.revoked_at_ms === undefined && key.created_at_ms <= found_at_ms,
  );
  if (shown.length === 0) return [];
  return [
    {
      about: 'port',
      found: `port ${port} of the gateway was found taken by another user (id ${uid}) at ${new Date(found_at_ms).toISOString()}: keys and prompts that were sent there before may have been seen`,
      mend: `make new keys and revoke the old ones with \`hpcserve keys revoke\`: ${shown.map(({ id, name }) => `${id} (${name})`).join(', ')}`,
    },
  ];
}
