/** What a gateway and the holder of its port write into its folder. */
import { join } from 'node:path';
import { z } from 'zod';
import type { ProcessIdentity } from '../../host/process-identity.ts';
import { type GatewayEndpoint, gatewayFiles, type StateLayout } from '../../spec/state-layout.ts';
import { readStateFile } from '../state/state-file.ts';

const endpointSchema: z.ZodType<GatewayEndpoint> = z.object({
  format: z.literal(1),
  url: z.string(),
  hostname: z.string(),
  host: z.string(),
  port: z.int(),
  pid: z.int(),
  session_id: z.string(),
  started_at_ms: z.number(),
  job_id: z.string().optional(),
  process: z.object({ start_ticks: z.number(), boot_id: z.string() }).optional(),
  certificate_file: z.string().optional(),
  ca_file: z.string().optional(),
  socket: z.string().optional(),
});

const identitySchema: z.ZodType<ProcessIdentity> = z.object({
  pid: z.int(),
  start_ticks: z.number(),
  boot_id: z.string(),
});

/** What the next start goes by; the rest is the gateway's, and written back as it is. */
const configSchema = z.looseObject({
  host: z.string(),
  port: z.int(),
  processes: z.int().optional(),
});

/** Where it listens, or listened last. @throws E_STATE_FOLDER */
export function readGatewayEndpoint(layout: StateLayout): GatewayEndpoint | undefined {
  return readStateFile(join(layout.gateway_folder, gatewayFiles.endpoint), endpointSchema);
}

/** The process that holds its port and starts it; undefined where nobody is to run it. @throws E_STATE_FOLDER */
export function readHolder(layout: StateLayout): ProcessIdentity | undefined {
  return readStateFile(join(layout.gateway_folder, gatewayFiles.process), identitySchema);
}

/** As it was started last. @throws E_STATE_FOLDER */
export function readLastConfig(layout: StateLayout): z.infer<typeof configSchema> | undefined {
  return readStateFile(join(layout.gateway_folder, gatewayFiles.config), configSchema);
}
