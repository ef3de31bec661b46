/**
 * How a process takes part in the gossip of a mesh: in the site config, and what control hands to agents and gateways.
 */
import { z } from 'zod';
import { providerIdPattern } from './session-record.ts';

/** Host and port of a member: `gateway.example.org:4001`, `10.0.0.1:4001`, `[fd00::1]:4001`. */
const memberAddress = z
  .string()
  .regex(/^([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$/, 'HOST:PORT, with IPv6 addresses in brackets');

/** Fingerprint of a provider's key. */
export const providerId = z
  .string()
  .regex(providerIdPattern, 'the fingerprint of a provider: 32 hex digits, as `hpcserve provider` shows it');

export const meshSettingsSchema = z.strictObject({
  bootstrap: z.array(memberAddress).max(16).default([]),
  relay: z.array(memberAddress).max(16).default([]),
  /** Address that a gateway listens on for members; agents listen where they serve. */
  host: z.string().optional(),
  /** Port of a gateway; 0: any free one. */
  port: z.int().min(0).max(65_535).optional(),
});
export type MeshSettings = z.infer<typeof meshSettingsSchema>;

/** The part `mesh` of a site config. */
export const siteMeshSchema = z.strictObject({
  gossip: z
    .boolean()
    .default(true)
    .describe(
      'Agents and gateways tell each other of sessions and watch over one another by direct connections. Off: the shared folder alone does the work.',
    ),
  bootstrap: meshSettingsSchema.shape.bootstrap.describe(
    'Gateways of other sites of the same mesh, each HOST:PORT; those sites need the same network.key in their mesh folder.',
  ),
  relay: meshSettingsSchema.shape.relay.describe(
    'Gateways of other sites that carry connections to this one, each HOST:PORT, where its nodes cannot be reached from outside (NAT).',
  ),
  host: z
    .string()
    .regex(/^[0-9A-Fa-f:.]+$/, 'an IP address')
    .optional()
    .describe(
      'Address on which gateways listen for members. Default: all on a Slurm site, 127.0.0.1 on a local one.',
    ),
  port: z
    .int()
    .min(0)
    .max(65_535)
    .default(0)
    .describe(
      'Port on which gateways listen for members; 0: any free one. Give one where other sites name this gateway.',
    ),
  users: z
    .array(providerId)
    .max(256)
    .optional()
    .describe(
      'Fingerprints of the providers whose gateways and nodes may use what you start here, beside your own. Default: every member of the mesh. Others are refused with 403.',
    ),
  operators: z
    .array(providerId)
    .max(256)
    .optional()
    .describe(
      'Fingerprints of the providers whose gateways may also operate it: move requests between devices, drain, ask for its state. Default: your own gateways alone.',
    ),
});
