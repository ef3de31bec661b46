/** What a key may do, as options of commands and as words. */
import { type Command, InvalidArgumentError } from 'commander';
import type { KeyFacts } from '../../control/gateway/admin.ts';
import type { KeyChanges, KeySettings } from '../../spec/key-settings.ts';
import { limits } from '../../spec/wire.ts';
import { parseSeconds } from '../parse-seconds.ts';

/** Settings as options give them; `none` takes one away. (Commander makes an empty text of null.) */
export interface SettingOptions {
  models?: string[] | 'none';
  providers?: string[] | 'none';
  ask?: string;
  batch?: true | 'none';
  requestsPerMinute?: number | 'none';
  concurrentRequests?: number | 'none';
  bodyMib?: number | 'none';
  tokensPerMinute?: number | 'none';
  budget?: NonNullable<KeySettings['budget']> | 'none';
  cacheGroup?: string;
  tiers?: ('stable' | 'scavenger')[] | 'none';
  expires?: number | 'none';
  user?: string;
  project?: string;
  role?: 'user' | 'provider' | 'operator' | 'none';
  provides?: string[] | 'none';
  usage?: 'counts' | 'none';
}

export function addSettingOptions(command: Command, now_ms: () => number): Command {
  return command
    .option('--models <names>', 'names it may ask for, with commas', orNone(parseNames))
    .option(
      '--providers <names>',
      'providers it trusts, with commas: fingerprints, or names that one key bears now',
      orNone(parseNames),
    )
    .option('--ask <terms>', 'quality of service where a request asks for none', orNone(String))
    .option(
      '--batch [none]',
      'its requests can wait: they go to replicas on preemptible nodes, unless they ask for a tier',
      parseBatch,
    )
    .option('--requests-per-minute <n>', 'requests a minute', orNone(parseAmount))
    .option('--concurrent-requests <n>', 'requests at a time, at each gateway', orNone(parseAmount))
    .option('--body-mib <n>', 'largest body of a request, in MiB', orNone(parseMib))
    .option('--tokens-per-minute <n>', 'tokens a minute, of prompts and answers', orNone(parseAmount))
    .option(
      '--budget <amounts/window>',
      'tokens, device-seconds (s) or both, a day, a month, or in all: 100000/day, 3600s/month, 5e6+7200s/total',
      orNone(parseBudget),
    )
    .option(
      '--cache-group <name>',
      'share computed prompts with keys of this group alone; private: with no other key',
      orNone(parseGroup),
    )
    .option('--tiers <names>', 'tiers it may use, with commas: stable, scavenger', orNone(parseTiers))
    .option(
      '--expires <when>',
      'until when it is valid: a time from now (90d), or a day (2027-01-31)',
      orNone((text) => parseExpiry(text, now_ms())),
    )
    .option('--user <name>', 'whom its use counts for; her keys see each other’s usage')
    .option('--project <name>', 'which project its use counts for')
    .option('--role <role>', 'user (default), provider or operator', orNone(parseRole))
    .option(
      '--provides <names>',
      'with the role provider: whose devices it is told of, as --providers',
      orNone(parseNames),
    )
    .option(
      '--usage <what>',
      'counts: keep of its requests what they add to sums, and nothing else',
      parseUsage,
    );
}

export function changesOf(options: SettingOptions): KeyChanges {
  const { models, providers, ask, requestsPerMinute, concurrentRequests, bodyMib, tokensPerMinute, budget } =
    options;
  const { cacheGroup, batch, tiers, expires, user, project, role, provides, usage } = options;
  const named = {
    models,
    providers,
    qos: ask,
    batch,
    requests_per_minute: requestsPerMinute,
    concurrent_requests: concurrentRequests,
    body_bytes_max: typeof bodyMib === 'number' ? bodyMib * 2 ** 20 : bodyMib,
    tokens_per_minute: tokensPerMinute,
    budget,
    cache_group: cacheGroup,
    tiers,
    expires_at_ms: expires,
    user,
    project,
    role,
    provides,
    usage,
  };
  return Object.fromEntries(
    Object.entries(named).flatMap(([name, value]) =>
      value === undefined ? [] : [[name, value === 'none' ? null : value]],
    ),
  );
}

function orNone<T>(parse: (text: string) => T): (text: string) => T | 'none' {
  return (text) => (text === 'none' ? 'none' : parse(text));
}

function parseBatch(text: string): 'none' {
  if (text !== 'none') throw new InvalidArgumentError('nothing, or none.');
  return text;
}

