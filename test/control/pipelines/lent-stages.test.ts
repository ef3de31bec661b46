/** Pipelines over several jobs with one number of stages: what becomes of them while a job is away, and after. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { pipelineQuestion, planChange } from '../../../control/pipelines/change-pipeline.ts';
import { GranularityKeeper } from '../../../control/pipelines/granularity-keeper.ts';
import { type HeldPipeline, heldPipelines } from '../../../control/pipelines/held-pipelines.ts';
import type { LaunchObservation, Observation } from '../../../control/reconcile/observe.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import { PipelinePlace, pipelineModels } from './support.ts';

/** Slower devices that Slurm may take back. */
const idle = {
  name: 'idle',
  count: 2,
  cpus: 8,
  memory_gb: 16,
  tier: 'scavenger',
  devices: [{ kind: 'gpu', model: 'V100-16GB', count: 2, memory_gb: 1, cores: 1, emulated: 'cpu' }],
};

let models: Awaited<ReturnType<typeof pipelineModels>>;
let world: PipelinePlace;

beforeAll(async () => {
  models = await pipelineModels();
});
afterAll(() => models.dispose());
beforeEach(() => {
  world = new PipelinePlace(models.folder, [idle]);
});
afterEach(() => world.dispose());

const lent = { parallel: { pipeline: 2, jobs: 2, lenders: 'scavenger' }, tier: 'stable' };

/** All of it is on the first device, as after a job has gone. */
function merged(state: DeploymentState, phase = 'serving'): Observation {
  const observation = world.inJobs(state, ['n0', 'n1']);
  const [first, second] = [...observation.launches.values()] as [LaunchObservation, LaunchObservation];
  const [status] = first.units;
  const end = status!.stages!.at(-1)!.end;
  Object.assign(status!, { stages: [{ ...status!.stages![0]!, end }] });
  Object.assign(second.agents[0]!, { phase });
  return observation;
}

describe('a pipeline of two jobs with one number of stages', () => {
  const looks = async (
    keeper: GranularityKeeper,
    state: DeploymentState,
    observation: Observation,
    rounds = 1,
  ): Promise<string[]> => {
    for (let round = 0; round < rounds; round++, world.now_ms += 2000) {
      await keeper.look(state, observation);
      await keeper.settled();
    }
    return (world.events as { message: string }[]).map(({ message }) => message);
  };
  const asks = expect.stringMatching(
    /^cut-0 of demo keeps its 1 stages \(2 are better: model.yaml asks for 2, and all of its jobs are there again\): .*E_GATEWAY_UNREACHABLE\]$/,
  );

  it('gets its stages again once a job that was away is there, and is asked again where that was refused', async () => {
    const state = await world.deployed(2, 2);
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    expect(await looks(keeper, state, world.inJobs(state, ['n0', 'n1']), 5)).toEqual([]);
    const away = merged(state);
    const [, second] = [...away.launches.values()];
    Object.assign(second!, { agents: [] });
    expect(await looks(keeper, state, away, 50)).toEqual([]);
    // It runs, and its agent has not begun.
    expect(await looks(keeper, state, merged(state, 'loading'), 50)).toEqual([]);
    // Five seconds after the first refusal, ten after the second.
    expect(await looks(keeper, state, merged(state), 3)).toEqual([asks]);
    expect(await looks(keeper, state, merged(state), 5)).toEqual([asks, asks]);
    expect(await looks(keeper, state, merged(state), 1)).toEqual([asks, asks, asks]);
  });

  it('keeps those that somebody gave it by hand', async () => {
    const state = await world.deployed(2, 2);
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    expect(await looks(keeper, state, merged(state), 50)).toEqual([]);
    // Nor does a job that goes and comes back later change that.
    expect(await looks(keeper, state, merged(state, 'loading'), 5)).toEqual([]);
    expect(await looks(keeper, state, merged(state), 5)).toEqual([]);
  });

  it('is not taken for one that was merged by hand while the job whose stage has left is still there', async () => {
    const state = await world.deployed(2, 2);
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    expect(await looks(keeper, state, merged(state), 3)).toEqual([]);
    expect(await looks(keeper, state, merged(state, 'draining'), 5)).toEqual([]);
    expect(await looks(keeper, state, merged(state), 1)).toEqual([asks]);
  });
});

describe('a pipeline whose later stages are on other devices', () => {
  const held = async (change?: (state: DeploymentState) => Observation): Promise<HeldPipeline> => {
    const state = await world.deployed(undefined, undefined, lent);
    return heldPipelines(state, (change ?? ((of) => world.inJobs(of, ['n0', 'n1'])))(state))[0]!;
  };
  const question = async (state: DeploymentState) => pipelineQuestion(world.operations, state);

  it('is known as one, and comes back as it was planned, the later stages on those devices', async () => {
    const state = await world.deployed(undefined, undefined, lent);
    const kinds = state.launches.map(({ planned }) => planned.devices_per_node.model);
    expect(kinds).toEqual(['A100', 'V100-16GB']);
    const [unit] = state.launches[0]!.planned.units;
    const [pipeline] = heldPipelines(state, merged(state));
    expect(pipeline!.stages).toHaveLength(1);
    expect(pipeline!.lent).toMatchObject({ node_kind: 'idle', model: 'V100-16GB' });
    const { plan, stages } = planChange(pipeline!, 2, await question(state), 0);
    expect(plan.cuts).toEqual(unit!.stages);
    expect(stages.map(({ node, device }) => `${node} ${device}`)).toEqual(['n0 gpu 0', 'n1 gpu 0']);
  });

  it('has no other number of stages: none of them is cut for the devices of the first job alone', async () => {
    const state = await world.deployed(undefined, undefined, lent);
    const asked = await question(state);
    const pipeline = await held();
    expect(() => planChange(pipeline, 1, asked, 0)).toThrow(
      expect.objectContaining({
        code: 'E_STAGES_IMPOSSIBLE',
        because: [expect.stringMatching(/V100-16GB.*planned as 2 stages/)],
      }),
    );
  });

  it('is like any other where both jobs have the same devices', async () => {
    world.dispose();
    world = new PipelinePlace(models.folder, [
      { ...idle, devices: [{ ...idle.devices[0], model: 'A100', memory_gb: 2 }] },
    ]);
    expect((await held()).lent).toBeUndefined();
  });
});
