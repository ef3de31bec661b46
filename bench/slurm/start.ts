/**
 * From `sbatch` accepted to the first token, on an idle cluster with a gateway that runs. Slurm's own part is what
 * passes until the node agent's process exists; an ordinary job beside it shows the same part without us.
 */
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { AgentState } from '../../spec/agent-state.ts';
import type { Stage } from '../preemption/stage.ts';
import type { BenchResult } from '../result.ts';
import { median } from './median.ts';

const rounds = 5;
const most_s = 2;
/** Between two tries of the client while nobody serves its model. */
const retry_ms = 20;

/** Moments of one start, Unix ms. */
interface Moments {
  accepted: number;
  /** Its process exists; it listens; it has joined the gossip. */
  agent: number;
  listening: number;
  gossip: number;
  /** The process of the device worker exists. */
  worker: number;
  first_token: number;
}

export async function measureStart(stage: Stage, log: (line: string) => void): Promise<BenchResult[]> {
  const options = { devices: { kind: 'gpu' }, tier: 'stable', max_sequences: 4 };
  const door = await stage.deploy(stage.modelFile('door', options));
  const file = stage.modelFile('started', options);
  const starts: Moments[] = [];
  const ordinary_s: number[] = [];
  for (let round = 0; round < rounds; round++) {
    ordinary_s.push((await ordinaryJob(stage)) / 1000);
    const moments = await oneStart(stage, door, file);
    starts.push(moments);
    const { accepted, agent, listening, worker, gossip, first_token } = moments;
    const since = (at_ms: number): string => `${Math.round(at_ms - agent)} ms`;
    log(
      `Slurm ${Math.round(agent - accepted)} ms; after it: agent listens ${since(listening)}, worker's process ${since(worker)}, agent in the gossip ${since(gossip)}, first token ${since(first_token)}`,
    );
    await stage.ask('stop', 'started');
  }
  await stage.ask('stop', 'door');
  const part = (from: keyof Moments, to: keyof Moments): number =>
    median(starts.map((each) => (Number(each[to]) - Number(each[from])) / 1000));
  const model_bytes = statSync(join(stage.folder, 'toy.gguf')).size;
  const total_s = part('agent', 'first_token');
  const stated = (what: string, ours: number): BenchResult => ({
    what,
    unit: 's',
    ours,
    peer: '',
    theirs: null,
    ratio: null,
    bar: '',
    holds: null,
  });
  return [
    {
      ...stated(
        'Slurm’s own part: sbatch accepted until the agent’s process exists',
        part('accepted', 'agent'),
      ),
      peer: 'an ordinary job with one srun',
      theirs: median(ordinary_s),
    },
    {
      ...stated(
        `from there to the first token (median of ${rounds}; a model of ${Math.round(model_bytes / 1e6)} MB, in the page cache)`,
        total_s,
      ),
      bar: `≤ ${most_s} s`,
      holds: total_s <= most_s,
    },
    stated('of it: the agent starts and listens', part('agent', 'listening')),
    stated('it joins the mesh and starts the device worker’s process', part('listening', 'worker')),
    stated(
      'the worker loads the model, the gateway learns of it, the client has a token',
      part('worker', 'first_token'),
    ),
  ];
}

async function oneStart(
  stage: Stage,
  { url, key }: { url: string; key: string },
  file: string,
): Promise<Moments> {
  const token = firstToken(url, key, 'started');
  const deployed = await stage.run(['deploy', '--yes', file, '--timeout', '90s', '--json']);
  if (deployed.code !== 0) throw new Error(deployed.stderr + deployed.stdout);
  const events = deployed.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const { launch_id, at_ms } = events.find(({ kind }) => kind === 'submitted') as {
    launch_id: string;
    at_ms: number;
  };
  const launch = join(stage.folder, '.hpcserve/slurm/deployments/started/launches', launch_id);
  const names = readdirSync(launch);
  const state_file = names.find((name) => name.endsWith('.state.json'))!;
  const state = JSON.parse(readFileSync(join(launch, state_file), 'utf8')) as AgentState;
  const worker = state.sessions.find(({ unit }) => unit !== undefined)!;
  const log = readFileSync(join(launch, names.find((name) => name.endsWith('.agent.log'))!), 'utf8');
  const lines = log
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { time: number; msg: string });
  const logged_ms = (words: string): number => {
    const line = lines.find(({ msg }) => msg === words);
    if (line === undefined) throw new Error(`the agent's log has no ${words}`);
    return line.time;
  };
  return {
    accepted: at_ms,
    agent: processStart_ms(state.pid),
    listening: logged_ms('listening'),
    gossip: logged_ms('joined the gossip'),
    worker: processStart_ms(worker.pid!),
    first_token: await token,
  };
}

/** When a stream of the model gave its first token; asked again as long as nobody serves it. */
async function firstToken(url: string, key: string, model: string): Promise<number> {
  const deadline_ms = performance.now() + 90_000;
  while (performance.now() < deadline_ms) {
    const answer = await fetch(`${url}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({
        model,
        stream: true,
        max_tokens: 2,
        messages: [{ role: 'user', content: 'Go.' }],
      }),
    });
    if (!answer.ok) {
      await answer.body?.cancel();
      await sleep(retry_ms);
      continue;
    }
    let text = '';
    const decoder = new TextDecoder();
    for await (const bytes of answer.body!) {
      text += decoder.decode(bytes, { stream: true });
      if (/"content":"[^"]/.test(text)) return Date.now();
    }
    throw new Error(`no token in ${text}`);
  }
  throw new Error(`${model} gave no token`);
}

/** Unix ms of the start of a process that lives, to a hundredth of a second. */
function processStart_ms(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ');
  const now_ms = Date.now();
  const up_ms = Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]) * 1000;
  return now_ms - up_ms + Number(fields[19]) * 10;
}

/** ms from sbatch accepted until the srun of an ordinary job runs its command. */
async function ordinaryJob(stage: Stage): Promise<number> {
  const began = join(stage.folder, 'began');
  rmSync(began, { force: true });
  const argv = [
    'sbatch',
    '--partition=gh200',
    '--gres=gpu:gh200:1',
    '--time=5',
    '--mem=100M',
    '--output=/dev/null',
  ];
  const input = `#!/bin/sh\nsrun date +%s%3N >'${began}'\n`;
  const { code, stderr } = await stage.cluster.runAs('user', argv, { input, cwd: stage.folder });
  const accepted_ms = Date.now();
  if (code !== 0) throw new Error(stderr);
  while (Date.now() < accepted_ms + 60_000) {
    await sleep(retry_ms);
    const text = existsSync(began) ? readFileSync(began, 'utf8').trim() : '';
    if (text !== '') return Number(text) - accepted_ms;
  }
  throw new Error('an ordinary job did not run');
}
