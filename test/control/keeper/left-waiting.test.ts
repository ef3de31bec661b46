/** Whose jobs the keeper leaves where they wait. */
import { afterEach, beforeEach, expect, it } from 'vitest';
import { PendingJobMigrator } from '../../../control/keeper/pending-job-migrator.ts';
import type { Observation } from '../../../control/reconcile/observe.ts';
import type { SlurmClient } from '../../../slurm/client.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { deploymentState, launchRecord, ScriptedRunner, temporaryStore } from '../support.ts';

let place: ReturnType<typeof temporaryStore>;
beforeEach(() => {
  place = temporaryStore();
});
afterEach(() => place.dispose());

const waited_ms = 1000_000;

/** How often the cluster is asked for free nodes on behalf of a job that has waited for long. */
async function looks(slurm: Record<string, string>, keeper: object): Promise<number> {
  let asked = 0;
  const client: Pick<SlurmClient, 'nodeGroups' | 'partitions'> = {
    nodeGroups: async () => {
      asked++;
      return [];
    },
    partitions: async () => [],
  };
  const { store } = place;
  const mover = new PendingJobMigrator(
    {
      loaded: {
        site: siteSchema.parse({ name: 'here', kind: 'slurm', keeper }),
        path: '/site.yaml',
        provenance: () => undefined,
        layout: store.layout,
      },
      store,
      runner: new ScriptedRunner(),
      slurm: client as SlurmClient,
      command_environment: {},
      facts: { user: 'someone', environment: {} },
      command: 'test',
      now_ms: () => waited_ms,
      emit: () => {},
      signal: new AbortController().signal,
    },
    () => {},
  );
  const launch = launchRecord(1, { phase: 'submitted', job_id: '7', submitting_since_ms: 0 });
  const spec = deploymentSchema.parse({
    name: 'demo',
    models: [{ name: 'm', source: '/m.gguf' }],
    slurm,
  });
  const observation: Observation = {
    at_ms: waited_ms,
    launches: new Map([
      [
        launch.launch_id,
        {
          launch_id: launch.launch_id,
          superseded: false,
          agents: [],
          units: [],
          serving_units: [],
          job: { job_id: '7', phase: 'pending', state: 'PENDING' },
        },
      ],
    ]),
    problems: [],
  };
  expect(await mover.move(deploymentState([launch], { spec }), observation)).toBe(false);
  return asked;
}

it.each([{}, { move_after_s: 1000 }, { move_after_s: 0.001 }])(
  'another place is looked for with %j in the site config',
  async (keeper) => expect(await looks({}, keeper)).toBe(1),
);

it.each<[object, Record<string, string>]>([
  [{ move_after_s: 0 }, {}],
  [{ move_after_s: 1001 }, {}],
  [{}, { partition: 'p' }],
  [{}, { reservation: 'r' }],
  [{}, { constraint: 'c' }],
  [{}, { nodelist: 'n1' }],
])('none is with %j there and %j in model.yaml', async (keeper, slurm) =>
  expect(await looks(slurm, keeper)).toBe(0),
);

it('is looked for where model.yaml says other things to Slurm', async () =>
  expect(await looks({ account: 'a', qos: 'q', time_limit: '00:10:00' }, {})).toBe(1));
