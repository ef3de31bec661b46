import type { Command } from 'commander';
import { listModels } from '../../control/gateway-admin.ts';
import type { CliContext } from '../context.ts';
import { formatTable } from '../format/table.ts';
import { openDoor } from '../site-session.ts';

export function registerModels(program: Command, context: CliContext): void {
  program
    .command('models')
    .description('List the models that the gateway answers for')
    .option('--url <url>', 'base URL of a gateway, instead of that of the site')
    .addHelpText(
      'after',
      '\nExamples:\n  $ hpcserve models\n  $ HPCSERVE_API_KEY=hsk-… hpcserve models --url http://gw:8000/v1 --json',
    )
    .action(async () => {
      const { url, key } = await openDoor(context);
      const models = await listModels(url, key, context.signal);
      if (context.json) return context.out(JSON.stringify({ url, models }));
      if (models.length === 0) return context.note('no model is served now; see hpcserve status');
      const facts = [...new Set(models.flatMap((model) => Object.keys(model)))].filter(
        (name) => !['id', 'object', 'created', 'owned_by'].includes(name),
      );
      for (const line of formatTable(
        [{ title: 'MODEL' }, ...facts.map((name) => ({ title: name.toUpperCase().replaceAll('_', ' ') }))],
        models.map((model) => [
          model.id,
          ...facts.map((name) => words((model as Record<string, unknown>)[name])),
        ]),
      ))
        context.out(line);
    });
}

function words(value: unknown): string {
  if (value === undefined || value === null) return '-';
  if (Array.isArray(value)) return value.map(words).join(', ') || '-';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}
