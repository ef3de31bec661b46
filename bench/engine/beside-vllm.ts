/**
 * Whole servers beside each other: a deployment of the native engine (gateway, node agent, device worker), and vLLM for
 * CPUs with weights in BF16 or of our width, each with all cores, the same clients and a model of the same shape,
 * alternating. While one is asked, the other waits.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { vllmPython } from '../../test/engines/environments.ts';
import { type Endpoint, type Load, put } from '../engines/clients.ts';
import { Deployment } from '../engines/deployment.ts';
import { MissingNeed } from '../need.ts';
import type { BenchOptions, BenchResult } from '../result.ts';
import { median } from '../slurm/median.ts';
import {
  modelFile,
  modelFolder,
  type PeerWeights,
  peerWeights,
  type Quantization,
  quantizations,
  vocabulary_size,
} from './model-files.ts';
import { VllmServer } from './vllm-server.ts';

/** Tokens of prompts and answers: reading, and writing. */
const shapes = [
  { prompt_tokens: 512, answer_tokens: 64 },
  { prompt_tokens: 8, answer_tokens: 128 },
] as const;
const longest_tokens = 640;
const first: Load = { clients: 1, requests: 4, prompt_tokens: 512, answer_tokens: 1 };
/** Of ours against vLLM's in BF16; in weights of our width it is 1. */
const ratio_min: Readonly<Record<Quantization, number>> = { BF16: 1, Q8_0: 1.2, Q4_0: 1.5 };
const ratio_min_of_width = 1;
const peerNames: Readonly<Record<PeerWeights, string>> = {
  bf16: 'vLLM BF16',
  int8: 'vLLM W8A8',
  int4: 'vLLM W4A16',
};
/** Both servers with 2.5 GB of weights, their KV, and what Python takes. Lower: they swap. */
const memory_gib_min = 16;
const replica_memory_gb = 5;

interface Options {
  pairs: number;
  clients: readonly number[];
  chosen: readonly Quantization[];
  peer_weights: PeerWeights;
  /** Keys of model.yaml, and arguments of `vllm serve`, beside those of the bench. */
  model_keys: readonly string[];
  vllm_args: readonly string[];
}

/** @throws MissingNeed where vLLM is not here, or two servers are too much for this machine */
export async function besideVllm({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const options = readOptions(args);
  const { found: python } = vllmPython();
  if (python === undefined)
    throw new MissingNeed(
      'a real vLLM for CPUs is not here',
      'npm run engines -- vllm, or HPCSERVE_TEST_PYTHON that names a Python that has it',
    );
  if (totalmem() < memory_gib_min * 2 ** 30)
    throw new MissingNeed(
      'two servers at once are too much for this machine',
      `run it where there are ${memory_gib_min} GiB of memory`,
    );
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-bench-beside-'));
  try {
    const peerModel = modelFolder(python, options.peer_weights, log);
    log('vLLM: starting it, which takes a minute or two');
    const vllm = await VllmServer.start({
      python,
      model_folder: peerModel,
      context_tokens: longest_tokens,
      args: options.vllm_args,
      folder,
    });
    try {
      const theirs: Endpoint = { servers: [vllm.server], model: peerModel };
      await warm(theirs, options);
      const results: BenchResult[] = [];
      for (const quantization of options.chosen)
        results.push(...(await compare(quantization, theirs, options, log)));
      return results;
    } finally {
      await vllm.stop();
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      beside: { type: 'string' },
      pairs: { type: 'string', default: '1' },
      clients: { type: 'string', default: '1,16' },
      quantization: { type: 'string', multiple: true, default: [...quantizations] },
      'vllm-weights': { type: 'string', default: peerWeights[0] },
      'model-key': { type: 'string', multiple: true, default: [] },
      'vllm-arg': { type: 'string', multiple: true, default: [] },
    },
  });
  const asked = values.quantization;
  const peer_weights = peerWeights.find((weights) => weights === values['vllm-weights']);
  if (peer_weights === undefined)
    throw new Error(`--vllm-weights is one of ${peerWeights.join(', ')}, not ${values['vllm-weights']}`);
  return {
    pairs: Number(values.pairs),
    clients: values.clients.split(',').map(Number),
    chosen: quantizations.filter((quantization) => asked.includes(quantization)),
    peer_weights,
    model_keys: values['model-key'],
    vllm_args: values['vllm-arg'],
  };
}

