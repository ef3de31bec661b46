/** Whether the gateway of one site answers for the replicas of all: asked of the gateway itself. */
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Share } from '../../spec/site-share.ts';
import type { CliContext } from '../context.ts';
import type { SiteCommands } from './site-commands.ts';

/** Records travel in seconds; a gateway that was started just now looks for the others of its mesh at first. */
const discovery_ms = 60_000;
const interval_ms = 1_000;

const nodesSchema = z.object({
  nodes: z
    .array(
      z.object({
        site: z.string(),
        models: z.array(z.object({ name: z.string(), state: z.string(), reachable: z.boolean() })),
      }),
    )
    .default([]),
});

/**
 * Waits until the gateway of a site reaches all replicas of all sites.
 * @throws E_SITES_APART with those that it does not reach; they serve at their own sites all the same
 */
export async function waitForOneMesh(
  context: CliContext,
  gateway: SiteCommands,
  name: string,
  { sites }: Share,
): Promise<void> {
  const wanted = sites.flatMap(({ site, models }) =>
    models.map((model) => ({ site, model: model.name, replicas: model.replicas })),
  );
  if (sites.filter(({ models }) => models.length > 0).length < 2) return;
  const models = [...new Set(wanted.map(({ model }) => model))];
  const until_ms = context.now_ms() + discovery_ms;
  for (let told = false; ; told = true) {
    const there: string[] = [];
    for (const model of models) {
      const { nodes } = nodesSchema.parse(JSON.parse(await gateway.run(['nodes', '--model', model])));
      for (const { site, models: own } of nodes)
        for (const each of own)
          if (each.name === model && each.state === 'serving' && each.reachable)
            there.push(`${site} ${model}`);
    }
    const missing = wanted.flatMap(({ site, model, replicas }) => {
      const found = there.filter((each) => each === `${site} ${model}`).length;
      return found < replicas ? [`${found} of ${replicas} replica(s) of ${model} on ${site}`] : [];
    });
    if (missing.length === 0) return;
    if (context.now_ms() >= until_ms)
      throw new HpcserveError('E_SITES_APART', {
        what: `${name} serves on all its sites, and the gateway of ${gateway.name} does not reach all of them`,
        because: missing.map((words) => `it reaches ${words}`),
        try: [
          'see whether the address in mesh.bootstrap is the gateway of the other site, and can be reached from there (docs/several-sites.md)',
          'then run the same command again: it looks once more, and submits nothing that runs',
        ],
      });
    if (!told) context.note(`waiting until the gateway of ${gateway.name} reaches all of them`);
    await sleep(interval_ms, undefined, { signal: context.signal });
  }
}
