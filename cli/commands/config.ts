import type { Command } from 'commander';
import { configKeys } from '../config/config-schema.ts';
import { Configuration } from '../config/configuration.ts';
import type { CliContext } from '../context.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth } from '../format/wrap.ts';

export function registerConfig(command: Command, context: CliContext): void {
  const config = command.addHelpText(
    'after',
    `
Strongest first: flags, environment (HPCSERVE_…), ./hpcserve.yaml, config.yaml of your configuration folder
($XDG_CONFIG_HOME/hpcserve), /etc/hpcserve/config.yaml, built-in defaults.

Examples:
  $ hpcserve config show
  $ hpcserve config explain slurm.account`,
  );
  registerShow(config, context);
  registerExplain(config, context);
}

function registerShow(config: Command, context: CliContext): void {
  config
    .command('show')
    .description('All keys with their values and the places they come from')
    .addHelpText('after', '\nExamples:\n  $ hpcserve config show\n  $ hpcserve config show --json')
    .action(() => {
      const { configuration } = context;
      const keys = Object.keys(configKeys).map((name) => {
        const key = Configuration.key(name);
        const source = configuration.winner(key);
        return {
          key,
          value: source?.value ?? null,
          from: source ? `${source.place} (${source.layer})` : null,
        };
      });
      if (context.json) return context.out(JSON.stringify({ keys }));
      const rows = keys.map(({ key, value, from }) => [
        key,
        value === null ? '-' : String(value),
        from ?? 'not set',
      ]);
      for (const line of fittedTable(
        [{ title: 'KEY' }, { title: 'VALUE' }, { title: 'FROM' }],
        rows,
        textWidth(context),
      ))
        context.out(line);
    });
}

function registerExplain(config: Command, context: CliContext): void {
  config
    .command('explain <key>')
    .description('Every place that may set a key, strongest first, and which one counts')
    .addHelpText(
      'after',
      '\nExamples:\n  $ hpcserve config explain site\n  $ hpcserve config explain slurm.partition',
    )
    .action((typed: string) => {
      const { configuration } = context;
      const key = Configuration.key(typed);
      const sources = configuration.explain(key);
      const winner = configuration.winner(key);
      if (context.json)
        return context.out(
          JSON.stringify({
            key,
            value: winner?.value ?? null,
            description: configKeys[key].description,
            sources,
          }),
        );
      context.out(`${key}: ${configKeys[key].description}`);
      let found = false;
      const rows = sources.map((source) => {
        const counts = source.value !== undefined && !found;
        found ||= counts;
        return [
          counts ? '→' : '',
          source.layer,
          source.place,
          source.value === undefined ? '-' : String(source.value),
        ];
      });
      for (const line of fittedTable(
        [{ title: '' }, { title: 'LAYER' }, { title: 'PLACE' }, { title: 'VALUE' }],
        rows,
        textWidth(context),
      ))
        context.out(line);
    });
}
