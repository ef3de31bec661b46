/**
 * vLLM: `vllm serve` (https://docs.vllm.ai/en/latest/cli/serve/). Its key is read from VLLM_API_KEY. What the installed
 * version has of options and parsers is looked for in its sources: `vllm-probe.ts`.
 */
import { join } from 'node:path';
import { kvGibibytes, shareOfAll } from '../../spec/engine-memory.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import { canSleep, sleep_option } from '../../spec/sleeping-engine.ts';
import {
  type AdapterContext,
  type CommandLine,
  type EngineAdapter,
  type EngineProbe,
  type EngineRankPlace,
  loadOf,
  metricSum,
  metricValue,
  option,
  optionIfKnown,
} from './adapter.ts';
import { type ChosenParsers, chooseParsers } from './answer-parsers.ts';
import { isGiven, planned, toldContext } from './engine-args.ts';
import { labelsOf, limitsOf, numberIn, wholeNumber } from './limits.ts';
import { devicesByNumber } from './visible-devices.ts';
import { readVllmProbe, vllmProbeArgv } from './vllm-probe.ts';
import { rayArgv, rayEnvironment } from './vllm-ray.ts';

/** Precisions that are a data type to vLLM; anything else is a quantization method. */
const dtypes: Record<string, string> = {
  bf16: 'bfloat16',
  bfloat16: 'bfloat16',
  f16: 'float16',
  fp16: 'float16',
  float16: 'float16',
  f32: 'float32',
  fp32: 'float32',
  float32: 'float32',
};

const eager_option = '--enforce-eager';

/** A host that is none (RFC 2606). */
const nowhere = 'none.invalid';

function mediaDomains({ remote_media: { domains } }: ModelSpec): readonly string[] {
  return domains.length > 0 ? domains : [nowhere];
}

/** One process a node, without Ray where it can (https://docs.vllm.ai/en/latest/serving/parallelism_scaling/). */
function acrossNodes({ rank, nodes, leader }: EngineRankPlace, byRay: boolean): string[] {
  if (byRay) return ['--distributed-executor-backend', 'ray'];
  return [
    ...['--distributed-executor-backend', 'mp'],
    ...option('--nnodes', nodes),
    ...option('--node-rank', rank),
    ...option('--master-addr', leader.address),
    ...option('--master-port', leader.port),
  ];
}

/** The first rank alone answers. */
function whereItListens(listen: CommandLine['listen'], place: EngineRankPlace | undefined): string[] {
  if (place !== undefined && place.rank > 0) return ['--headless'];
  return listen.kind === 'socket'
    ? ['--uds', listen.path]
    : ['--host', '127.0.0.1', '--port', String(listen.port)];
}

/** What the agent asks several times a second: not worth a line of the log each. */
const own_questions = '/health,/metrics';

/** Up to 0.8, a parser of reasoning is used where another option says so, too. */
function forAnswers({ tools, reasoning }: ChosenParsers, probed: EngineProbe | undefined): string[] {
  return [
    ...(tools === undefined ? [] : ['--enable-auto-tool-choice', '--tool-call-parser', tools]),
    ...(reasoning === undefined ? [] : optionIfKnown(probed, '--enable-reasoning')),
    ...option('--reasoning-parser', reasoning),
  ];
}

/**
 * The paths that put it to sleep come with others that run what they are told to, and none of them asks for the key.
 */
function cannotSleep({ name }: ModelSpec): HpcserveError {
  return new HpcserveError('E_AGENT_ENGINE_OPTION', {
    what: `${name}: this vLLM cannot be put to sleep safely`,
    because: 'it listens on a port of the node, where others could reach the paths for it without a key',
    try: `use a version that has --uds, or remove ${sleep_option} from engine_args`,
  });
}

/**
 * On CPUs, what a later stage gets from the one before is made ready only where the model is compiled.
 * @throws HpcserveError E_AGENT_ENGINE_OPTION where it would end at its first request
 */
function checkStages({ model, pipeline }: UnitSpec, version: string | undefined): void {
  if (pipeline < 2 || !isGiven(model.engine_args, [eager_option]) || !isFrom(version, 32)) return;
  throw new HpcserveError('E_AGENT_ENGINE_OPTION', {
    what: `${model.name}: vLLM ${version} on CPUs ends at the first request where a pipeline is not compiled`,
    because: `engine_args has ${eager_option}, and parallel.pipeline is more than 1`,
    try: `remove ${eager_option} from engine_args, or split it by parallel.tensor alone`,
  });
}

/** Whether it is 0.`minor`, or later; where no version is known, it is not. */
function isFrom(version: string | undefined, minor_min: number): boolean {
  const [major = 0, minor = 0] = (version ?? '').split('.').map((part) => Number.parseInt(part, 10) || 0);
  return major > 0 || minor >= minor_min;
}

/** Ways to say how much memory it takes. */
const memory_options = [
  '--gpu-memory-utilization',
  '--kv-cache-memory-bytes',
  '--num-gpu-blocks-override',
] as const;
const cpu_kv_variable = 'VLLM_CPU_KVCACHE_SPACE';

