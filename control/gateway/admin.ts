/** Requests to a gateway: its administration (with the admin token) and its public API (with a key). */
import { z } from 'zod';
import { type AuditEntry, auditAnswerSchema } from '../../spec/audit.ts';
import { deviceReportSchema } from '../../spec/device-report.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type ErrorCode, errorRegistry } from '../../spec/errors/registry.ts';
import { type GatewayProcesses, gatewayProcessesSchema } from '../../spec/gateway-processes.ts';
import { type KeyChanges, type KeySettings, keySettingsSchema } from '../../spec/key-settings.ts';
import { type RefactorOutcome, type RefactorRequest, refactorOutcomeSchema } from '../../spec/refactor.ts';
import { sleepReportSchema } from '../../spec/sleep-report.ts';
import { askForText, type GatewayAddress, type GatewayAnswer, reasonOf } from './client.ts';

const keySchema = z.object({
  id: z.string(),
  name: z.string(),
  created_at_ms: z.number(),
  revoked_at_ms: z.number().optional(),
  blocked_at_ms: z.number().optional(),
  parent_id: z.string().optional(),
  settings: keySettingsSchema.default({}),
  /** What it has used of its limits, over all gateways; absent where it has none. */
  spent: z
    .object({
      day_tokens: z.number(),
      month_tokens: z.number(),
      total_tokens: z.number(),
      day_device_s: z.number().default(0),
      month_device_s: z.number().default(0),
      total_device_s: z.number().default(0),
    })
    .optional(),
});
export type KeyFacts = z.infer<typeof keySchema>;
const createdKeySchema = keySchema.extend({ key: z.string() });

const deviceRowSchema = z.object({
  session_id: z.string(),
  node: z.string(),
  site: z.string(),
  deployment: z.string().optional(),
  job_id: z.string().optional(),
  devices: z.array(z.looseObject({ kind: z.string(), model: z.string(), emulated: z.string().optional() })),
});
const devicesSchema = z.object({
  devices: z.array(
    deviceRowSchema.extend({
      /** What is taken of the link that models of it are streamed over; absent: none are, or of an earlier version. */
      link: z
        .object({
          devices: z.number(),
          reading: z.number(),
          due_bytes_per_s: z.number(),
          capacity_bytes_per_s: z.number().optional(),
        })
        .optional(),
      report: deviceReportSchema.optional(),
      error: z.string().optional(),
    }),
  ),
  /** Absent: of a gateway of an earlier version. */
  engines: z.array(deviceRowSchema.extend({ report: sleepReportSchema })).default([]),
});
type ListedDevices = z.infer<typeof devicesSchema>;
export type SharedDevice = ListedDevices['devices'][number];
/** A wrapped engine that may sleep. */
export type SleepingEngine = ListedDevices['engines'][number];

const drainedSchema = z.object({
  agents: z.array(
    z.object({
      session_id: z.string(),
      site: z.string(),
      deployment: z.string().optional(),
      job_id: z.string().optional(),
    }),
  ),
  unreachable: z.array(z.object({ session_id: z.string(), because: z.string() })),
});
export type NodeDrain = z.infer<typeof drainedSchema>;

const counts = z.record(z.string(), z.number());
const meshSchema = z.object({
  mesh: z.object({
    gossip: z
      .looseObject({
        peer: z.string(),
        addresses: z.array(z.string()),
        members: z.number(),
        connected: z.number(),
        undeliverable: z.number(),
        rejected: counts,
      })
      .optional(),
    folder_rejected: counts,
  }),
});
/** What a gateway takes part in, and what it refused. */
export type MeshReport = z.infer<typeof meshSchema>['mesh'];

/** The administration of a gateway, by its admin token: keys, the mesh, devices. */
export class GatewayAdmin {
  readonly #gateway: GatewayAddress;
  readonly #token: string;

  constructor(gateway: GatewayAddress, token: string) {
    this.#gateway = gateway;
    this.#token = token;
  }

  /** Makes a key; its text is given this once. */
  async createKey(name: string, settings: KeySettings = {}): Promise<z.infer<typeof createdKeySchema>> {
    return this.#ask('POST', '/hpcserve/v1/keys', createdKeySchema, { name, settings });
  }

  async changeKey(id: string, changes: KeyChanges): Promise<KeyFacts> {
    return this.#ask('PATCH', `/hpcserve/v1/keys/${encodeURIComponent(id)}`, keySchema, changes);
  }

