/** Pipelines whose stages follow the load: what is planned for them, decided, told, and tried again. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { granularityLines } from '../../../cli/format/granularity-text.ts';
import { describeEvent } from '../../../cli/progress/describe-event.ts';
import { planMove } from '../../../control/move.ts';
import { pipelineQuestion, planChange } from '../../../control/pipelines/change-pipeline.ts';
import { readGranularityFile } from '../../../control/pipelines/granularity-file.ts';
import { GranularityKeeper } from '../../../control/pipelines/granularity-keeper.ts';
import { heldPipelines } from '../../../control/pipelines/held-pipelines.ts';
import { livePipeline } from '../../../control/pipelines/live-pipeline.ts';
import { planNow } from '../../../control/plan/plan-now.ts';
import type { LaunchObservation, Observation } from '../../../control/reconcile/observe.ts';
import type { DeploymentState } from '../../../control/state/deployment-state.ts';
import { synthPresets } from '../../../native/synth/presets.ts';
import { passRate_per_s } from '../../../solver/granularity/granularity.ts';
import type { AgentState } from '../../../spec/agent-state.ts';
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

describe('a pipeline that has loaded as the finest stages', () => {
  const looks = async (
    keeper: GranularityKeeper,
    state: DeploymentState,
    rounds: number,
  ): Promise<string[]> => {
    for (let round = 0; round < rounds; round++, world.now_ms += 2000) {
      await keeper.look(state, world.seen(state));
      await keeper.settled();
    }
    return (world.events as { message: string }[]).map(({ message }) => message);
  };
  const merges = expect.stringMatching(/^cut-0 of demo keeps its 4 stages \(2 are better: /);

  it('has memory for fewer on each device, and cuts where these are cut', async () => {
    const [fine, coarse] = [await world.started(world.operations), await world.deployed()];
    const [one, other] = [fine, coarse].map(({ launches }) => launches[0]!.planned.units[0]!);
    expect(one!.stages).toHaveLength(4);
    expect(other!.stages).toHaveLength(2);
    expect({ ...one, stages: [] }).toEqual({ ...other, stages: [] });
    const begins = one!.stages!.map(({ begin }) => begin);
    expect(begins).toEqual(expect.arrayContaining(other!.stages!.map(({ begin }) => begin)));
    expect(fine.models[0]!.reasons.join()).toMatch(
      /begins with 4 stages, which load side by side, where no other model is on its devices, and has 2 when it is calm/,
    );
  });

  it('is none of several sites, whose requests come to the gateway of another, and is left as it is there', async () => {
    const whole = { generation: 1, digest: 'd', url_site: 'other' };
    const state = await world.started(world.operations);
    const sites = { ...state.spec, sites: ['local', 'other'] };
    const { plan } = await planNow(world.operations, sites, '/model.yaml');
    expect(plan.launches[0]!.units[0]!.stages).toHaveLength(2);
    const shared = { ...state, spec: { ...state.spec, share: whole as unknown as typeof state.spec.share } };
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    expect(await looks(keeper, shared, 60)).toEqual([]);
  });

  it('is merged by whole stages', async () => {
    const state = await world.started(world.operations);
    const [pipeline] = heldPipelines(state, world.seen(state));
    const { plan } = planChange(pipeline!, 2, await pipelineQuestion(world.operations, state), 0);
    const begins = pipeline!.stages.map(({ begin }) => begin);
    expect(begins).toEqual(expect.arrayContaining(plan.cuts.map(({ begin }) => begin)));
  });

  it('is to be merged after a minute in which nobody asked it', async () => {
    const state = await world.started(world.operations);
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    expect(await looks(keeper, state, 30)).toEqual([]);
    expect(await looks(keeper, state, 2)).toEqual([merges]);
  });

  it('is left as it is while somebody may ask it as much again', async () => {
    const state = await world.started(world.operations);
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    world.asked(0.5, 0);
    // It is silent soon, and peaks are remembered for five minutes.
    expect(await looks(keeper, state, 149)).toEqual([]);
    expect(await looks(keeper, state, 33)).toEqual([merges]);
  });

  it('is left as it is for as long where its gateway died with a request that had come long before', async () => {
    const state = await world.started(world.operations);
    const long_ago_ms = world.now_ms - 900_000;
    world.asked(0.5, 1, [], long_ago_ms);
    const beside = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    expect(await looks(beside, state, 149)).toEqual([]);
    expect(await looks(beside, state, 3)).toEqual([merges]);
    // Without that request, the minute is all.
    world.events = [];
    world.asked(0.5, 0, [], long_ago_ms);
    world.now_ms += 60_000;
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    expect(await looks(keeper, state, 30)).toEqual([]);
    expect(await looks(keeper, state, 2)).toEqual([merges]);
  });
});

describe('a pipeline that may have 2 to 4 stages', () => {
  it('begins with two where nobody would merge more, and its job has four devices', async () => {
    const state = await world.deployed();
    const [launch] = state.launches;
    expect(launch!.planned.devices_per_node.count).toBe(4);
    expect(launch!.planned.units[0]).toMatchObject({ device_count: 4, pipeline: 2 });
    expect(launch!.planned.units[0]!.stages).toHaveLength(2);
    expect(state.models[0]!.reasons.join()).toMatch(/begins with 2 stages, and its job has 4 devices/);
  });

  it('is told where its stages come to lie: by layers, the first where it was, others on devices that are free', async () => {
    const state = await world.deployed();
    const [pipeline] = heldPipelines(state, world.seen(state));
    const { stages, plan } = planChange(pipeline!, 4, await pipelineQuestion(world.operations, state), 0);
    expect(stages).toHaveLength(4);
    expect(stages[0]).toMatchObject({ device: 'gpu 0', node: 'n0', first_block: 0 });
    expect(new Set(stages.map(({ device }) => device)).size).toBe(4);
    let next = 0;
    for (const [index, { first_block, blocks }] of stages.entries()) {
      expect(first_block).toBe(next);
      next += blocks;
      expect(plan.cuts[index]!.begin).toBe(index === 0 ? 0 : 1 + 2 * first_block);
    }
    expect(next).toBe(8);
  });

  it('takes between two stages what hidden states of its rows take, beside the way itself', async () => {
    const state = await world.deployed();
    const [pipeline] = heldPipelines(state, world.seen(state));
    const question = await pipelineQuestion(world.operations, state);
    const live = livePipeline(pipeline!, state.spec.models[0]!, question)!;
    // Of 200 tokens in and 4 out, one pass in five is a prompt; four sequences decode in as many batches as stages.
    const { n_embd } = synthPresets['small-llama']!;
    const hop_s = (rows: number): number => 0.0002 + (rows * n_embd * 4) / 1e9;
    for (const { stages, hops_s } of live.granularities)
      expect(hops_s).toBeCloseTo((stages * (4 * hop_s(4 / stages) + hop_s(200))) / 5, 9);
    expect(live.granularities.map(({ stages }) => stages)).toEqual([2, 4]);
  });

  it('has as many sequences at once as its keys and values hold at the lengths that it is asked with', async () => {
    const state = await world.deployed();
    const [pipeline] = heldPipelines(state, world.seen(state));
    const question = await pipelineQuestion(world.operations, state);
    const of = (kv_tokens: number): ReturnType<typeof livePipeline> => {
      const unit = { ...pipeline!.unit, kv_tokens };
      return livePipeline({ ...pipeline!, unit }, state.spec.models[0]!, question);
    };
    const placesOf = (kv_tokens: number): number[] =>
      of(kv_tokens)!.granularities.map(({ batch_max }) => batch_max);
    // 204 tokens each; a batch takes four.
    expect(placesOf(4 * 204)).toEqual([4, 4]);
    expect(placesOf(4 * 204 - 1)).toEqual([3, 3]);
    expect(placesOf(256)).toEqual([1, 1]);
    // A stage of half the layers has keys and values for as many tokens: fewer places are slower in any cut.
    const rates = [of(4 * 204), of(2 * 204)].map((live) => live!.granularities.map(passRate_per_s));
    for (const [index, rate] of rates[1]!.entries()) expect(rate).toBeLessThan(rates[0]![index]!);
  });

  it('starts a stage on a device that no other model is on, though that comes later', async () => {
    const state = await world.deployed();
    const alone = world.seen(state);
    const agentOf = (observation: Observation): AgentState =>
      [...observation.launches.values()][0]!.agents[0]!;
    const question = await pipelineQuestion(world.operations, state);
    const [before] = heldPipelines(state, alone);
    expect(
      planChange(before!, 3, question, 0)
        .stages.map(({ device }) => device)
        .sort(),
    ).toEqual(['gpu 0', 'gpu 1', 'gpu 2']);
    const { sessions } = agentOf(alone);
    const [device] = sessions[0]!.devices!;
    const others = [
      { devices: [{ ...device!, index: 2 }], models: [{ name: 'other', state: 'serving' }] },
      // A stage of its own on the device is none of others.
      { devices: [{ ...device!, index: 1 }], models: [], stages: [{ model: 'cut' }] },
    ] as unknown as AgentState['sessions'];
    agentOf(alone).sessions = [...sessions, ...others];
    const [pipeline] = heldPipelines(state, alone);
    const { stages, starts } = planChange(pipeline!, 3, question, 0, { cv: 4 });
    expect(stages.map(({ device: name }) => name).sort()).toEqual(['gpu 0', 'gpu 1', 'gpu 3']);
    expect(starts.join()).toContain('other models leave that device alone');
  });

  it('is split where it is cut, as long as that is no slower than another cut', async () => {
    const state = await world.deployed();
    const [pipeline] = heldPipelines(state, world.seen(state));
    const question = await pipelineQuestion(world.operations, state);
    const [first, second] = pipeline!.stages;
    // Three stages of eight layers have three at most in each; no two cuts are all of these.
    const kept = [2, 3, 5].map((layer) => {
      const begin = 1 + 2 * layer;
      const stages = [
        { ...first!, end: begin },
        { ...second!, begin },
      ];
      const { plan } = planChange({ ...pipeline!, stages }, 3, question, 0);
      return plan.cuts.some((cut) => cut.begin === begin);
    });
    expect(kept).toEqual([true, true, true]);
  });

  it('keeps its stages under a load that it carries, and says why', async () => {
    const state = await world.deployed();
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    for (let round = 0; round < 5; round++, world.now_ms += 2000) {
      world.asked(0.5, 1);
      await keeper.look(state, world.seen(state));
    }
    await keeper.settled();
    expect(world.events).toEqual([]);
    const [told] = readGranularityFile(world.place.store.layout);
    expect(told).toMatchObject({
      deployment: 'demo',
      unit: 'cut-0',
      stages: 2,
      stages_min: 2,
      stages_max: 4,
    });
    expect(told!.rate_per_s).toBeCloseTo(0.5, 0);
    expect(told!.because).not.toBe('');
    expect(told!.last).toBeUndefined();
  });

  it('is to get more under one that it does not carry; where nobody can tell its agent, that is said once and tried later', async () => {
    const state = await world.deployed();
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    const look = async (rounds: number): Promise<void> => {
      for (let round = 0; round < rounds; round++, world.now_ms += 2000) {
        world.asked(4000, 5000);
        await keeper.look(state, world.seen(state));
        await keeper.settled();
      }
    };
    await look(5);
    expect(world.events).toHaveLength(1);
    expect(world.events[0]).toMatchObject({ kind: 'warning' });
    expect((world.events[0] as { message: string }).message).toMatch(
      /^cut-0 of demo keeps its 2 stages \(4 are better: .*\): no gateway of local can be reached: .*\[E_GATEWAY_UNREACHABLE\]$/,
    );
    const [told] = readGranularityFile(world.place.store.layout);
    expect(told).toMatchObject({ stages: 2, last: { from: 2, to: 4 } });
    expect(told!.last!.refused).toContain('E_GATEWAY_UNREACHABLE');
    // Agents that do not agree on who has which stage: it is not there for a look.
    await keeper.look(state, { ...world.seen(state), launches: new Map() });
    expect(heldPipelines(state, { ...world.seen(state), launches: new Map() })).toEqual([]);
    await look(1);
    expect(readGranularityFile(world.place.store.layout)).toMatchObject([{ last: { from: 2, to: 4 } }]);
    // A minute after the first refusal, two after the second.
    await look(40);
    expect(world.events).toHaveLength(2);
  });

  it('is cut anew where batches lie before one of its stages, and it takes longer than the others', async () => {
    const state = await world.deployed();
    // Four stages, each on a device with room for half of the model.
    const times = [0, 5, 9, 13].map((begin, stage) => ({
      ...{ begin, end: [5, 9, 13, 18][stage]! },
      ...(stage === 0 ? { computed_us: 4000, waiting: 2.4 } : { computed_us: 1000, waiting: 0.1 }),
    }));
    // As its agent wrote it: where plans look for what stages take.
    const session = {
      ...{ engine: 'native', unit: 'w', units: ['cut-0'], models: [] },
      stage_times: { cut: times },
    };
    const agent = { format: 1, node: 'n0', node_index: 0, phase: 'serving', started_at_ms: 0 };
    const folder = world.place.store.launchFolder('demo', state.launches[0]!.launch_id);
    mkdirSync(folder, { recursive: true });
    const file = { ...agent, updated_at_ms: 1, devices: [], sessions: [session] };
    writeFileSync(join(folder, 'n0.state.json'), JSON.stringify(file));
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    const look = async (rounds: number): Promise<void> => {
      for (let round = 0; round < rounds; round++, world.now_ms += 2000) {
        world.asked(0.5, 1);
        await keeper.look(state, world.seen(state, times));
        await keeper.settled();
      }
    };
    await look(20);
    expect(world.events).toEqual([]);
    const [told] = readGranularityFile(world.place.store.layout);
    expect(told).toMatchObject({ stages: 4, congested_stage: 0 });
    expect(told!.because).toMatch(
      /2\.4 micro-batches wait before stage 0, 10 ms of its work; .*: cut anew if that lasts for 60\.0 s$/,
    );
    expect(granularityLines(told!, world.now_ms)[0]).toMatch(/ 0 waiting, stage 0 is congested\)$/);
    await look(15);
    expect((world.events as { message: string }[]).map(({ message }) => message)).toEqual([
      expect.stringMatching(
        /^cut-0 of demo keeps its 4 stages \(another cut is better: 2\.4 micro-batches wait/,
      ),
    ]);
    const [pipeline] = heldPipelines(state, world.seen(state, times));
    const { plan } = planChange(pipeline!, 4, await pipelineQuestion(world.operations, state), world.now_ms);
    expect(plan.cuts.map(({ begin }) => begin)).toEqual([0, 3, 5, 9]);
  });

  it('stalls while its answers take longer than 1.5 times what they did, and says when that is over', async () => {
    const state = await world.deployed();
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    const normal = Array.from({ length: 40 }, () => 20);
    const look = async (in_flight: number, ...more: number[]): Promise<string> => {
      world.asked(0.5, in_flight, [...normal, ...more]);
      await keeper.look(state, world.seen(state));
      const [told] = readGranularityFile(world.place.store.layout);
      return granularityLines(told!, world.now_ms)[0]!;
    };
    expect(await look(1)).not.toContain('stalled');
    world.now_ms += 2000;
    await look(1, 35);
    world.now_ms += 3000;
    expect(await look(1, 35, 26)).toMatch(/ 0 waiting, stalled for 3 s\)$/);
    // Nobody waits for anything.
    expect(await look(0, 35, 26)).not.toContain('stalled');
    expect(world.events).toEqual([]);
    world.now_ms += 2000;
    expect(await look(1, 35, 26, 21)).not.toContain('stalled');
    expect(world.events.map(describeEvent)).toEqual([
      expect.stringMatching(/^demo: answers of cut stalled for 5 s, and are as before \(20\.0 ms a token\)$/),
    ]);
  });

  it('has another normal once it is cut otherwise, whoever did that; a stall of two replicas is told once', async () => {
    const state = await world.deployed();
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    const cut = (begins: readonly number[], replicas = 1): Observation => {
      const times = begins.map((begin, at) => ({ begin, end: begins[at + 1] ?? 18, computed_us: 1000 }));
      const observation = world.seen(state, times);
      const [[launch_id, launch]] = [...observation.launches] as [[string, LaunchObservation]];
      if (replicas === 2) observation.launches.set(`${launch_id}-2`, launch);
      return observation;
    };
    const twice = { ...state, launches: [...state.launches] };
    const [launch] = state.launches;
    twice.launches.push({ ...launch!, launch_id: `${launch!.launch_id}-2` });
    const look = async (of: DeploymentState, observation: Observation, pass_ms: number[]): Promise<void> => {
      world.asked(0.5, 1, pass_ms);
      await keeper.look(of, observation);
      world.now_ms += 2000;
    };
    const fast = Array.from({ length: 40 }, () => 20);
    await look(state, cut([0, 9]), fast);
    await look(state, cut([0, 9]), [...fast, 50]);
    expect(readGranularityFile(world.place.store.layout)[0]!.stalled_ms).toBeDefined();
    // By hand, for example.
    await look(state, cut([0, 5, 9, 13]), [...fast, 50, 50]);
    expect(readGranularityFile(world.place.store.layout)[0]!.stalled_ms).toBeUndefined();
    const slow = [...fast, 50, 50, ...Array.from({ length: 40 }, () => 50)];
    await look(state, cut([0, 5, 9, 13]), slow);
    expect(readGranularityFile(world.place.store.layout)[0]!.stalled_ms).toBeUndefined();

    const normal = [...slow, ...Array.from({ length: 40 }, () => 50)];
    await look(twice, cut([0, 5, 9, 13], 2), normal);
    await look(twice, cut([0, 5, 9, 13], 2), [...normal, 90]);
    await look(twice, cut([0, 5, 9, 13], 2), [...normal, 90, 50]);
    await keeper.settled();
    expect(world.events.filter(({ kind }) => kind === 'stall_over')).toHaveLength(1);
  });

  it('is left alone where model.yaml gives one number', async () => {
    const state = await world.deployed(2);
    const keeper = new GranularityKeeper(world.operations, (event) => void world.events.push(event));
    world.asked(4000, 5000);
    await keeper.look(state, world.seen(state));
    await keeper.settled();
    expect(readGranularityFile(world.place.store.layout)).toEqual([]);
  });
});

describe('another number of stages that cannot be', () => {
  const refusal = async (state: DeploymentState, stages: number): Promise<string> => {
    const [pipeline] = heldPipelines(state, world.seen(state));
    const question = await pipelineQuestion(world.operations, state);
    try {
      planChange(pipeline!, stages, question, 0);
      return 'nothing';
    } catch (error) {
      const { code, because } = error as { code: string; because: string[] };
      return `${code}: ${because.join()}`;
    }
  };

  it('says which devices, layers or memory are in the way', async () => {
    const two = await world.deployed(2);
    expect(await refusal(two, 4)).toBe('E_STAGES_IMPOSSIBLE: its job has 2 devices for it');
    expect(await refusal(two, 9)).toBe('E_STAGES_IMPOSSIBLE: cut has 8 layers');
    const four = await world.deployed(4);
    expect(await refusal(four, 2)).toMatch(
      /^E_STAGES_IMPOSSIBLE: weights and KV take .* GiB, and the 2 largest devices have .* GiB in all$/,
    );
  });

  it('is none over several jobs, but where two of them are on one node: devices have no names there', async () => {
    const state = await world.deployed({ stages_min: 2, stages_max: 4 }, 2);
    const question = await pipelineQuestion(world.operations, state);
    const [pipeline] = heldPipelines(state, world.inJobs(state, ['n0', 'n1']));
    expect(pipeline!.devices.map(({ device }) => device)).toEqual([
      { device: 'gpu 0', node: 'n0' },
      { device: 'gpu 0', node: 'n1' },
      { device: 'gpu 1', node: 'n0' },
      { device: 'gpu 1', node: 'n1' },
    ]);
    const { stages } = planChange(pipeline!, 4, question, 0);
    expect(stages.map(({ node }) => node).sort()).toEqual(['n0', 'n0', 'n1', 'n1']);
    // Devices of a job that is over are none: what its agent wrote last is still there.
    const home = world.inJobs(state, ['n0', 'n1']);
    const [first, second] = [...home.launches.values()];
    for (const [at, stage] of first!.units[0]!.stages!.entries())
      Object.assign(stage, { node: 'n0', device: `gpu ${at}` });
    const nodes = (): string[] => heldPipelines(state, home)[0]!.devices.map(({ node }) => node);
    expect(nodes()).toEqual(['n0', 'n0', 'n1', 'n1']);
    Object.assign(second!, { job: { job_id: '2', phase: 'ended', state: 'FAILED' } });
    expect(nodes()).toEqual(['n0', 'n0']);
    expect(() => planChange(pipeline!, 5, question, 0)).toThrow(
      expect.objectContaining({ because: ['its 2 jobs have 4 devices for it'] }),
    );
    const [shared] = heldPipelines(state, world.inJobs(state, ['n0', 'n0']));
    expect(() => planChange(shared!, 4, question, 0)).toThrow(
      expect.objectContaining({ because: [expect.stringMatching(/^several of its jobs are on n0,/)] }),
    );
  });

  it('says so of a model that is not cut, of one that does not serve, and of one that is not there', async () => {
    await world.deployed(1);
    const move = (order: { stages: number; model?: string }): Promise<unknown> =>
      planMove(world.operations, { deployment: 'demo', ...order });
    await expect(move({ stages: 2 })).rejects.toMatchObject({
      code: 'E_STAGES_IMPOSSIBLE',
      because: [expect.stringMatching(/its replicas \(native\) are not cut into stages/)],
    });
    await expect(move({ stages: 2, model: 'cat' })).rejects.toMatchObject({
      code: 'E_USAGE',
      try: ['hpcserve move demo --model cut --stages N'],
    });
    await world.deployed(2);
    await expect(move({ stages: 4 })).rejects.toMatchObject({
      code: 'E_STAGES_IMPOSSIBLE',
      because: [expect.stringMatching(/none of its replicas serves/)],
    });
    await expect(planMove(world.operations, { deployment: 'other', stages: 2 })).rejects.toMatchObject({
      code: 'E_DEPLOYMENT_UNKNOWN',
    });
  });
});