/**
 * What the plan gave it. On GPUs a share of the device. On CPUs the KV cache alone: a share would be one of the whole
 * node's memory, whoever else is there. Versions from 0.30 on take it in bytes, those before in whole GiB of the
 * environment, which every version obeys first.
 */
function memoryOf(
  unit: UnitSpec,
  onCpu: boolean,
  version: string | undefined,
): { options: string[]; env: Record<string, string> } {
  const { model, memory } = unit;
  if (!onCpu) return { options: planned(unit, memory_options, shareOfAll(unit)), env: {} };
  const own = isGiven(model.engine_args, memory_options) || model.environment[cpu_kv_variable] !== undefined;
  if (memory === undefined || own) return { options: [], env: {} };
  return isFrom(version, 30)
    ? { options: ['--kv-cache-memory-bytes', String(memory.kv_bytes)], env: {} }
    : { options: [], env: { [cpu_kv_variable]: String(kvGibibytes(unit)) } };
}

/** Tokens of its KV cache, as the labels of its configuration say. */
function cacheTokens(metrics: string): number | undefined {
  const labels = labelsOf(metrics, 'vllm:cache_config_info');
  const told = wholeNumber(labels?.get('kv_cache_size_tokens'));
  if (told !== undefined) return told;
  const [blocks, size] = ['num_gpu_blocks', 'block_size'].map((name) => wholeNumber(labels?.get(name)));
  return blocks === undefined || size === undefined ? undefined : blocks * size;
}

function prefixCaching(metrics: string): boolean | undefined {
  const value = labelsOf(metrics, 'vllm:cache_config_info')?.get('enable_prefix_caching');
  return value === undefined ? undefined : value === 'True';
}

/**
 * One list of cores a rank, one hardware thread of each physical core, as vLLM's page on CPUs advises
 * (https://docs.vllm.ai/en/latest/getting_started/installation/cpu/). Its scheduler is a process of its own, which
 * never rests while requests run: one physical core is left to it and to the server, as vLLM does by itself.
 */
function threadLists(ranks: number, cores: readonly (readonly number[])[]): string | undefined {
  const reserved = cores.length > ranks ? 1 : 0;
  const computing = cores.slice(0, cores.length - reserved).map(([first]) => first!);
  if (computing.length < ranks) return undefined;
  const bounds = Array.from({ length: ranks + 1 }, (_, rank) =>
    Math.floor((rank * computing.length) / ranks),
  );
  return bounds
    .slice(1)
    .map((end, rank) => computing.slice(bounds[rank], end).join(','))
    .join('|');
}

const kv_events_option = '--kv-events-config';

/**
 * Whether it is told to publish what its KV cache holds. Its ranks of data parallelism would need a port each, and
 * whoever has the events sent elsewhere has a reason. Before 0.21 it then kept all tokens of layers with a window, and
 * did not start with layers that have a state (vllm issue 49537): what the plan counts on must be so.
 */
function tellsBlocks({ model }: UnitSpec, { probed, place }: AdapterContext): boolean {
  if (place !== undefined || !probed?.unix_socket || probed.options?.has(kv_events_option) !== true)
    return false;
  if (!isFrom(probed.version, 21)) return false;
  const { engine_args } = model;
  // `-dp`, and whatever else argparse takes for one of these options.
  if (engine_args.some((word) => /^(--data[-_]parallel|-dp)/.test(word))) return false;
  return !isGiven(engine_args, [kv_events_option, '--no-enable-prefix-caching']);
}

/** At a socket in a folder of ours alone: ZeroMQ knows no key. */
function kvEventsConfig(path: string): string {
  return JSON.stringify({ enable_kv_cache_events: true, publisher: 'zmq', endpoint: `ipc://${path}` });
}

/** Without `--enable-prompt-tokens-details`, answers do not say what was found in its cache. */
function whatItTells(probed: EngineProbe | undefined, kv_events: string | undefined): string[] {
  return [
    ...optionIfKnown(probed, '--disable-access-log-for-endpoints', own_questions),
    ...optionIfKnown(probed, '--enable-prompt-tokens-details'),
    ...(kv_events === undefined ? [] : [kv_events_option, kvEventsConfig(kv_events)]),
  ];
}

