import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { HpcserveError } from '../spec/errors/error.ts';
import { processes_max, routingPolicyNames } from '../spec/gateway-settings.ts';
import { loginSchema } from '../spec/login-settings.ts';
import { meshSettingsSchema } from '../spec/mesh-settings.ts';
import { otelSchema } from '../spec/otel-settings.ts';
import type { GatewayConfig } from '../spec/state-layout.ts';

const gatewayConfigSchema: z.ZodType<GatewayConfig> = z.object({
  format: z.literal(1),
  site: z.string().min(1),
  provider: z.string().min(1),
  host: z.string().min(1),
  port: z.int().min(0).max(65535),
  processes: z.int().min(1).max(processes_max).optional(),
  mesh_folder: z.string().min(1),
  gateway_folder: z.string().min(1),
  tls: z
    .union([
      z.object({ authority_folder: z.string().min(1), names: z.array(z.string().min(1)) }),
      z.object({ certificate_file: z.string(), key_file: z.string(), ca_file: z.string().optional() }),
    ])
    .optional(),
  socket: z.string().min(1).optional(),
  deployments_folder: z.string().min(1),
  keeper_folder: z.string().min(1).optional(),
  keys_folder: z.string().min(1).optional(),
  logins_folder: z.string().min(1).optional(),
  login: loginSchema.optional(),
  provider_key_file: z.string().min(1).optional(),
  routing: z.enum(routingPolicyNames).optional(),
  wait_max_s: z.number().positive().optional(),
  load_wait_s: z.number().min(0).optional(),
  body_bytes_max: z.int().min(1).optional(),
  bodies_bytes_max: z.int().min(1).optional(),
  bodies_key_bytes_max: z.int().min(1).optional(),
  body_wait_s: z.number().min(0).optional(),
  origins: z.array(z.string().min(1)).optional(),
  responses_kept_s: z.number().min(0).optional(),
  files_kept_s: z.number().min(0).optional(),
  kept_key_bytes_max: z.number().positive().optional(),
  trace: z.boolean().optional(),
  otel: otelSchema.optional(),
  mesh: meshSettingsSchema.optional(),
});

/** Reads the file that control wrote; throws E_GATEWAY_CONFIG. */
export function readGatewayConfig(file: string): GatewayConfig {
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(file, 'utf8'));
  } catch (error) {
    throw new HpcserveError('E_GATEWAY_CONFIG', {
      what: `the gateway config ${file} cannot be read`,
      because: (error as Error).message,
    });
  }
  const result = gatewayConfigSchema.safeParse(json);
  if (!result.success) {
    throw new HpcserveError('E_GATEWAY_CONFIG', {
      what: `the gateway config ${file} is wrong`,
      because: result.error.issues.map(({ path, message }) => `${path.join('.') || 'the file'}: ${message}`),
    });
  }
  return result.data;
}
