import type { Command } from 'commander';
import { listModels, type MeshSession, type ModelEntry, meshSessions } from '../../control/gateway/admin.ts';
import { describeProvider } from '../../spec/session-record.ts';
import type { CliContext } from '../context.ts';
import { fittedTable } from '../format/table.ts';
import { textWidth } from '../format/wrap.ts';
import { addMeshOptions, type MeshOptions, meshQuery } from '../mesh-options.ts';
import { openEndpoint } from '../site-session.ts';

export function registerModels(command: Command, context: CliContext): void {
  addMeshOptions(command.option('--url <url>', 'base URL of a gateway, instead of that of the site'))
    .addHelpText(
      'after',
      `
Filters leave the replicas that they name, and the models of those.

Examples:
  $ hpcserve models
  $ hpcserve models --gpu GH200 --tier stable
  $ HPCSERVE_API_KEY=hsk-… hpcserve models --url http://gw:8000/v1 --json`,
    )
    .action(async (options: MeshOptions) => {
      const endpoint = await openEndpoint(context);
      const { url, key } = endpoint;
      const query = meshQuery(options);
      const [listed, sessions] = await Promise.all([
        listModels(endpoint, key, context.signal),
        meshSessions(endpoint, key, query, context.signal),
      ]);
      const models = listed.flatMap((entry) => {
        const replicas = replicasOf(entry.id, sessions);
        return Object.keys(query).length > 0 && replicas.length === 0 ? [] : [{ entry, replicas }];
      });
      if (context.json) return context.out(JSON.stringify({ url, models: models.map(({ entry }) => entry) }));
      if (models.length === 0)
        return context.note(
          listed.length > 0
            ? 'no model is served by what you ask for'
            : 'no model is served now; see hpcserve status',
        );
      const titles = [
        'MODEL',
        'IS',
        'REPLICAS',
        'REQUESTS',
        'PRECISION',
        'CONTEXT',
        'DEVICES',
        'ENGINES',
        'PROVIDERS',
      ];
      for (const line of fittedTable(
        titles.map((title) => ({ title })),
        models.map(({ entry, replicas }) => rowOf(entry, replicas)),
        textWidth(context),
      ))
        context.out(line);
    });
}

interface Replica {
  session: MeshSession;
  model: MeshSession['models'][number];
}

/** Replicas that answer for a name. */
function replicasOf(name: string, sessions: readonly MeshSession[]): Replica[] {
  const all = sessions
    .filter(({ reachable, lifecycle }) => reachable && lifecycle === 'SERVING')
    .flatMap((session) => session.models.map((model) => ({ session, model })))
    .filter(({ model }) => model.state === 'serving');
  const own = all.filter(({ model }) => model.name === name);
  return own.length > 0 ? own : all.filter(({ model }) => model.aliases.includes(name));
}

function rowOf(entry: ModelEntry, replicas: readonly Replica[]): string[] {
  const names = distinct(replicas.map(({ model }) => model.name));
  const sum = (of: (replica: Replica) => number): number =>
    replicas.reduce((total, one) => total + of(one), 0);
  return [
    entry.id,
    names.length === 1 && names[0] === entry.id ? '' : `alias of ${names.join(', ')}`,
    String(replicas.length),
    `${sum(({ model }) => model.running + model.waiting)}/${sum(({ model }) => model.max_sequences)}`,
    distinct(replicas.map(({ model }) => model.precision)).join(', '),
    distinct(replicas.map(({ model }) => String(model.context_tokens))).join(', '),
    distinct(
      replicas.flatMap(({ session }) =>
        session.devices.map(({ model, emulated }) => (emulated ? `${model} (emulated)` : model)),
      ),
    ).join(', '),
    distinct(replicas.map(({ session }) => session.engine ?? '-')).join(', '),
    distinct(replicas.map(({ session }) => describeProvider(session.provider, session.provider_id))).join(
      ', ',
    ),
  ];
}

function distinct(values: readonly string[]): string[] {
  return [...new Set(values)].sort();
}