export const vllm: EngineAdapter = {
  name: 'vllm',
  readiness_path: '/health',
  metrics_path: '/metrics',
  detokenize_path: '/detokenize',
  tokenize_path: '/tokenize',
  // https://docs.vllm.ai/en/latest/usage/security.html: its key is asked for below /v1 alone.
  takes_cache_salt: true,
  open_paths: ['/invocations', '/pooling', '/score', '/rerank', '/tokenize', '/detokenize', '/metrics'],

  probeArgv: vllmProbeArgv,
  parseProbe: readVllmProbe,

  threadEnvironment(unit, cores) {
    // One for each rank of this node: vLLM ends where it is given more.
    const lists = threadLists((unit.tensor * unit.pipeline) / (unit.nodes ?? 1), cores);
    // More ranks than cores: they share all of them, as the system places them.
    return { VLLM_CPU_OMP_THREADS_BIND: lists ?? 'nobind' };
  },

  commandLine(unit, context) {
    const { model } = unit;
    const { place } = context;
    const socket = join(context.runtime_folder, 'engine.sock');
    const listen = context.probed?.unix_socket
      ? ({ kind: 'socket', path: socket } as const)
      : ({ kind: 'loopback', port: context.port } as const);
    const dtype = dtypes[model.precision];
    const onCpu = unit.device_kind === 'cpu' || context.emulated;
    const memory = memoryOf(unit, onCpu, context.probed?.version);
    const sleeps = canSleep(unit.engine, model);
    const kv_events = tellsBlocks(unit, context) ? join(context.runtime_folder, 'kv.sock') : undefined;
    const parsers = chooseParsers(unit, context.probed);
    const byRay = place !== undefined && context.probed?.options?.has('--nnodes') === false;
    const ray = byRay ? rayEnvironment(context.key) : {};
    if (sleeps && listen.kind !== 'socket') throw cannotSleep(model);
    if (onCpu) checkStages(unit, context.probed?.version);
    const argv = [
      ...context.engine_prefix,
      ...(byRay ? rayArgv(place) : []),
      'vllm',
      'serve',
      unit.model_path,
      '--served-model-name',
      model.name,
      ...model.aliases,
      ...whereItListens(listen, place),
      ...option('--tensor-parallel-size', unit.tensor),
      ...option('--pipeline-parallel-size', unit.pipeline),
      ...(place === undefined ? [] : acrossNodes(place, byRay)),
      ...planned(unit, ['--max-model-len'], toldContext(unit)),
      ...planned(unit, ['--max-num-seqs'], model.max_sequences),
      ...planned(unit, ['--max-num-batched-tokens'], model.prefill_chunk_tokens),
      ...memory.options,
      ...option('--dtype', dtype),
      ...(model.precision !== 'auto' && dtype === undefined ? option('--quantization', model.precision) : []),
      ...option('--chat-template', model.chat_template),
      // The agent refuses the others; its list must not be empty, which would mean all hosts.
      ...optionIfKnown(context.probed, '--allowed-media-domains', ...mediaDomains(model)),
      ...(place !== undefined && place.rank > 0 ? [] : forAnswers(parsers, context.probed)),
      ...whatItTells(context.probed, kv_events),
      ...model.engine_args,
    ];
    return {
      // Ray gives the others their work.
      argv: byRay && place.rank > 0 ? [...context.engine_prefix, ...rayArgv(place)] : argv,
      listen,
      env: {
        VLLM_API_KEY: context.key,
        ...ray,
        ...memory.env,
        // Its ranks talk to each other over TCP: those of one node on loopback, where nobody else's node reaches.
        VLLM_HOST_IP: place?.own_address ?? '127.0.0.1',
        VLLM_NO_USAGE_STATS: '1',
        // A host that is allowed must not send it to one that is not.
        VLLM_MEDIA_URL_ALLOW_REDIRECTS: '0',
        ...(sleeps && { VLLM_SERVER_DEV_MODE: '1' }),
        ...devicesByNumber(unit, context),
      },
      // Level 1: weights wait in host memory, and KV is given up.
      ...(sleeps && (place?.rank ?? 0) === 0 && { sleep: { sleep: '/sleep?level=1', wake: '/wake_up' } }),
      kv_events,
      files: [],
      links: [],
      notices: parsers.notices,
    };
  },

  limit_paths: ['/v1/models', '/metrics'],
  parseLimits([models = '', metrics = ''], log) {
    return limitsOf({
      // It writes the number only where it was told one; without, the plan has its default.
      max_sequences: wholeNumber(/max_num_seqs['"]?\s*[=:]\s*(\d+)/.exec(log)?.[1]),
      kv_tokens: cacheTokens(metrics) ?? wholeNumber(/KV cache size: ([\d,]+) tokens/.exec(log)?.[1]),
      context_tokens: numberIn(models, 'max_model_len'),
      prefix_caching: prefixCaching(metrics),
    });
  },

  parseMetrics(text, unit) {
    const total = cacheTokens(text) ?? unit.kv_tokens;
    const share =
      metricValue(text, 'vllm:kv_cache_usage_perc') ?? metricValue(text, 'vllm:gpu_cache_usage_perc');
    return loadOf({
      running: metricValue(text, 'vllm:num_requests_running'),
      waiting: metricValue(text, 'vllm:num_requests_waiting'),
      kv_tokens_total: total,
      kv_tokens_used: share === undefined ? undefined : Math.round(share * total),
      activity: metricSum(text, ['vllm:prompt_tokens_total', 'vllm:generation_tokens_total']),
      prefix_queried_tokens: metricValue(text, 'vllm:prefix_cache_queries_total'),
      prefix_found_tokens: metricValue(text, 'vllm:prefix_cache_hits_total'),
    });
  },
};