  async mesh(): Promise<MeshReport> {
    return (await this.#ask('GET', '/hpcserve/v1/table', meshSchema)).mesh;
  }

  async listKeys(): Promise<KeyFacts[]> {
    const answer = await this.#ask('GET', '/hpcserve/v1/keys', z.object({ keys: z.array(keySchema) }));
    return answer.keys;
  }

  async revokeKey(id: string): Promise<void> {
    await this.#ask('DELETE', `/hpcserve/v1/keys/${encodeURIComponent(id)}`, z.unknown());
  }

  /** Gives a key another secret, which is given this once; the old one stays valid for `grace_s`. */
  async rotateKey(id: string, grace_s: number): Promise<z.infer<typeof createdKeySchema>> {
    const path = `/hpcserve/v1/keys/${encodeURIComponent(id)}/rotate`;
    return this.#ask('POST', path, createdKeySchema, { grace_s });
  }

  async blockKey(id: string, blocked: boolean): Promise<KeyFacts> {
    const path = `/hpcserve/v1/keys/${encodeURIComponent(id)}/${blocked ? 'block' : 'unblock'}`;
    return this.#ask('POST', path, keySchema, {});
  }

  /** What was done with keys at this gateway, the newest first. */
  async audit(limit: number): Promise<AuditEntry[]> {
    return (await this.#ask('GET', `/hpcserve/v1/audit?limit=${limit}`, auditAnswerSchema)).audit;
  }

  /** A pipeline becomes another one; returns when it has. @param session_id of its coordinator */
  refactor(session_id: string, order: RefactorRequest, signal: AbortSignal): Promise<RefactorOutcome> {
    return this.#ask(
      'POST',
      '/hpcserve/v1/refactor',
      refactorOutcomeSchema,
      { session_id, ...order },
      signal,
    );
  }

  /** Devices that native models share, with what their workers say of them. */
  async listDevices(signal?: AbortSignal): Promise<SharedDevice[]> {
    return (await this.devicesAndEngines(signal)).devices;
  }

  /** The same, and wrapped engines that may sleep. */
  devicesAndEngines(signal?: AbortSignal): Promise<ListedDevices> {
    return this.#ask('GET', '/hpcserve/v1/devices', devicesSchema, undefined, signal);
  }

  /** The processes of the gateway itself. */
  processes(signal?: AbortSignal): Promise<GatewayProcesses> {
    return this.#ask('GET', '/hpcserve/v1/processes', gatewayProcessesSchema, undefined, signal);
  }

  /** The agents of a node give their running answers away, and end. */
  drainNode(node: string): Promise<NodeDrain> {
    return this.#ask('POST', `/hpcserve/v1/nodes/${encodeURIComponent(node)}/drain`, drainedSchema);
  }

  /** Sessions of the agents of a node that have not left. */
  async agentsOn(node: string): Promise<string[]> {
    const path = `/hpcserve/v1/nodes/${encodeURIComponent(node)}/agents`;
    return (await this.#ask('GET', path, z.object({ agents: z.array(z.string()) }))).agents;
  }

  #ask<S extends z.ZodType>(
    method: string,
    path: string,
    schema: S,
    body?: unknown,
    signal?: AbortSignal,
  ): Promise<z.output<S>> {
    const ask = { method, bearer: this.#token, body, signal };
    return askGateway(this.#gateway, path, ask, schema);
  }
}

/** `GET /v1/models`, by a client's key. @param gateway with its base URL */
export async function listModels(
  gateway: GatewayAddress,
  key: string,
  signal?: AbortSignal,
): Promise<ModelEntry[]> {
  const { pathname } = new URL(gateway.url);
  const answer = await askGateway(
    gateway,
    `${pathname.replace(/\/+$/, '')}/models`,
    { method: 'GET', bearer: key, signal },
    modelsSchema,
  );
  return answer.data;
}

/** What a gateway says of the mesh, as far as commands use it. */
const meshSessionSchema = z.looseObject({
  session_id: z.string(),
  lifecycle: z.string(),
  reachable: z.boolean(),
  /** How its record came: own, folder, gossip; and when the gossip last heard of it. */
  sources: z.array(z.string()).default([]),
  heard_ms_ago: z.number().optional(),
  node: z.string(),
  site: z.string(),
  provider: z.string(),
  /** Fingerprint of its key; absent where nothing proves it. */
  provider_id: z.string().optional(),
  tier: z.string(),
  engine: z.string().optional(),
  engine_version: z.string().optional(),
  job_end_time_ms: z.number().optional(),
  /** By how much the clock of its node is ahead of the gateway's. */
  clock_ahead_ms: z.number().optional(),
  devices: z.array(
    z.looseObject({
      model: z.string(),
      memory_bytes: z.number(),
      isa: z.array(z.string()).default([]),
      emulated: z.string().optional(),
    }),
  ),
  models: z.array(
    z.looseObject({
      name: z.string(),
      aliases: z.array(z.string()),
      precision: z.string(),
      context_tokens: z.number(),
      state: z.string(),
      running: z.number(),
      waiting: z.number(),
      max_sequences: z.number(),
    }),
  ),
});
const tableSchema = z.object({
  sessions: z.array(meshSessionSchema),
  /** Nodes that serve nothing yet; gateways of earlier versions do not tell of them. */
  idle_nodes: z.array(meshSessionSchema).default([]),
});
export type MeshSession = z.infer<typeof meshSessionSchema>;

/** What `GET /mesh/table` may be asked for; see docs/gateway.md. */
export interface MeshQuery {
  gpu?: string;
  memory_gb_min?: number;
  model?: string;
  provider?: string;
  tier?: string;
}

/** `GET /mesh/table`, by a client's key; nodes that serve nothing yet come as sessions without models. */
export async function meshSessions(
  gateway: GatewayAddress,
  key: string,
  query: MeshQuery,
  signal?: AbortSignal,
): Promise<MeshSession[]> {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) asked.set(name, String(value));
  const ask = { method: 'GET', bearer: key, signal };
  const { sessions, idle_nodes } = await askGateway(gateway, `/mesh/table?${asked}`, ask, tableSchema);
  return [...sessions, ...idle_nodes];
}

const modelsSchema = z.object({ data: z.array(z.looseObject({ id: z.string() })) });
export type ModelEntry = z.infer<typeof modelsSchema>['data'][number];

interface Ask {
  method: string;
  bearer: string;
  body?: unknown;
  signal?: AbortSignal;
}

/** @throws E_GATEWAY_UNREACHABLE, or E_GATEWAY_ANSWER with the gateway's own words. */
async function askGateway<S extends z.ZodType>(
  gateway: GatewayAddress,
  path: string,
  { signal = AbortSignal.timeout(20_000), ...ask }: Ask,
  schema: S,
): Promise<z.output<S>> {
  const url = new URL(path, gateway.url);
  let answer: GatewayAnswer;
  try {
    answer = await askForText(gateway, path, { ...ask, signal });
  } catch (error) {
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: `the gateway does not answer at ${url.origin}`,
      because: reasonOf(error),
      cause: error,
    });
  }
  const { status, text } = answer;
  if (status < 200 || status > 299) throw refusal(url, answer);
  let json: unknown;
  try {
    json = text === '' ? undefined : JSON.parse(text);
  } catch (error) {
    throw unexpected(url, (error as Error).message);
  }
  const parsed = schema.safeParse(json);
  if (!parsed.success) throw unexpected(url, z.prettifyError(parsed.error));
  return parsed.data;
}

