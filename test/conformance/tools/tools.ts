/**
 * Programs of others that measure and judge OpenAI-compatible servers, run as their users type them: what they ask is
 * theirs, what they found is read from the reports that they write.
 */
import { spawn } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ClientTools } from '../../engines/environments.ts';

/** Each imports for half a minute where the machine does something else. */
export const tool_ms = 240_000;

/** A server, and a folder for what a program writes. */
export interface Target {
  /** Without `/v1`. */
  url: string;
  key: string;
  model: string;
  /** A Hugging Face folder with the tokenizer of the model. */
  tokenizer: string;
  scratch: string;
}

export interface Load {
  requests: number;
  prompt_tokens: number;
  answer_tokens: number;
}

/** What a program says of the requests that it sent. */
export interface Measured {
  succeeded: number;
  failed: number;
  /** Of each answer on average, as the program counts. */
  answer_tokens: number;
  /** Its report, for the message of a test that fails. */
  report: string;
}

const environment = (target: Target): NodeJS.ProcessEnv => ({
  PATH: process.env.PATH,
  HOME: target.scratch,
  OPENAI_API_KEY: target.key,
  HF_HUB_OFFLINE: '1',
  HF_DATASETS_OFFLINE: '1',
  TOKENIZERS_PARALLELISM: 'false',
  NO_COLOR: '1',
});

/** @throws Error where it fails, with its last words */
function run(argv: readonly string[], target: Target, more: NodeJS.ProcessEnv = {}): Promise<string> {
  const [program, ...args] = argv;
  return new Promise((resolve, reject) => {
    const child = spawn(program!, args, {
      cwd: target.scratch,
      env: { ...environment(target), ...more },
      stdio: ['ignore', 'pipe', 'pipe'],
      // With all that it started, where it takes too long.
      detached: true,
    });
    let said = '';
    const take = (chunk: Buffer): void => {
      said = `${said}${chunk.toString()}`.slice(-64 * 1024);
    };
    child.stdout.on('data', take);
    child.stderr.on('data', take);
    const timer = setTimeout(() => process.kill(-child.pid!, 'SIGKILL'), tool_ms);
    child.once('error', reject);
    child.once('close', (code, signal) => {
      clearTimeout(timer);
      if (code === 0) resolve(said);
      else
        reject(
          new Error(`${argv.slice(0, 3).join(' ')} ended with ${code ?? signal}:\n${said.slice(-6000)}`),
        );
    });
  });
}

function folderIn({ scratch }: Target, name: string): string {
  const folder = join(scratch, `${name}-${readdirSync(scratch).length}`);
  mkdirSync(folder);
  return folder;
}

/** https://github.com/vllm-project/guidellm: streams, as many tokens as it asks for. */
export async function guidellm(
  { bin }: ClientTools,
  target: Target,
  load: Load,
  path: '/v1/chat/completions' | '/v1/completions',
): Promise<Measured> {
  const folder = folderIn(target, 'guidellm');
  const { url, key, model, tokenizer } = target;
  const spec = {
    backend: { kind: 'openai_http', target: url, model, api_key: key, request_format: path },
    profile: { kind: 'concurrent', streams: [2] },
    constraints: [{ kind: 'max_requests', count: load.requests }],
    tokenizer: { kind: 'huggingface_auto', model: tokenizer },
    data: [
      {
        kind: 'synthetic_text',
        prompt_tokens: load.prompt_tokens,
        output_tokens: load.answer_tokens,
      },
    ],
    outputs: [{ kind: 'json', path: join(folder, 'report.json') }],
  };
  const config = join(folder, 'scenario.json');
  writeFileSync(config, JSON.stringify({ spec }));
  const said = await run([join(bin, 'guidellm'), 'run', '--config', config, '--disable-progress'], target);
  const text = readFileSync(join(folder, 'report.json'), 'utf8');
  const [benchmark] = (JSON.parse(text) as GuidellmReport).benchmarks;
  const { successful, errored } = benchmark!.requests;
  const tokens = successful.map(({ output_tokens }) => output_tokens ?? 0);
  return {
    succeeded: successful.length,
    failed: errored.length,
    answer_tokens: tokens.reduce((sum, count) => sum + count, 0) / tokens.length,
    report: `${said.slice(-4000)}\n${JSON.stringify(errored).slice(0, 4000)}`,
  };
}

interface GuidellmReport {
  benchmarks: {
    requests: {
      successful: { output_tokens: number | null }[];
      errored: unknown[];
    };
  }[];
}

