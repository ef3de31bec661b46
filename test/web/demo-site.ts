/** A gateway before a site with some of everything: models of several kinds on several nodes, and jobs that wait. */
import type { ServerResponse } from 'node:http';
import type { DeviceDescription } from '../../spec/session-record.ts';
import {
  type Answer,
  chunkEvent,
  doneEvent,
  type Stage,
  startStage,
  type TestModel,
  usageEvent,
  writeDeployment,
} from '../gateway/support.ts';

const minute_ms = 60_000;
const gib = 1024 ** 3;

const device = (kind: 'gpu' | 'cpu', model: string, memory_gib: number): DeviceDescription => ({
  kind,
  model,
  memory_bytes: memory_gib * gib,
  isa: [],
});
const several = (count: number, one: DeviceDescription): DeviceDescription[] =>
  Array.from({ length: count }, () => one);

/** What models say when they are asked for markdown, and what no page may make of it. */
const markdownAnswer = `Jobs end at their **time limit**, so \`hpcserve\` submits a successor *before* it.

| what | when |
|---|---|
| successor | 20 minutes before the end |
| drain | when it serves |

\`\`\`sh
hpcserve deploy model.yaml --site daint
hpcserve status demo
\`\`\`

1. The gateway sends new requests to the successor.
2. The old job ends.

<img src=x onerror="window.attacked = true"><script>window.attacked = true</script>
[a link](javascript:window.attacked=true) and [the manual](https://slurm.schedmd.com/sbatch.html) ![a picture](https://example.org/x.png)`;

/** Word for word, as engines stream. */
function speaks(text: string, pause_ms: number): Answer {
  return async ({ aborted }, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    let gone = false;
    void aborted.then(() => {
      gone = true;
    });
    for (const word of text.split(/(?<= )/)) {
      if (gone) return;
      response.write(chunkEvent(word));
      await new Promise((resolve) => setTimeout(resolve, pause_ms));
    }
    end(response);
  };
}

function end(response: ServerResponse): void {
  response.write(chunkEvent('', 'stop'));
  response.write(usageEvent);
  response.end(doneEvent);
}

export async function startDemoSite(): Promise<Stage> {
  const stage = await startStage({ drain_ms: 200 });
  const now_ms = Date.now();
  const session = async (
    answer: Answer,
    { job_id, left_min, devices, ...model }: DemoModel,
  ): Promise<void> => {
    const made = await stage.session(answer, {
      ...model,
      metadata: {
        devices,
        job_id,
        job_end_time_ms: now_ms + left_min * minute_ms,
        tier: model.tier ?? 'stable',
        site: 'daint',
      },
    });
    made.load = model.load ?? {};
  };
  await startLarge(session);
  await startOthers(session);
  writeDeployments(stage, now_ms);
  return stage;
}

const gh200 = several(4, device('gpu', 'GH200', 96));
const words = speaks(markdownAnswer, 15);
type StartSession = (answer: Answer, model: DemoModel) => Promise<void>;

async function startLarge(session: StartSession): Promise<void> {
  for (const [node, running, waiting] of [
    ['nid001', 41, 0],
    ['nid002', 64, 7],
  ] as const)
    await session(words, {
      name: 'llama-3.3-70b-instruct',
      aliases: ['large'],
      engine: 'vllm',
      precision: 'bf16',
      context_tokens: 131_072,
      node,
      devices: gh200,
      job_id: node === 'nid001' ? '481516' : '481517',
      left_min: node === 'nid001' ? 583 : 34,
      load: {
        running,
        waiting,
        max_sequences: 64,
        kv_tokens_total: 900_000,
        kv_tokens_used: running * 11_000,
      },
    });
}

async function startOthers(session: StartSession): Promise<void> {
  for (const node of ['nid101', 'nid102', 'nid103'])
    await session(words, {
      name: 'qwen3-8b',
      aliases: ['small'],
      engine: 'native',
      precision: 'q8_0',
      context_tokens: 32_768,
      node,
      devices: [device('cpu', 'Xeon-8480', 512)],
      job_id: '481523',
      left_min: 121,
      tier: node === 'nid103' ? 'scavenger' : 'stable',
      load: { running: 3, waiting: 0, max_sequences: 16, kv_tokens_total: 500_000, kv_tokens_used: 60_000 },
    });
  await session(speaks('word '.repeat(400), 25), {
    name: 'talks-long',
    node: 'nid201',
    devices: [device('gpu', 'A100-40GB', 40)],
    job_id: '481530',
    left_min: 240,
  });
  await session(words, {
    name: 'mixtral-8x22b',
    state: 'loading',
    engine: 'sglang',
    precision: 'fp8',
    context_tokens: 65_536,
    node: 'nid003',
    devices: gh200,
    job_id: '481540',
    left_min: 718,
    bytes_loaded: 60 * gib,
    bytes_total: 141 * gib,
  });
}

type DemoModel = TestModel & {
  job_id: string;
  left_min: number;
  devices: DeviceDescription[];
  tier?: 'stable' | 'scavenger';
  load?: Record<string, number>;
};

function writeDeployments({ config }: Stage, now_ms: number): void {
  const launch = (job_id: string, where: string, nodes: string, left_min: number) => ({
    phase: 'submitted',
    job_id,
    where,
    submitting_since_ms: now_ms - 90 * minute_ms,
    last: {
      phase: 'running',
      state: 'RUNNING',
      nodes,
      start_time_ms: now_ms - 60 * minute_ms,
      end_time_limit_ms: now_ms + left_min * minute_ms,
    },
  });
  writeDeployment(config, 'assistants', {
    name: 'assistants',
    desired: 'serving',
    spec: { models: [{ name: 'llama-3.3-70b-instruct', aliases: ['large'] }] },
    launches: [
      launch('481516', 'normal', 'nid001', 583),
      launch('481517', 'normal', 'nid002', 34),
      {
        phase: 'submitted',
        job_id: '481561',
        where: 'normal',
        submitting_since_ms: now_ms - 12 * minute_ms,
        last: {
          phase: 'pending',
          state: 'PENDING',
          pending: { reason: 'Priority', explanation: 'jobs of higher priority come first' },
          estimated_start_ms: now_ms + 21 * minute_ms,
        },
      },
    ],
  });
  writeDeployment(config, 'nightly', {
    name: 'nightly',
    desired: 'serving',
    spec: { models: [{ name: 'deepseek-r1', aliases: [] }] },
    scaled: { 'deepseek-r1': { asleep_since_ms: now_ms - 300 * minute_ms, wake_s: 412 } },
    launches: [
      {
        phase: 'ended',
        job_id: '481402',
        where: 'normal',
        submitting_since_ms: now_ms - 900 * minute_ms,
        ended_at_ms: now_ms - 300 * minute_ms,
        last: { phase: 'ended', state: 'COMPLETED', nodes: 'nid004', reason: 'nobody asked for its models' },
      },
    ],
  });
}