/** The gateway's error envelope as our error, which is the gateway's own where it has a code of the registry. */
export function refusal(url: URL, { status, text, code }: GatewayAnswer): HpcserveError {
  let message = text.slice(0, 500);
  try {
    const json = JSON.parse(text) as { error?: { message?: unknown } };
    if (typeof json.error?.message === 'string') message = json.error.message;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  // An envelope has one sentence for all: what is wrong, and what to do.
  const [because = '', advice] = message.split(/\.? Try: /);
  return new HpcserveError(codeOf(status, code), {
    what: `the gateway answered ${status} to ${url.pathname}`,
    because: because || 'it gave no reason',
    try: advice,
    details: { status },
  });
}

/** Of answers that an engine wrote, or a gateway of another version, the status says which exit code is right. */
function codeOf(status: number, code: string | undefined): ErrorCode {
  if (code !== undefined && code in errorRegistry) return code as ErrorCode;
  if (status === 401) return 'E_REQUEST_KEY';
  if (status === 404) return 'E_MODEL_UNKNOWN';
  return status === 400 || status === 422 ? 'E_REQUEST_INVALID' : 'E_GATEWAY_ANSWER';
}

function unexpected(url: URL, because: string): HpcserveError {
  return new HpcserveError('E_GATEWAY_ANSWER', {
    what: `the answer to ${url.pathname} is not what a gateway of this version sends`,
    because,
  });
}