/** https://github.com/ai-dynamo/aiperf: streams of chats or completions, with the usage that servers tell. */
export async function aiperf(
  { bin }: ClientTools,
  target: Target,
  load: Load,
  endpoint: 'chat' | 'completions',
  more: readonly string[] = [],
): Promise<Measured> {
  const folder = folderIn(target, 'aiperf');
  const { url, key, model, tokenizer } = target;
  const said = await run(
    [
      ...[join(bin, 'aiperf'), 'profile', '--model', model, '--url', url, '--api-key', key],
      ...['--endpoint-type', endpoint, '--streaming', '--tokenizer', tokenizer, '--ui', 'none'],
      ...['--concurrency', '2', '--request-count', String(load.requests), '--workers-max', '1'],
      ...['--isl', String(load.prompt_tokens), '--osl', String(load.answer_tokens)],
      ...['--extra-inputs', JSON.stringify({ ignore_eos: true, min_tokens: load.answer_tokens })],
      ...['--no-gpu-telemetry', '--output-artifact-dir', folder, ...more],
    ],
    target,
    // Offline it looks for tokenizers in the cache alone, and not in folders.
    { HF_HUB_OFFLINE: undefined },
  );
  const file = readdirSync(folder, { recursive: true, encoding: 'utf8' }).find((name) =>
    name.endsWith('profile_export_aiperf.json'),
  );
  const text = readFileSync(join(folder, file!), 'utf8');
  const report = JSON.parse(text) as AiperfReport;
  return {
    succeeded: report.request_count?.avg ?? 0,
    failed: report.error_request_count?.avg ?? 0,
    answer_tokens: report.output_sequence_length?.avg ?? 0,
    report: `${said.slice(-4000)}\n${text.slice(0, 4000)}`,
  };
}

type AiperfFigure = { avg: number } | null | undefined;

interface AiperfReport {
  request_count: AiperfFigure;
  error_request_count: AiperfFigure;
  output_sequence_length: AiperfFigure;
}

/** https://docs.vllm.ai/en/latest/cli/bench/serve.html: streams with log-probabilities, or chats. */
export async function vllmBench(
  { vllm_bin }: ClientTools,
  target: Target,
  load: Load,
  backend: 'openai' | 'openai-chat',
  more: readonly string[] = [],
): Promise<Measured> {
  const folder = folderIn(target, 'vllm-bench');
  const { url, model, tokenizer } = target;
  const said = await run(
    [
      ...[join(vllm_bin, 'vllm'), 'bench', 'serve', '--backend', backend, '--base-url', url],
      ...['--endpoint', backend === 'openai' ? '/v1/completions' : '/v1/chat/completions'],
      ...['--model', tokenizer, '--served-model-name', model, '--dataset-name', 'random'],
      ...[
        '--random-input-len',
        String(load.prompt_tokens),
        '--random-output-len',
        String(load.answer_tokens),
      ],
      ...['--num-prompts', String(load.requests), '--max-concurrency', '2', '--temperature', '0'],
      ...['--save-result', '--result-dir', folder, '--result-filename', 'report.json', ...more],
    ],
    target,
  );
  const report = JSON.parse(readFileSync(join(folder, 'report.json'), 'utf8')) as VllmBenchReport;
  return {
    succeeded: report.completed,
    failed: report.failed,
    answer_tokens: report.total_output_tokens / report.completed,
    report: said.slice(-6000),
  };
}

interface VllmBenchReport {
  completed: number;
  failed: number;
  total_output_tokens: number;
}

/** What a task of lm-eval made of one document: of each choice its log-likelihood, or a text. */
export type TaskSample = { filtered_resps: unknown[]; doc_id: number };

/**
 * https://github.com/EleutherAI/lm-evaluation-harness on tasks of the test's own.
 * @param kind as which of its models the server is asked
 * @returns samples of each task, in the order of their documents
 */
export async function lmEval(
  { bin }: ClientTools,
  target: Target,
  kind: 'local-completions' | 'local-chat-completions',
  tasks: readonly string[],
  task_folder: string,
  settings: Readonly<Record<string, string | number | boolean>> = {},
): Promise<Map<string, TaskSample[]>> {
  const folder = folderIn(target, 'lm-eval');
  const chat = kind === 'local-chat-completions';
  const path = chat ? '/v1/chat/completions' : '/v1/completions';
  const model_args = {
    model: target.model,
    base_url: `${target.url}${path}`,
    num_concurrent: 2,
    ...settings,
  };
  await run(
    [
      ...[join(bin, 'lm_eval'), 'run', '--model', kind, '--tasks', tasks.join(',')],
      ...[
        '--model_args',
        Object.entries(model_args)
          .map(([name, value]) => `${name}=${value}`)
          .join(','),
      ],
      ...['--include_path', task_folder, '--output_path', folder, '--log_samples'],
      ...(chat ? ['--apply_chat_template'] : []),
    ],
    target,
  );
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  return new Map(
    tasks.map((task) => {
      const file = files.find((name) => name.includes(`samples_${task}_`));
      if (file === undefined) throw new Error(`lm-eval wrote no samples of ${task}: ${files.join(', ')}`);
      const lines = readFileSync(join(folder, file), 'utf8').trim().split('\n');
      const samples = lines.map((line) => JSON.parse(line) as TaskSample);
      return [task, samples.sort((a, b) => a.doc_id - b.doc_id)];
    }),
  );
}
