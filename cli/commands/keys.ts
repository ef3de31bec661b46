import { type Command, InvalidArgumentError } from 'commander';
import type { KeyFacts } from '../../control/gateway/admin.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { changedSettings, type KeyChanges, type KeySettings } from '../../spec/key-settings.ts';
import { limits } from '../../spec/wire.ts';
import { openAdmin } from '../admin-session.ts';
import type { CliContext } from '../context.ts';
import { formatTable } from '../format/table.ts';
import { credentialFile } from '../site-session.ts';

export function registerKeys(command: Command, context: CliContext): void {
  const keys = command.addHelpText(
    'after',
    `
For who deployed the gateway: its admin token lies in the state folder, readable by you alone.

Examples:
  $ hpcserve keys create alice
  $ hpcserve keys list
  $ hpcserve keys revoke key_0ab…`,
  );
  registerCreate(keys, context);
  registerSet(keys, context);
  registerList(keys, context);
  registerRevoke(keys, context);
}

function registerCreate(keys: Command, context: CliContext): void {
  addSettingOptions(
    keys
      .command('create <name>')
      .description('Make a key; it is shown this once and kept as a hash')
      .option('--save', 'also keep it as your own key for this gateway'),
  )
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve keys create alice
  $ hpcserve keys create me --save
  $ hpcserve keys create course --models small --requests-per-minute 60 --budget 5000000/month
  $ hpcserve keys create nightly --batch
  $ hpcserve keys create careful --providers alice@juelich --ask 'quantization>=8bit; tier=stable'`,
    )
    .action(async (name: string, options: SettingOptions & { save?: true }) => {
      const settings = changedSettings({}, changesOf(options));
      const { admin, url, gateway_folder, site } = await openAdmin(context);
      const made = await admin.createKey(name, settings);
      if (options.save)
        credentialFile(context).save({
          url,
          site,
          gateway_folder,
          key: made.key,
          key_id: made.id,
          created_at_ms: context.now_ms(),
        });
      if (context.json) context.out(JSON.stringify({ ...made, url }));
      else {
        context.out(made.key);
        context.note(`${made.id} for ${made.name}; use it with ${url}. It cannot be shown again.`);
      }
    });
}

function registerSet(keys: Command, context: CliContext): void {
  addSettingOptions(
    keys
      .command('set <id>')
      .description('Change what a key may be used for, and how much; `none` takes a setting away'),
  )
    .addHelpText(
      'after',
      `
Other gateways of the site know within two seconds, where the shared filesystem shows files at once.

Examples:
  $ hpcserve keys set key_0ab… --budget 100000/day --tokens-per-minute 20000
  $ hpcserve keys set key_0ab… --models none`,
    )
    .action(async (id: string, options: SettingOptions) => {
      const changes = changesOf(options);
      if (Object.keys(changes).length === 0)
        throw new HpcserveError('E_USAGE', {
          what: 'what is to be set?',
          try: `hpcserve keys set ${id} --budget 100000/day`,
        });
      const { admin } = await openAdmin(context);
      const key = await admin.changeKey(id, changes);
      if (context.json) context.out(JSON.stringify(key));
      else context.note(`${key.id} of ${key.name}: ${describeSettings(key.settings) || 'no limits'}`);
    });
}

function registerList(keys: Command, context: CliContext): void {
  keys
    .command('list')
    .description('List the keys, without the keys themselves')
    .addHelpText('after', '\nExamples:\n  $ hpcserve keys list\n  $ hpcserve keys list --json')
    .action(async () => {
      const { admin } = await openAdmin(context);
      const all = await admin.listKeys();
      if (context.json) return context.out(JSON.stringify({ keys: all }));
      const date = (time_ms: number): string =>
        new Date(time_ms).toISOString().slice(0, 16).replace('T', ' ');
      for (const line of formatTable(
        ['KEY', 'NAME', 'MADE (UTC)', 'STATE', 'MAY', 'USED'].map((title) => ({ title })),
        all.map((key) => [
          key.id,
          key.name,
          date(key.created_at_ms),
          key.revoked_at_ms === undefined ? 'valid' : `revoked ${date(key.revoked_at_ms)}`,
          describeSettings(key.settings),
          describeSpending(key),
        ]),
      ))
        context.out(line);
    });
}

function registerRevoke(keys: Command, context: CliContext): void {
  keys
    .command('revoke <id>')
    .description('Make a key invalid: at this gateway at once, at others when they look next (2 s)')
    .addHelpText('after', '\nExamples:\n  $ hpcserve keys revoke key_0ab…')
    .action(async (id: string) => {
      const { admin } = await openAdmin(context);
      await admin.revokeKey(id);
      if (context.json) context.out(JSON.stringify({ id, revoked: true }));
      else context.note(`${id} is revoked`);
    });
}

/** Settings as options give them; `none` takes one away. (Commander makes an empty text of null.) */
interface SettingOptions {
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
}

function addSettingOptions(command: Command): Command {
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
      '--budget <tokens/window>',
      'tokens a day, a month, or in all: 100000/day, 5e6/total',
      orNone(parseBudget),
    )
    .option(
      '--cache-group <name>',
      'share computed prompts with keys of this group alone; private: with no other key',
      orNone(parseGroup),
    );
}

function changesOf(options: SettingOptions): KeyChanges {
  const { models, providers, ask, requestsPerMinute, concurrentRequests, bodyMib, tokensPerMinute, budget } =
    options;
  const { cacheGroup, batch } = options;
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
  if (!match)
    throw new InvalidArgumentError('tokens and a window: 100000/day, 5e6/month, 1e9/total, or none.');
  return { tokens: parseAmount(match[1]!), window: match[2] as 'day' | 'month' | 'total' };
}

function describeSettings(settings: KeySettings): string {
  const { models, providers, qos, requests_per_minute, tokens_per_minute, budget, cache_group } = settings;
  const { concurrent_requests, body_bytes_max, batch } = settings;
  return [
    models && `models ${models.join(',')}`,
    providers && `providers ${providers.join(',')}`,
    qos !== undefined && `ask ${qos}`,
    batch && 'batch',
    requests_per_minute !== undefined && `${requests_per_minute} requests/min`,
    concurrent_requests !== undefined && `${concurrent_requests} requests at a time`,
    body_bytes_max !== undefined && `bodies up to ${body_bytes_max / 2 ** 20} MiB`,
    tokens_per_minute !== undefined && `${tokens_per_minute} tokens/min`,
    budget && `${budget.tokens} tokens/${budget.window}`,
    cache_group !== undefined && `cache ${cache_group}`,
  ]
    .filter((word) => typeof word === 'string')
    .join(', ');
}

function describeSpending({ settings: { budget }, spent }: KeyFacts): string {
  return budget && spent ? `${spent[`${budget.window}_tokens`]} tokens` : '';
}
