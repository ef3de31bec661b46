/**
 * Two replicas of one model on one node, each a real vLLM with the memory that the plan gave it: without, each would
 * take most of the node, and the second one ends. Needs `npm run engines -- vllm`.
 */
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { inspectModel } from '../../../control/plan/inspect-model.ts';
import { place } from '../../../solver/placement/placement.ts';
import { deploymentSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { vllmPython } from '../../engines/environments.ts';
import { writeTinyModel } from '../../engines/tiny-model.ts';
import { ask, cpus } from '../../solver/placement/support.ts';
import { type RunningAgent, Site } from '../support.ts';

const { found: python, lacking } = vllmPython();
const gib = 2 ** 30;

describe.skipIf(python === undefined)(`two vLLM on one node${lacking}`, () => {
  test('have the memory that the plan gave each, and say so', async () => {
    await using site = await Site.open();
    const folder = writeTinyModel(python!, join(site.folder, 'tiny'));
    const { models } = deploymentSchema.parse({
      name: 'd',
      models: [
        {
          name: 'tiny',
          source: folder,
          replicas: 2,
          engine_args: ['--enforce-eager'],
          // Where compute nodes have fewer cores than replicas, they are not bound.
          environment: { VLLM_CPU_OMP_THREADS_BIND: 'nobind', OMP_NUM_THREADS: '1' },
        },
      ],
    });
    const local = siteSchema.parse({ name: 'here', kind: 'local' });
    const { placement } = await inspectModel(models[0]!, site.folder, local, site.folder, process.env);
    const node = cpus('CPU', 1, [], {
      engines: { vllm: { available: true } },
      devices: { kind: 'cpu', model: 'CPU', count: 2, memory_bytes: 4 * gib },
      cpus: 2,
      memory_bytes: 9 * gib,
    });
    const plan = place(ask([placement], [node]));
    expect(plan.unplaced).toEqual([]);
    const [launch] = plan.launches;
    expect(launch!.units.map(({ engine, first_device }) => [engine, first_device])).toEqual([
      ['vllm', 0],
      ['vllm', 1],
    ]);
    const agent = await site.start(launch!.units, {
      cpu_devices_per_node: 2,
      engine_prefix: ['/usr/bin/env', `PATH=${dirname(python!)}:${process.env.PATH}`],
    });
    await agent.stateWhere(
      ({ sessions }) => sessions.filter(({ models: served }) => served[0]?.state === 'serving').length === 2,
      'both replicas to serve',
      360_000,
    );
    for (const unit of launch!.units) {
      const limits = await limitsOf(agent, unit.unit);
      expect(limits.context_tokens).toBe(unit.context_tokens);
      // Whole blocks of 128 tokens, and numbers of 16 bits as the plan counts them.
      expect(limits.kv_tokens).toBeGreaterThan(0.9 * unit.kv_tokens);
      expect(limits.kv_tokens).toBeLessThanOrEqual(unit.kv_tokens);
      expect(limits.prefix_caching).toBe(true);
    }
    agent.process.kill('SIGTERM');
    expect(await agent.ended).toEqual({ code: 0, signal: null });
  }, 420_000);
});

async function limitsOf(agent: RunningAgent, unit: string) {
  const { sessions } = await agent.stateWhere(
    (state) => state.sessions.some((session) => session.unit === unit && session.limits !== undefined),
    `${unit} to say what it chose`,
    20_000,
  );
  return sessions.find((session) => session.unit === unit)!.limits!;
}
