/** A real vLLM behind a real agent: its cores, its phases, a process of it that is stopped, and one that is killed. */
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { phaseSign } from '../../../agent/adapters/load-phases.ts';
import { processTree } from '../../../host/process-tree.ts';
import { parseAllowedCores } from '../../../host/processors.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { vllmPython } from '../../engines/environments.ts';
import { writeTinyModel } from '../../engines/tiny-model.ts';
import { eventually } from '../../mesh/support.ts';
import { type RunningAgent, Site, unitOf } from '../support.ts';

const { found: python, lacking } = vllmPython();
/** Two of them begin beside each other on two cores. */
const ready_ms = 300_000;
const positions = 2048;

describe.skipIf(lacking !== '')(`vLLM${lacking}`, () => {
  let site: Site;
  let agent: RunningAgent;
  let records: Record<string, SessionRecord>;
  const phases = new Set<string>();

  beforeAll(async () => {
    site = await Site.open();
    const folder = writeTinyModel(python!, join(site.folder, 'tiny'), positions);
    const config = JSON.parse(await readFile(join(folder, 'config.json'), 'utf8')) as {
      max_position_embeddings: number;
    };
    const units = ['a', 'b'].map((name) =>
      unitOf(
        {
          name,
          precision: 'f32',
          max_sequences: 4,
          engine_args: ['--enforce-eager'],
          environment: { VLLM_CPU_KVCACHE_SPACE: '1' },
        },
        { engine: 'vllm', model_path: folder, context_tokens: config.max_position_embeddings },
      ),
    );
    const engine_prefix = ['/usr/bin/env', `PATH=${dirname(python!)}:${process.env.PATH}`];
    agent = await site.start(units, { engine_prefix });
    const looking = setInterval(async () => {
      const state = await agent.state().catch(() => undefined);
      const models = (state?.sessions ?? []).flatMap((session) => session.models);
      for (const { phase } of models) if (phase !== undefined) phases.add(phase);
    }, 100);
    try {
      const [a, b] = await Promise.all(['a', 'b'].map((name) => site.serving(name, ready_ms)));
      records = { a: a!, b: b! };
    } finally {
      clearInterval(looking);
    }
  }, ready_ms + 60_000);

  afterAll(async () => site?.[Symbol.asyncDispose](), 60_000);

  const engineCore = async (name: string): Promise<number> => {
    const pids = await processTree(await agent.pidOf(records[name]!));
    const comms = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/comm`, 'utf8')));
    return pids[comms.findIndex((comm) => comm.startsWith('VLLM::EngineCor'))]!;
  };

  const stream = (name: string, max_tokens: number) =>
    site.pool(records[name]!).request({
      method: 'POST',
      path: '/v1/chat/completions',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        model: name,
        stream: true,
        ignore_eos: true,
        max_tokens,
        messages: [{ role: 'user', content: 'x' }],
      }),
    });

  const modelOf = (name: string) => site.registry.get(records[name]!.session_id)!.metadata.models[0]!;

  test('what it does while it loads is told, and none of its lines goes unseen', async () => {
    expect(phases).toContain('starting');
    // Weights so small are read between two looks.
    const lines = await agent.engineLog('a-0');
    const signs = lines.flatMap((line) => phaseSign('vllm', line)?.phase ?? []);
    expect(signs).toEqual(expect.arrayContaining(['weights', 'kv_cache']));
    expect(['weights', 'kv_cache', 'warming_up']).toEqual(expect.arrayContaining([...phases].slice(1)));
    expect(phases.size).toBeGreaterThan(1);
  });

  test('the processes of two engines share no core', async () => {
    const coresOf = async (name: string): Promise<Set<number>> => {
      const pids = await processTree(await agent.pidOf(records[name]!));
      expect(pids.length).toBeGreaterThan(1);
      const all = await Promise.all(
        pids.map(async (pid) => parseAllowedCores(await readFile(`/proc/${pid}/status`, 'utf8'))),
      );
      return new Set(all.flat());
    };
    const [ofA, ofB] = await Promise.all([coresOf('a'), coresOf('b')]);
    const allowed = parseAllowedCores(await readFile('/proc/self/status', 'utf8'));
    if (allowed.length === 1) return;
    expect([...ofA].filter((core) => ofB.has(core))).toEqual([]);
    expect((await agent.engineLog('a-0')).join('\n')).toContain(`core ids=[${[...ofA].join()}]`);
  });

  test('its core is stopped: the stream is handed over within 5 s; continued, it serves again', async () => {
    const core = await engineCore('a');
    const answer = await stream('a', 1900);
    let text = '';
    let stopped_ms = 0;
    for await (const part of answer.body) {
      if (text === '') {
        process.kill(core, 'SIGSTOP');
        stopped_ms = performance.now();
      }
      text += String(part);
    }
    expect(performance.now() - stopped_ms).toBeLessThan(5000);
    expect(text).toContain('E_AGENT_ENGINE_STALLED');
    await eventually(() => modelOf('a').state === 'stalled', 'it has stalled');
    expect(modelOf('a').error).toContain('VLLM::EngineCor');
    expect(modelOf('b').state).toBe('serving');
    process.kill(core, 'SIGCONT');
    await eventually(() => modelOf('a').state === 'serving', 'it goes on', 20_000);
    expect(await (await stream('a', 8)).body.text()).toContain('[DONE]');
  }, 60_000);

  test(
    'its core is killed: the reason is that, and it is started again',
    async () => {
      process.kill(await engineCore('a'), 'SIGKILL');
      const down = await eventually(
        () => {
          const record = site.registry.get(records.a!.session_id)!;
          return record.lifecycle === 'SERVING' ? undefined : record;
        },
        'it is DOWN',
        30_000,
      );
      // Its server may end by itself, or live on and answer that it is dead. A moment later it is LEFT, without words.
      if (down.lifecycle === 'DOWN')
        expect(down.metadata.models[0]!.error).toMatch(
          /^vllm (ended while it served|hangs and was killed: it served) a$/,
        );
      const log = (): Promise<string> => readFile(join(agent.launch.launch_folder, 'n0.agent.log'), 'utf8');
      await expect.poll(log).toContain('one of its processes was killed, or ended without a word');
      await site.serving('a', ready_ms);
    },
    ready_ms + 60_000,
  );
});
