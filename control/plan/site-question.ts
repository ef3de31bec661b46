/** What a site answers where one plan is made over several: see `SiteQuestion`. */
import { hostname } from 'node:os';
import type { DeploymentSpec } from '../../spec/model-yaml.ts';
import type { SiteMeshState, SiteQuestion } from '../../spec/site-question.ts';
import type { Operations } from '../runner/operations.ts';
import { liveLaunches } from '../state/deployment-state.ts';
import { type PlanNowOptions, planningInput } from './plan-now.ts';
import { buildPlacementQuestion } from './planning.ts';

/** @throws HpcserveError of the model's files, of Slurm where it must be asked, of the network key */
export async function questionNow(
  operations: Operations,
  spec: DeploymentSpec,
  specFile: string,
  options: PlanNowOptions,
): Promise<SiteQuestion> {
  const input = await planningInput(operations, spec, specFile, options);
  const { question, inputs_digest, warnings } = await buildPlacementQuestion({
    ...input,
    kinds_may_lack: true,
  });
  const before = operations.store.load(spec.name);
  return {
    format: 1,
    site: operations.loaded.site.name,
    hostname: hostname(),
    question,
    inputs_digest,
    ...(input.offline ? { offline: true as const } : {}),
    warnings,
    mesh: await meshStateOf(operations),
    provider_id: await providerOfGateway(operations, spec),
    ...(before
      ? {
          deployed: {
            desired: before.desired,
            live_launches: liveLaunches(before).length,
            ...(before.spec.share ? { share: before.spec.share } : {}),
          },
        }
      : {}),
  };
}

/** Where a model follows demand: for others nobody has to know it. */
async function providerOfGateway(
  { loaded: { site, layout }, facts }: Operations,
  { models }: DeploymentSpec,
): Promise<string | undefined> {
  if (models.every(({ scaling }) => scaling === undefined)) return undefined;
  // Loaded when it is needed: libp2p takes its time.
  const { ownProvider } = await import('../state/delegations.ts');
  return ownProvider(layout, site, facts.user).fingerprint;
}

async function meshStateOf({ loaded: { site, layout } }: Operations): Promise<SiteMeshState> {
  const { gossip, bootstrap, relay, port } = site.mesh;
  // Loaded when it is needed: libp2p takes its time.
  const { networkKeyDigest } = await import('../../mesh/index.ts');
  const key_digest = await networkKeyDigest(layout.mesh_folder);
  return {
    folder: layout.mesh_folder,
    ...(key_digest === undefined ? {} : { key_digest }),
    gossip,
    bootstrap,
    relay,
    port,
  };
}
