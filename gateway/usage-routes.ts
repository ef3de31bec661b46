/** Who used what: of everybody for the operator, of herself for a user, of one's devices for a provider. */
import { dirname } from 'node:path';
import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { type KeyStore, type Ledger, limitsKeyOf } from '../ledger/index.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import { jobGroupBySchema } from '../spec/job-usage.ts';
import { momentOf_ms } from '../spec/moment.ts';
import { printableName } from '../spec/printable-name.ts';
import { jobsFolderBeside } from '../spec/state-layout.ts';
import {
  groupBySchema,
  type UsageQuery,
  usageDimensions,
  usageFilterNames,
  usageFilterSchema,
  usageFormats,
} from '../spec/usage.ts';
import { type Caller, type CallerServices, callerOf, ownKeys, requireOperator } from './caller.ts';
import { parseWith } from './parse-with.ts';

export interface UsageServices extends CallerServices {
  ledger: Ledger;
}

/** `a,b` */
const list = z.string().transform((text) => text.split(',').map((name) => name.trim()));
/** Unix ms, or a day or time in ISO 8601. */
const time = z.string().transform((text, context) => {
  const time_ms = /^\d{1,16}$/.test(text) ? Number(text) : momentOf_ms(text);
  if (time_ms !== undefined) return time_ms;
  context.addIssue({ code: 'custom', message: 'Unix ms, or a day or time in ISO 8601 (2026-01-31)' });
  return z.NEVER;
});
/** `model=a`, or several times. */
const values = z.union([z.string(), z.array(z.string())]).transform((value) => [value].flat());
const parameters = z.strictObject({
  group_by: list.pipe(groupBySchema),
  since: time.optional(),
  until: time.optional(),
  format: z.enum(usageFormats).default('json'),
  /** Of a provider's key: what was computed on its devices, or by its own keys. */
  scope: z.enum(['own', 'provided']).optional(),
  filter: usageFilterSchema,
});

const jobParameters = z.strictObject({
  group_by: list.pipe(jobGroupBySchema).default(['job']),
  since: time.optional(),
  until: time.optional(),
  format: z.enum(usageFormats).default('json'),
});

/** What says who asked; a provider learns how much was computed on its devices, not for whom. */
const personal: readonly string[] = ['user', 'key', 'project'];

const contentTypes = {
  json: 'application/json; charset=utf-8',
  csv: 'text/csv; charset=utf-8',
  md: 'text/markdown; charset=utf-8',
} as const;

export function usageRoutes(app: FastifyInstance, services: UsageServices): void {
  const { ledger, keys } = services;
  app.get('/hpcserve/v1/usage', async (request, reply) => {
    const caller = await callerOf(request.raw, services);
    const asked = parseWith(parameters, withFilter(request.query));
    const { group_by, since: since_ms, until: until_ms, format, filter } = asked;
    const only = visibleTo(caller, asked, keys);
    const named = group_by.includes('key') ? keys.list() : [];
    const key_names = new Map(named.map(({ id, name }) => [id, name]));
    const query = { group_by, since_ms, until_ms, filter, only };
    const answer = await ledger.ask(askerOf(caller), { of: 'requests', ...query, format, key_names });
    reply.header('content-type', contentTypes[format]);
    return reply.send(answer);
  });
  app.get('/hpcserve/v1/usage/jobs', async (request, reply) => {
    const caller = await requireOperator(request.raw, services);
    const asked = parseWith(jobParameters, request.query);
    const { group_by, since: since_ms, until: until_ms, format } = asked;
    const jobs_folder = jobsFolderBeside(dirname(ledger.path));
    const query = { group_by, since_ms, until_ms };
    const answer = await ledger.ask(askerOf(caller), { of: 'jobs', ...query, format, jobs_folder });
    reply.header('content-type', contentTypes[format]);
    return reply.send(answer);
  });
  app.get('/hpcserve/v1/usage/dimensions', async (request) => {
    await callerOf(request.raw, services);
    return { dimensions: usageDimensions };
  });
}

/** Keys that share their limits share their turn, too. */
function askerOf({ key }: Caller): string {
  return key ? limitsKeyOf(key) : 'operator';
}

/** A query with those of its parameters that are filters under `filter`. */
function withFilter(query: unknown): object {
  const filter: Record<string, unknown> = {};
  const others: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(query as Record<string, unknown>)) {
    if ((usageFilterNames as readonly string[]).includes(name)) filter[name] = values.parse(value);
    else others[name] = value;
  }
  return { ...others, filter };
}

/** @throws E_REQUEST_ADMIN */
function visibleTo(
  caller: Caller,
  { group_by, filter, scope }: Pick<z.output<typeof parameters>, 'group_by' | 'filter' | 'scope'>,
  keys: KeyStore,
): UsageQuery['only'] {
  if (caller.role === 'operator') return undefined;
  const { role, key } = caller;
  if (role === 'user' || scope === 'own') return { key_ids: ownKeys(key, keys) };
  const hidden = [...group_by, ...Object.keys(filter)].find((name) => personal.includes(name));
  if (hidden !== undefined)
    throw new HpcserveError('E_REQUEST_ADMIN', {
      what: `whose requests a provider’s devices computed (${hidden}) is for the operator of the gateway`,
      because: `the key ${printableName(key.name)} has the role provider`,
    });
  return { provider_ids: key.settings.provides ?? [] };
}
