import { type Command, InvalidArgumentError } from 'commander';
import type { KeyFacts } from '../../control/gateway/admin.ts';
import type { AuditEntry } from '../../spec/audit.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { changedSettings } from '../../spec/key-settings.ts';
import { openAdmin } from '../admin-session.ts';
import type { CliContext } from '../context.ts';
import {
  addSettingOptions,
  changesOf,
  describeSettings,
  describeSpending,
  type SettingOptions,
} from '../format/key-settings.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth } from '../format/wrap.ts';
import { parseSeconds } from '../parse-seconds.ts';
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
  registerRotate(keys, context);
  registerBlock(keys, context);
  registerRevoke(keys, context);
  registerAudit(keys, context);
}

function registerCreate(keys: Command, context: CliContext): void {
  addSettingOptions(
    keys
      .command('create <name>')
      .description('Make a key; it is shown this once and kept as a hash')
      .option('--save', 'also keep it as your own key for this gateway'),
    context.now_ms,
  )
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve keys create alice
  $ hpcserve keys create me --save
  $ hpcserve keys create thesis --user alice --project lm-eval --expires 90d
  $ hpcserve keys create course --models small --requests-per-minute 60 --budget 5000000/month
  $ hpcserve keys create nightly --batch
  $ hpcserve keys create careful --providers alice@juelich --ask 'quantization>=8bit; tier=stable'`,
    )
    .action(async (name: string, options: SettingOptions & { save?: true }) => {
      const settings = changedSettings({}, changesOf(options));
      const { admin, url, gateway_folder, site } = await openAdmin(context);
      const made = await admin.createKey(name, settings);
      // Before it is kept, which a quota may prevent: nobody else has it, and the gateway shows it to nobody again.
      if (context.json) context.out(JSON.stringify({ ...made, url }));
      else {
        context.out(made.key);
        context.note(`${made.id} for ${made.name}; use it with ${url}. It cannot be shown again.`);
      }
      if (options.save)
        credentialFile(context).save({
          url,
          site,
          gateway_folder,
          key: made.key,
          key_id: made.id,
          created_at_ms: context.now_ms(),
        });
    });
}

function registerSet(keys: Command, context: CliContext): void {
  addSettingOptions(
    keys
      .command('set <id>')
      .description('Change what a key may be used for, and how much; `none` takes a setting away'),
    context.now_ms,
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
      for (const line of fittedTable(
        ['KEY', 'NAME', 'MADE (UTC)', 'STATE', 'MAY', 'USED'].map((title) => ({ title })),
        all.map((key) => [
          key.id,
          key.name,
          date(key.created_at_ms),
          stateOf(key, context.now_ms(), date),
          describeSettings(key.settings),
          describeSpending(key),
        ]),
        textWidth(context),
      ))
        context.out(line);
    });
}

function registerRevoke(keys: Command, context: CliContext): void {
  keys
    .command('revoke <id>')
    .alias('rm')
    .description(
      'Make a key invalid for good: at this gateway at once, at others when they look next (2 s); its usage stays',
    )
    .addHelpText('after', '\nExamples:\n  $ hpcserve keys revoke key_0ab…\n  $ hpcserve keys rm key_0ab…')
    .action(async (id: string) => {
      const { admin } = await openAdmin(context);
      await admin.revokeKey(id);
      if (context.json) context.out(JSON.stringify({ id, revoked: true }));
      else context.note(`${id} is revoked`);
    });
}

function stateOf(key: KeyFacts, now_ms: number, date: (time_ms: number) => string): string {
  const { revoked_at_ms, blocked_at_ms, settings } = key;
  if (revoked_at_ms !== undefined) return `revoked ${date(revoked_at_ms)}`;
  if (blocked_at_ms !== undefined) return `blocked ${date(blocked_at_ms)}`;
  const { expires_at_ms } = settings;
  return expires_at_ms !== undefined && expires_at_ms <= now_ms ? `expired ${date(expires_at_ms)}` : 'valid';
}

function registerRotate(keys: Command, context: CliContext): void {
  keys
    .command('rotate <id>')
    .description('Give a key another secret, shown this once; what it may do and has used stays')
    .option('--grace <time>', 'how long the old secret stays valid beside it', parseSeconds, 0)
    .addHelpText(
      'after',
      '\nExamples:\n  $ hpcserve keys rotate key_0ab…\n  $ hpcserve keys rotate key_0ab… --grace 24h',
    )
    .action(async (id: string, { grace }: { grace: number }) => {
      const { admin, url } = await openAdmin(context);
      const made = await admin.rotateKey(id, grace);
      if (context.json) {
        context.out(JSON.stringify({ ...made, url }));
        return;
      }
      context.out(made.key);
      context.note(`the new secret of ${made.id} (${made.name}). It cannot be shown again.`);
    });
}

function registerBlock(keys: Command, context: CliContext): void {
  for (const [name, blocked, says] of [
    ['block', true, 'Make a key invalid until it is unblocked, and those that were derived from it'],
    ['unblock', false, 'Make a key valid again that was blocked'],
  ] as const)
    keys
      .command(`${name} <id>`)
      .description(says)
      .addHelpText('after', `\nExamples:\n  $ hpcserve keys ${name} key_0ab…`)
      .action(async (id: string) => {
        const { admin } = await openAdmin(context);
        const key = await admin.blockKey(id, blocked);
        if (context.json) context.out(JSON.stringify(key));
        else context.note(`${id} is ${blocked ? 'blocked' : 'valid again'}`);
      });
}

function registerAudit(keys: Command, context: CliContext): void {
  keys
    .command('audit')
    .description('Show what was done with keys at this gateway, by whom and when, the newest first')
    .option('--limit <n>', 'entries', parseLimit, 50)
    .addHelpText('after', '\nExamples:\n  $ hpcserve keys audit\n  $ hpcserve keys audit --limit 1000 --json')
    .action(async ({ limit }: { limit: number }) => {
      const { admin } = await openAdmin(context);
      const audit = await admin.audit(limit);
      if (context.json) {
        context.out(JSON.stringify({ audit }));
        return;
      }
      const titles = ['TIME (UTC)', 'WHO', 'WHAT', 'KEY', 'HOW'].map((title) => ({ title }));
      for (const line of fittedTable(titles, audit.map(auditCells), textWidth(context))) context.out(line);
    });
}

function auditCells({ time_ms, actor, action, subject, details }: AuditEntry): string[] {
  const time = new Date(time_ms).toISOString().slice(0, 19).replace('T', ' ');
  return [time, actor, action, subject, JSON.stringify(details)];
}

function parseLimit(text: string): number {
  const limit = Number(text);
  if (Number.isSafeInteger(limit) && limit >= 1 && limit <= 10_000) return limit;
  throw new InvalidArgumentError('a whole number from 1 to 10000.');
}