async function compare(
  quantization: Quantization,
  theirs: Endpoint,
  options: Options,
  log: (line: string) => void,
): Promise<BenchResult[]> {
  const path = await modelFile(quantization, log);
  const sequences_max = Math.max(...options.clients);
  const model = [
    `source: ${path}`,
    'engine: native',
    `context_tokens: ${longest_tokens}`,
    `max_sequences: ${sequences_max}`,
    `kv_tokens: ${sequences_max * longest_tokens}`,
    `cpu_threads: ${availableParallelism()}`,
    ...options.model_keys,
  ];
  log(`${quantization}: deploying it`);
  await using deployment = await Deployment.open({ model, replicas: 1, memory_gb: replica_memory_gb });
  const ours = deployment.endpoint;
  await warm(ours, options);
  const results = [await firstTokens(quantization, ours, theirs, options.pairs, log)];
  const bar = options.peer_weights === 'bf16' ? ratio_min[quantization] : ratio_min_of_width;
  for (const shape of shapes)
    for (const clients of options.clients) {
      const load = { ...shape, clients, requests: clients, vocabulary: vocabulary_size };
      const what = `${quantization}: ${shape.prompt_tokens} in, ${shape.answer_tokens} out, ${clients} clients`;
      const rounds = await alternate(options.pairs, ours, theirs, load, (out) => out.tokens_per_s);
      results.push(speedRow(what, rounds, bar));
      log(`${what}: ${rounds.map((round) => round.map((speed) => speed.toFixed(1)).join(' / ')).join(', ')}`);
    }
  return results.map((one) => ({ ...one, peer: peerNames[options.peer_weights] }));
}

/** Each kind of load in small: what is compiled or measured at first use is behind it. */
async function warm(endpoint: Endpoint, { clients }: Options): Promise<void> {
  for (const count of clients)
    for (const { prompt_tokens } of shapes)
      await put(endpoint, {
        clients: count,
        requests: count,
        prompt_tokens,
        answer_tokens: 4,
        vocabulary: vocabulary_size,
      });
}

type Outcome = Awaited<ReturnType<typeof put>>;
type Row = Omit<BenchResult, 'peer'>;
/** Ours and theirs. */
type Round = readonly [number, number];

async function alternate(
  pairs: number,
  ours: Endpoint,
  theirs: Endpoint,
  load: Load,
  figure: (outcome: Outcome) => number,
): Promise<Round[]> {
  const rounds: Round[] = [];
  for (let pair = 0; pair < pairs; pair++) {
    const measure = async (endpoint: Endpoint): Promise<number> => figure(await put(endpoint, load));
    if (pair % 2 === 0) rounds.push([await measure(ours), await measure(theirs)]);
    else {
      const other = await measure(theirs);
      rounds.push([await measure(ours), other]);
    }
  }
  return rounds;
}

async function firstTokens(
  quantization: Quantization,
  ours: Endpoint,
  theirs: Endpoint,
  pairs: number,
  log: (line: string) => void,
): Promise<Row> {
  const load = { ...first, vocabulary: vocabulary_size };
  const rounds = await alternate(pairs, ours, theirs, load, ({ ttft_ms }) => median(ttft_ms));
  const ratio = median(rounds.map(([own, other]) => other / own));
  const what = `${quantization}: first token of a prompt of ${first.prompt_tokens}`;
  log(`${what}: ${rounds.map((round) => round.map((ms) => ms.toFixed(0)).join(' / ')).join(', ')} ms`);
  return { ...row(what, 'ms', rounds), ratio, bar: 'no later', holds: ratio >= 1 };
}

function speedRow(what: string, rounds: readonly Round[], bar: number): Row {
  const ratio = median(rounds.map(([own, other]) => own / other));
  return { ...row(what, 'tokens/s', rounds), ratio, bar: `ratio ≥ ${bar}`, holds: ratio >= bar };
}

function row(
  what: string,
  unit: string,
  rounds: readonly Round[],
): Pick<Row, 'what' | 'unit' | 'ours' | 'theirs'> {
  const [ours, theirs] = [0, 1].map((side) => median(rounds.map((round) => round[side]!))) as [
    number,
    number,
  ];
  return { what, unit, ours, theirs };
}