function parseNames(text: string): string[] {
  const names = text.split(',').map((name) => name.trim());
  if (names.includes('')) throw new InvalidArgumentError('names with commas between them, or none.');
  return names;
}

function parseAmount(text: string): number {
  const amount = Number(text);
  if (!Number.isSafeInteger(amount) || amount < 1) throw new InvalidArgumentError('a whole number, or none.');
  return amount;
}

function parseGroup(text: string): string {
  if (!/^[\w.-]{1,64}$/.test(text))
    throw new InvalidArgumentError('1 to 64 letters, digits, `_`, `.` or `-`, or none.');
  return text;
}

function parseMib(text: string): number {
  const amount = parseAmount(text);
  const most = limits.body_bytes / 2 ** 20;
  if (amount > most) throw new InvalidArgumentError(`a whole number up to ${most}, or none.`);
  return amount;
}

function parseBudget(text: string): NonNullable<KeySettings['budget']> {
  const match = /^([^/]+)\/(day|month|total)$/.exec(text);
  const wrong = 'amounts and a window: 100000/day, 3600s/month, 5e6+7200s/total, or none.';
  if (!match) throw new InvalidArgumentError(wrong);
  const budget: NonNullable<KeySettings['budget']> = { window: match[2] as 'day' | 'month' | 'total' };
  for (const amount of match[1]!.split('+')) {
    const seconds = amount.endsWith('s');
    if (seconds ? budget.device_s !== undefined : budget.tokens !== undefined)
      throw new InvalidArgumentError(wrong);
    if (seconds) budget.device_s = parseAmount(amount.slice(0, -1));
    else budget.tokens = parseAmount(amount);
  }
  return budget;
}

function parseTiers(text: string): ('stable' | 'scavenger')[] {
  return parseNames(text).map((name) => {
    if (name === 'stable' || name === 'scavenger') return name;
    throw new InvalidArgumentError('stable, scavenger, both with a comma, or none.');
  });
}

function parseExpiry(text: string, now_ms: number): number {
  const date = /^\d{4}-\d{2}-\d{2}/.test(text) ? Date.parse(text) : Number.NaN;
  return Number.isFinite(date) ? date : now_ms + parseSeconds(text) * 1000;
}

function parseRole(text: string): 'user' | 'provider' | 'operator' {
  if (text === 'user' || text === 'provider' || text === 'operator') return text;
  throw new InvalidArgumentError('user, provider, operator, or none.');
}

function parseUsage(text: string): 'counts' | 'none' {
  if (text === 'counts' || text === 'none') return text;
  throw new InvalidArgumentError('counts, or none.');
}

export function describeSettings(settings: KeySettings): string {
  const { models, providers, qos, requests_per_minute, tokens_per_minute, budget, cache_group } = settings;
  const { concurrent_requests, body_bytes_max, batch, tiers, expires_at_ms, user, project, role, usage } =
    settings;
  return [
    models && `models ${models.join(',')}`,
    providers && `providers ${providers.join(',')}`,
    qos !== undefined && `ask ${qos}`,
    batch && 'batch',
    requests_per_minute !== undefined && `${requests_per_minute} requests/min`,
    concurrent_requests !== undefined && `${concurrent_requests} requests at a time`,
    body_bytes_max !== undefined && `bodies up to ${body_bytes_max / 2 ** 20} MiB`,
    tokens_per_minute !== undefined && `${tokens_per_minute} tokens/min`,
    budget && `${amountsOf(budget.tokens, budget.device_s)}/${budget.window}`,
    cache_group !== undefined && `cache ${cache_group}`,
    tiers && `tiers ${tiers.join(',')}`,
    expires_at_ms !== undefined && `until ${new Date(expires_at_ms).toISOString().slice(0, 10)}`,
    user !== undefined && `user ${user}`,
    project !== undefined && `project ${project}`,
    role !== undefined && `role ${role}`,
    usage && 'counts only',
  ]
    .filter((word) => typeof word === 'string')
    .join(', ');
}

export function describeSpending({ settings: { budget }, spent }: KeyFacts): string {
  if (!budget || !spent) return '';
  const { window } = budget;
  return amountsOf(
    budget.tokens === undefined ? undefined : spent[`${window}_tokens`],
    budget.device_s === undefined ? undefined : Math.round(spent[`${window}_device_s`]),
  );
}

function amountsOf(tokens: number | undefined, device_s: number | undefined): string {
  return [tokens !== undefined && `${tokens} tokens`, device_s !== undefined && `${device_s} device-seconds`]
    .filter((words) => words !== false)
    .join(' + ');
}
