import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { pipelineQuestion } from '../../../control/pipelines/change-pipeline.ts';
import { heldPipelines } from '../../../control/pipelines/held-pipelines.ts';
import { StageLoads } from '../../../control/pipelines/stage-loads.ts';
import { PipelinePlace, pipelineModels } from './support.ts';

let models: Awaited<ReturnType<typeof pipelineModels>>;
let world: PipelinePlace;

beforeAll(async () => {
  models = await pipelineModels();
});
afterAll(() => models.dispose());
beforeEach(() => {
  world = new PipelinePlace(models.folder);
});
afterEach(() => world.dispose());

it('has stages of two pipelines that start at once load on two nodes, and later ones where it is best', async () => {
  const state = await world.deployed({ stages_min: 2, stages_max: 4 }, 2);
  const [pipeline] = heldPipelines(state, world.inJobs(state, ['n0', 'n1']));
  const question = await pipelineQuestion(world.operations, state);
  const loads = new StageLoads();
  // Each node has a device that is free, and layers of the stage that starts.
  const startsOn = (now_ms: number): (string | undefined)[] =>
    loads
      .plan(pipeline!, 3, question, now_ms)
      .stages.filter(({ device }) => device === 'gpu 1')
      .map(({ node }) => node);
  const [[first], [second]] = [startsOn(0), startsOn(0)];
  expect([first, second].sort()).toEqual(['n0', 'n1']);
  expect(startsOn(60_000)).toEqual([first]);
});
