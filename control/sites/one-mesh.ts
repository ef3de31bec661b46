/** Whether the gateway of one site answers for the replicas of all: asked of the gateway itself. */
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Share } from '../../spec/site-share.ts';
import type { SiteCommands } from './site-commands.ts';
import { understood } from './site-output.ts';

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
type SeenNode = z.infer<typeof nodesSchema>['nodes'][number];

export interface WaitForMesh {
  now_ms: () => number;
  signal: AbortSignal;
  note: (line: string) => void;
  /** What the person waits for at most; 0: as long as discovery takes. */
  timeout_s: number;
}

/**
 * Waits until the gateway of a site reaches all replicas of all sites.
 * @throws E_SITES_APART with those that it does not reach; they serve at their own sites all the same
 */
export async function waitForOneMesh(
  gateway: SiteCommands,
  name: string,
  share: Share,
  { now_ms, signal, note, timeout_s }: WaitForMesh,
): Promise<void> {
  const { sites } = share;
  if (sites.filter(({ models }) => models.length > 0).length < 2) return;
  const models = [...new Set(sites.flatMap((site) => site.models.map((model) => model.name)))];
  const patience_ms = timeout_s > 0 ? Math.min(1000 * timeout_s, discovery_ms) : discovery_ms;
  const until_ms = now_ms() + patience_ms;
  for (let told = false; ; told = true) {
    const reached: SeenNode[] = [];
    for (const model of models) {
      const text = await gateway.run(['nodes', '--model', model]);
      for (const { site, models: own } of understood(gateway.name, nodesSchema, text).nodes)
        reached.push({ site, models: own.filter((each) => each.name === model) });
    }
    const missing = notReached(share, reached);
    if (missing.length === 0) return;
    if (now_ms() >= until_ms)
      throw new HpcserveError('E_SITES_APART', {
        what: `${name} serves on all its sites, and the gateway of ${gateway.name} does not reach all of them`,
        because: missing.map((replicas) => `it reaches ${replicas}`),
        try: [
          'see whether the address in mesh.bootstrap is the gateway of the other site, and can be reached from there (docs/several-sites.md)',
          'then run the same command again: it looks once more, and submits nothing that runs',
        ],
      });
    if (!told) note(`waiting until the gateway of ${gateway.name} reaches all of them`);
    await sleep(interval_ms, undefined, { signal });
  }
}

/** `1 of 2 replica(s) of toy on far`, of every model and site. Pure. */
export function notReached({ sites }: Share, reached: readonly SeenNode[]): string[] {
  return sites.flatMap(({ site, models }) =>
    models.flatMap(({ name, replicas }) => {
      const found = reached
        .filter((node) => node.site === site)
        .flatMap((node) => node.models)
        .filter((model) => model.name === name && model.state === 'serving' && model.reachable).length;
      return found < replicas ? [`${found} of ${replicas} replica(s) of ${name} on ${site}`] : [];
    }),
  );
}
