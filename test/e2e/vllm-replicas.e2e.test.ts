/**
 * Two real vLLM behind a gateway on the local site, as typed: an engine is killed, one of its processes, and one is
 * stopped, each under streams on both. Every stream says what it would have said. Needs `npm run engines -- vllm`.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { processTree } from '../../host/process-tree.ts';
import { waitUntil } from '../../host/wait-until.ts';
import type { AgentState } from '../../spec/agent-state.ts';
import { type Home, temporaryHome } from '../cli/support.ts';
import { realVllm, vllm_ready_ms } from '../engines/vllm.ts';

const { vllm, lacking } = realVllm();
/** docs/mesh.md: streams go on within it, whether an engine is lost, one of its processes, or one is stopped. */
const pause_ms_max = 5000;
const tokens = 600;
/** This machine may have Slurm, too. */
const onLocal = { HPCSERVE_SITE: 'local' };
const prompts = ['one', 'two', 'three', 'four', 'five', 'six'];

interface Streamed {
  text: string;
  tokens: number | undefined;
  finish: string | null | undefined;
  pause_ms: number;
  session: string;
}

describe.skipIf(lacking !== '')(`two replicas of vLLM${lacking}`, () => {
  let home: Home;
  let client: OpenAI;
  let undisturbed: string[];

  beforeAll(async () => {
    home = temporaryHome();
    vllm!.model(join(home.folder, 'tiny'));
    const model = {
      name: 'tiny',
      source: './tiny',
      engine: 'vllm',
      replicas: 2,
      precision: 'f32',
      context_tokens: 2048,
      max_sequences: 8,
      cpu_threads: 1,
      engine_args: ['--enforce-eager'],
      environment: { VLLM_CPU_OMP_THREADS_BIND: 'nobind', OMP_NUM_THREADS: '1' },
    };
    writeFileSync(join(home.folder, 'model.yaml'), JSON.stringify({ name: 'demo', models: [model] }));
    const env = { ...onLocal, PATH: `${dirname(vllm!.python)}:/usr/bin:/bin` };
    const deploy = ['deploy', 'model.yaml', '--json', '--timeout', `${vllm_ready_ms / 1000}s`];
    const deployed = await home.run(deploy, { env, timeout_ms: vllm_ready_ms + 30_000 });
    expect(deployed.code, deployed.stderr).toBe(0);
    const { url, key } = JSON.parse(deployed.stdout.trim().split('\n').at(-1)!);
    client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
    await untilBothServe();
    undisturbed = (await Promise.all(prompts.map((prompt) => stream(prompt)))).map(({ text }) => text);
  }, vllm_ready_ms + 120_000);

  afterAll(async () => {
    await home?.run(['stop', '--all', '--yes'], { env: onLocal });
    home?.dispose();
  }, 60_000);

  function states(): AgentState[] {
    const launches = join(home.folder, '.hpcserve/local/deployments/demo/launches');
    if (!existsSync(launches)) return [];
    return readdirSync(launches, { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.state.json'))
      .map((name) => JSON.parse(readFileSync(join(launches, name), 'utf8')) as AgentState);
  }

  /** Of engines that serve: their processes by session. */
  const engines = (): Map<string, number> =>
    new Map(
      states()
        .flatMap(({ sessions }) => sessions)
        .filter(({ models, pid }) => pid !== undefined && models[0]?.state === 'serving')
        .map(({ session_id, pid }) => [session_id, pid!]),
    );

  async function untilBothServe(): Promise<void> {
    const bothServe = async (): Promise<true | undefined> => {
      if (engines().size < 2) return undefined;
      const { stdout } = await home.run(['status', '--json'], { env: onLocal });
      return JSON.parse(stdout).deployments[0].replicas_serving === 2 || undefined;
    };
    expect(await waitUntil(bothServe, { timeout_ms: vllm_ready_ms, interval_ms: 500 }), 'both serve').toBe(
      true,
    );
  }

  const untilGone = (lost: string) =>
    expect.poll(() => [...engines().keys()], { timeout: 60_000 }).not.toContain(lost);

  /** The core of an engine, in which it computes. */
  async function coreOf(engine: number): Promise<number> {
    const pids = await processTree(engine);
    return pids.find((pid) => readFileSync(`/proc/${pid}/comm`, 'utf8').startsWith('VLLM::EngineCor'))!;
  }

  /** @param onToken with the session that said it, and how many there have been */
  async function stream(
    prompt: string,
    onToken?: (session: string, count: number) => void,
  ): Promise<Streamed> {
    const body = {
      model: 'tiny',
      messages: [{ role: 'user' as const, content: prompt }],
      max_tokens: tokens,
      temperature: 0,
      ignore_eos: true,
      stream: true as const,
      stream_options: { include_usage: true },
    };
    const { data, response } = await client.chat.completions.create(body).withResponse();
    const session = response.headers.get('x-hpcserve-session')!;
    const said: Streamed = { text: '', tokens: undefined, finish: undefined, pause_ms: 0, session };
    let last_ms = performance.now();
    let count = 0;
    for await (const { choices, usage } of data) {
      said.pause_ms = Math.max(said.pause_ms, performance.now() - last_ms);
      last_ms = performance.now();
      said.text += choices[0]?.delta.content ?? '';
      said.finish = choices[0]?.finish_reason ?? said.finish;
      said.tokens = usage?.completion_tokens ?? said.tokens;
      onToken?.(session, ++count);
    }
    return said;
  }

  /** All prompts at once; `break_` is done to an engine once both replicas are in the middle of their streams. */
  async function broken(break_: (engine: number) => unknown): Promise<string> {
    const before = engines();
    const counts = new Map<string, number>();
    let lost: string | undefined;
    let breaking: unknown;
    const all = await Promise.all(
      prompts.map((prompt) =>
        stream(prompt, (session, count) => {
          counts.set(session, Math.max(count, counts.get(session) ?? 0));
          if (lost !== undefined || counts.size < 2 || [...counts.values()].some((made) => made < 50)) return;
          lost = session;
          breaking = break_(before.get(session)!);
        }),
      ),
    );
    await breaking;
    expect(new Set(all.map(({ session }) => session)).size, 'both had streams').toBe(2);
    expect(lost, 'one was lost').toBeDefined();
    expect(all.map(({ text }) => text)).toEqual(undisturbed);
    for (const { tokens: counted, finish, pause_ms } of all) {
      expect([counted, finish]).toEqual([tokens, 'length']);
      expect(pause_ms).toBeLessThan(pause_ms_max);
    }
    return lost!;
  }

  it('one of them is stopped: its streams go on, and it serves again once it is continued', async () => {
    let core: number | undefined;
    const lost = await broken(async (engine) => {
      core = await coreOf(engine);
      process.kill(core, 'SIGSTOP');
    });
    process.kill(core!, 'SIGCONT');
    await untilBothServe();
    expect([...engines().keys()]).toContain(lost);
  }, 120_000);

  it(
    'a process of it is killed: its streams go on, and the replica comes back',
    async () => {
      const lost = await broken(async (engine) => process.kill(await coreOf(engine), 'SIGKILL'));
      // Streams are over before its server has ended.
      await untilGone(lost);
      await untilBothServe();
    },
    vllm_ready_ms + 120_000,
  );

  it('it is killed as a whole: its streams go on, and the other one serves', async () => {
    const lost = await broken((engine) => process.kill(engine, 'SIGKILL'));
    await untilGone(lost);
    expect((await stream('one')).text).toBe(undisturbed[0]);
  }, 120_000);
});
