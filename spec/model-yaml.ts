/**
 * The schema of `model.yaml`: what a person asks for. One file may hold several models. Every key is
 * described here once; docs/model-yaml.md and `hpcserve init` take their words from these descriptions.
 */
import { z } from 'zod';
import { askedParsersSchema } from './answer-parsers.ts';
import { kernelChoices } from './engine-contract.ts';
import { devicesSchema, poolsSchema } from './model-pools.ts';
import { scalingSchema } from './scaling.ts';
import { scavengerSchema } from './scavenging.ts';
import { shareSchema } from './site-share.ts';
import { durationText } from './site-words.ts';

export const engineNames = [
  'auto',
  'native',
  'vllm',
  'sglang',
  'llama.cpp',
  'lmdeploy',
  'tensorrt-llm',
  'tgi',
  'transformers',
  'ollama',
  'command',
] as const;
export type EngineName = (typeof engineNames)[number];

/** Served names travel in URLs, file names, Slurm comments and metrics: a small alphabet, no surprises. */
const servedName = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._/-]{0,95}$/,
    'letters, digits, ".", "_", "-" and "/", at most 96, starting with a letter or digit',
  );
const deploymentName = z
  .string()
  .regex(
    /^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$/,
    'lower-case letters, digits and "-", at most 40, no "-" at either end',
  );
/** Environment names as POSIX has them. */
const environment = z.record(
  z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'a POSIX environment name'),
  z.string(),
);

const stageRangeSchema = z
  .strictObject({
    stages_min: z
      .int()
      .min(1)
      .describe('Fewest stages. Lower: shorter ways where little comes, larger stages to load.'),
    stages_max: z
      .int()
      .min(2)
      .max(64)
      .describe('Most stages, and the devices that the job has. Higher: more requests at once in bursts.'),
  })
  .refine(({ stages_min, stages_max }) => stages_min < stages_max, {
    error: 'stages_max must be more than stages_min; where both are the same, give that number alone',
  });

const parallelSchema = z.strictObject({
  tensor: z
    .union([z.int().min(1), z.literal('auto')])
    .default('auto')
    .describe(
      'Tensor-parallel degree: devices of one node that a replica is split over inside a layer. auto: the plan chooses.',
    ),
  pipeline: z
    .union([z.int().min(1), stageRangeSchema])
    .default(1)
    .describe(
      'Pipeline stages: contiguous ranges of layers, one device group each. Where a node has too few devices for all, they are divided over several (native, vLLM, SGLang, command). The native engine has one device a stage; with { stages_min, stages_max } its job has devices for the most of them, or its jobs together; where no other model is on them it loads as the most, and the keeper chooses between the two as requests come.',
    ),
  jobs: z
    .int()
    .min(2)
    .max(64)
    .optional()
    .describe(
      'Over so many jobs, of one node each, the devices of a replica are divided evenly, and the stages that it begins with: small jobs start where a large one waits, and one that ends is replaced alone. The first one has the requests. Default: one job, on as few nodes as have the devices.',
    ),
  lenders: z
    .enum(['scavenger'])
    .optional()
    .describe(
      'With jobs: those of later stages run on nodes of this tier: with devices like those of the first one where there are such, else with others that devices.kind and devices.models allow, and a share of the layers that suits their speed and memory. When one of them is taken away the others keep their weights and KV, and while it is away the replica computes with fewer stages where they fit, and waits where not. Default: nodes like those of the first job.',
    ),
});

/** Numbers of stages that the pipelines of a model may have; the same twice where model.yaml gives one. */
export function stageBounds({ parallel: { pipeline } }: Pick<ModelSpec, 'parallel'>): {
  stages_min: number;
  stages_max: number;
} {
  return typeof pipeline === 'number' ? { stages_min: pipeline, stages_max: pipeline } : pipeline;
}

/** The granularities between two numbers of stages: each has twice the stages of the one before, up to the most. */
export function stageCounts({ stages_min, stages_max }: ReturnType<typeof stageBounds>): number[] {
  const counts: number[] = [];
  for (let stages = stages_min; stages < stages_max; stages *= 2) counts.push(stages);
  return [...counts, stages_max];
}

/** Why the stages of a model cannot be divided over the jobs that it asks for; undefined where they can. */
function contradictsJobs(model: ModelSpec, overSites: boolean): string | undefined {
  const { jobs, lenders } = model.parallel;
  if (jobs === undefined)
    return lenders && 'lenders are the jobs of later stages: say jobs, or leave out lenders';
  const { stages_max } = stageBounds(model);
  if (stages_max % jobs !== 0) return `${stages_max} stages cannot be divided evenly over ${jobs} jobs`;
  if (overSites) return 'the jobs of a replica are of one site: give site, and not sites';
  if (model.scaling !== undefined) return 'replicas that follow demand are one job each: leave out scaling';
  if (model.scavenger.replicas > 0)
    return 'replicas on idle nodes are one job each: leave out scavenger.replicas';
  return undefined;
}

/** What a model with pools cannot have beside them, by where it stands; undefined where nothing is wrong. */
function contradictsPools(
  model: ModelSpec,
  overSites: boolean,
): { at: string[]; message: string } | undefined {
  const { pools, replicas, engine, parallel, weights, scaling, scavenger, min_stable_replicas } = model;
  if (pools === undefined) return undefined;
  const wrong = (message: string, ...at: string[]) => ({ at, message });
  if (replicas !== 1)
    return wrong(
      'pools say how many replicas there are: leave out replicas, and write pools.prefill.replicas and pools.decode.replicas',
      'replicas',
    );
  if (engine !== 'auto' && engine !== 'native')
    return wrong(
      `pools are of the native engine, and engine is ${engine}: write engine: native, or replicas in place of pools`,
      'engine',
    );
  if (parallel.pipeline !== 1 || (parallel.tensor !== 'auto' && parallel.tensor > 1))
    return wrong(
      'a replica of a pool is whole on one device, since KV that is spread over stages does not move: leave out parallel, or write replicas in place of pools',
      'parallel',
    );
  if (weights !== 'resident')
    return wrong(
      'replicas of pools keep their weights on their devices: leave out weights, or write replicas in place of pools',
      'weights',
    );
  if (scaling !== undefined)
    return wrong(
      'the replicas of pools do not follow demand: leave out scaling, or write replicas in place of pools',
      'scaling',
    );
  if (scavenger.replicas > 0)
    return wrong(
      'replicas on idle nodes belong to no pool: leave out scavenger.replicas',
      'scavenger',
      'replicas',
    );
  if (min_stable_replicas > 0)
    return wrong(
      'write tier: stable, or leave out min_stable_replicas: it counts replicas without pools',
      'min_stable_replicas',
    );
  if (overSites) return wrong('KV of pools travels within one site: give site, and not sites', 'pools');
  return undefined;
}

const hostName = z
  .string()
  .regex(
    /^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/,
    'a host name in lower case, without scheme, port or wildcard',
  );

const workloadSchema = z.strictObject({
  rate_per_s: z.number().positive().max(1e6).describe('Requests per second, over all replicas.'),
  input_tokens: z.number().min(1).max(1e7).describe('Mean prompt length, in tokens.'),
  output_tokens: z.number().min(1).max(1e7).describe('Mean answer length, in tokens.'),
});

/** What a plan is good at; see docs/solver.md for what each costs. */
export const objectiveNames = ['slo', 'latency', 'gpu-hours', 'energy'] as const;
export type Objective = (typeof objectiveNames)[number];

const seconds = z
  .number()
  .positive()
  .max(7 * 86_400);

const timeoutsSchema = z.strictObject({
  first_token_s: seconds
    .default(600)
    .describe(
      'Until a streamed answer begins, its wait for a place included; then it is asked of another replica. Lower: sooner; higher: outlives long queues and prompts.',
    ),
  between_tokens_s: seconds
    .default(120)
    .describe('The same between two tokens. Lower: sooner; higher: outlives long prompts of others.'),
  total_s: seconds
    .optional()
    .describe(
      'Whole answer; at its end the client gets an error. Default: 3600, and 14400 where the model reasons.',
    ),
  health_s: seconds
    .default(45)
    .describe(
      'Until a wrapped engine that answers no health check, and does not work either, is started again: three checks, each a ninth of it after the one before and waited for two ninths. Lower: sooner; higher: tolerates a busy server.',
    ),
  stall_s: seconds
    .default(300)
    .describe(
      'Until a wrapped engine that computes nothing while requests run, or stays stalled, is started again, and a device worker is given up; native: or 20 times its longest iteration so far, where that is more. Lower: sooner; higher: tolerates long prompts.',
    ),
});

const modelShape = z.strictObject({
  name: servedName.describe('The name clients put into "model".'),
  aliases: z
    .array(servedName)
    .default([])
    .describe(
      'Further names. Models may share one: the gateway then chooses one that keeps its slo, else the least loaded.',
    ),
  source: z
    .string()
    .min(1)
    .describe(
      'A GGUF file, a Hugging Face folder, hf:org/name from an offline cache, or alias:NAME of the site config. Relative paths start at the YAML file.',
    ),
  engine: z
    .enum(engineNames)
    .default('auto')
    .describe('What computes tokens; auto chooses by device and model and says why.'),
  engine_args: z
    .array(z.string())
    .default([])
    .describe('Extra arguments for a wrapped engine, verbatim, one list entry each.'),
  command: z
    .array(z.string())
    .min(1)
    .optional()
    .describe(
      'With engine: command, the OpenAI-compatible server to start. {port}, {host}, {socket}, {model} and {served_name} are filled in; on several nodes {rank}, {nodes}, {leader_host} and {leader_port} too. The key comes in $HPCSERVE_ENGINE_KEY.',
    ),
  environment: environment
    .default({})
    .describe('Environment of the engine process. No secrets: use environment_files.'),
  environment_files: z
    .array(z.string())
    .default([])
    .describe(
      'Files of NAME=value lines, readable by you alone, read on the compute node. Relative paths start at the YAML file.',
    ),
  chat_template: z
    .string()
    .optional()
    .describe(
      'A Jinja file that replaces the template of the model. A relative path starts at the YAML file.',
    ),
  context_tokens: z
    .int()
    .min(16)
    .optional()
    .describe(
      'Longest prompt plus answer, in tokens. Default: what the model was trained for, as far as memory allows, or 8192 where its files do not say it; at most 8192 with native, llama.cpp and ollama, which reserve memory for it.',
    ),
  precision: z
    .string()
    .default('auto')
    .describe(
      'Weight precision a wrapped engine is asked for (bf16, fp8, awq, …); native takes the file as it is.',
    ),
  precision_choices: z
    .array(z.string())
    .default([])
    .describe('Further precisions the plan may choose for a wrapped engine, best first (such as [fp8]).'),
  kv_type: z.enum(['f16', 'q8_0', 'f32']).default('f16').describe('KV-cache precision of the native engine.'),
  replicas: z
    .union([z.int().min(0).max(4096), z.literal('auto')])
    .default(1)
    .describe(
      'Running copies (the data-parallel degree). auto: as many as the workload needs; 1 where no workload is given or measured.',
    ),
  pools: poolsSchema
    .optional()
    .describe(
      'Instead of replicas: some compute prompts and others go on with the answers, whose KV they are sent (native engine, whole on one device); see docs/pools.md.',
    ),
  min_stable_replicas: z
    .int()
    .min(0)
    .max(4096)
    .default(0)
    .describe(
      'Of the replicas, so many at least run on stable nodes; the others may run on scavenger nodes.',
    ),
  workload: workloadSchema
    .optional()
    .describe(
      'What is expected to arrive. Default: what the gateways measured, else an assumption that the plan states.',
    ),
  parallel: parallelSchema.prefault({}).describe('How one replica is split over devices.'),
  devices: devicesSchema.prefault({}),
  cpu_threads: z
    .int()
    .min(1)
    .optional()
    .describe('Compute threads of a replica on a CPU device. Default: the cores of the device.'),
  max_sequences: z
    .int()
    .min(1)
    .max(4096)
    .optional()
    .describe(
      'Sequences that decode together. Higher: more throughput, slower tokens. Default: 16 (native, llama.cpp, ollama); other engines choose for themselves.',
    ),
  prefill_chunk_tokens: z
    .int()
    .min(16)
    .max(65_536)
    .optional()
    .describe(
      'Prompt tokens computed in one iteration. Lower: smoother decoding; higher: faster first token. Default: 256 (native; 512 on GPUs and CPUs with AMX); other engines choose for themselves.',
    ),
  kv_tokens: z
    .int()
    .min(16)
    .optional()
    .describe(
      'KV cache over all sequences, in tokens (native, llama.cpp). Default: max_sequences × context_tokens, as far as memory allows; other engines take what the plan gives them of the memory.',
    ),
  weights: z
    .enum(['resident', 'reuse', 'streamed', 'auto'])
    .default('resident')
    .describe(
      'Where weights lie while a model serves. resident: on its device. reuse: there, too, but the memory of such models of a device is counted for two of them, and the others are loaded when they are asked. streamed: in host memory, from where they go through an arena of a few layers with every step: slower tokens, little memory of the device, and a switch between such models loads nothing. auto: resident where the devices hold all, else what the plan finds to take least time (all but resident: native engine, one device a replica; see docs/streaming.md).',
    ),
  latency_sensitivity: z
    .number()
    .positive()
    .max(1e6)
    .default(1)
    .describe(
      'How much a second of loading this model matters beside others, where its tensors lie idle on a device and room is needed (α of Tangram, Eq. 2). Lower: they go sooner; higher: they stay longer (native engine).',
    ),
  batch_invariant: z
    .boolean()
    .optional()
    .describe(
      'Bit-identical answers alone, in any batch and after a failover; slower, unless all matrices are multiplied by our own kernels (native engine). Default: where a replica computes a model by our own kernels alone and they go in one order anyway, which costs 1 to 2% (on AMX those for BF16, on other CPUs all); with `true` every replica does.',
    ),
  kernels: z
    .enum(kernelChoices)
    .default('auto')
    .describe(
      'Whose matrix products compute on CPUs: `auto` the faster ones, as measured there (with batch_invariant ours); `own` ours wherever there are some; `ggml` those of ggml alone (native engine).',
    ),
  reasoning: z
    .boolean()
    .optional()
    .describe('Whether the model reasons before it answers. Default: what its chat template says.'),
  parsers: askedParsersSchema
    .prefault({})
    .describe('How vLLM and SGLang read tool calls and reasoning out of what the model writes.'),
  remote_media: z
    .strictObject({
      domains: z
        .array(hostName)
        .max(64)
        .default([])
        .describe('Host names, each as addresses have it: subdomains are others.'),
    })
    .prefault({})
    .describe(
      'From where a wrapped engine may fetch images, sounds and films that requests name by address. Default: nowhere; what requests hold themselves (data:) passes always.',
    ),
  timeouts: timeoutsSchema.prefault({}),
  slo: z
    .strictObject({
      ttft_ms: z
        .number()
        .positive()
        .optional()
        .describe(
          'Time to first token. Default beside tpot_ms: 2000, or a second per 512 tokens of the prompt.',
        ),
      tpot_ms: z
        .number()
        .positive()
        .optional()
        .describe('Time per output token. Default beside ttft_ms: 250.'),
    })
    .prefault({})
    .describe(
      'A promise. Plans are made for it; the native engine refuses (429, Retry-After) what would break it, and keeps nothing for models without one; so do agents where engines take turns on a device.',
    ),
  tier: z
    .enum(['stable', 'scavenger', 'any'])
    .default('any')
    .describe('Whether replicas may run on preemptible nodes.'),
  scavenger: scavengerSchema.prefault({}),
  scaling: scalingSchema
    .optional()
    .describe(
      'Replicas by demand, beginning with `replicas`; over several sites for all of them together; see docs/lifetimes.md. Default: always `replicas`.',
    ),
});
export const modelSchema = modelShape
  .refine(({ weights, parallel }) => weights === 'resident' || isOneDevice(parallel), {
    error:
      'streamed weights, and those that give way to others, have the memory of one device: parallel must be 1, or weights be resident, where a replica is split',
    path: ['weights'],
  })
  .refine(({ weights, latency_sensitivity }) => weights !== 'streamed' || latency_sensitivity === 1, {
    error: 'it would have no effect: streamed weights are never loaded',
    path: ['latency_sensitivity'],
  });
export type ModelSpec = z.infer<typeof modelSchema>;

function isOneDevice({ tensor, pipeline }: z.infer<typeof parallelSchema>): boolean {
  return pipeline === 1 && (tensor === 1 || tensor === 'auto');
}

/** Slurm settings of one deployment; each overrides the site's default of the same name. */
export const slurmOverridesSchema = z.strictObject({
  partition: z
    .union([z.string(), z.array(z.string())])
    .optional()
    .describe('Partition, or several of which Slurm takes the first that starts.'),
  account: z.string().optional().describe('Account to charge.'),
  qos: z.string().optional().describe('Quality of service.'),
  reservation: z.string().optional(),
  constraint: z.string().optional().describe('Node features, as sbatch --constraint takes them.'),
  exclude: z.string().optional().describe('Nodes not to use.'),
  nodelist: z.string().optional().describe('Nodes to use.'),
  time_limit: durationText
    .optional()
    .describe('Wall time of a job as Slurm writes it: MM, HH:MM:SS or D-HH:MM:SS.'),
  array: z
    .enum(['auto', 'never'])
    .optional()
    .describe('Whether equal jobs are submitted as one job array. Default: slurm.array of the site config.'),
  extra: z.array(z.string()).default([]).describe('Further #SBATCH options, verbatim, one entry each.'),
  remove: z.array(z.string()).default([]).describe('Names of #SBATCH options to leave out (such as --mem).'),
});
export type SlurmOverrides = z.infer<typeof slurmOverridesSchema>;

const deploymentShape = z.strictObject({
  name: deploymentName.describe('Name of the deployment: one per site and user.'),
  site: z
    .string()
    .optional()
    .describe('Site config to use. Default: the configured one, or local where there is no sbatch.'),
  sites: z
    .array(z.string().min(1))
    .min(1)
    .max(16)
    .optional()
    .describe(
      'Instead of site: several sites of one mesh, over which one plan is made; see docs/several-sites.md.',
    ),
  models: z.array(modelSchema).min(1).describe('The models to serve.'),
  objective: z
    .enum(objectiveNames)
    .default('slo')
    .describe(
      'What the plan is for. slo: most requests within slo, then the smallest devices. latency: the least mean latency (LLMFabric, Eq. 1). gpu-hours: the fewest GPUs that keep slo. energy: the fewest watts that keep slo.',
    ),
  budget: z
    .strictObject({
      gpu_hours: z
        .number()
        .positive()
        .optional()
        .describe('GPU-hours the deployment may use in all. Then jobs that end get no successor.'),
    })
    .optional()
    .describe('What it may cost.'),
  slurm: slurmOverridesSchema.prefault({}),
  share: shareSchema
    .optional()
    .describe(
      'Written by `deploy --sites`: what of a deployment over several sites this is. Not for people.',
    ),
});
export const deploymentSchema = deploymentShape
  .refine(({ site, sites }) => site === undefined || sites === undefined, {
    message: 'site and sites contradict each other',
    path: ['sites'],
  })
  .superRefine(({ sites, models }, context) => {
    for (const [index, model] of models.entries()) {
      const message = contradictsJobs(model, sites !== undefined);
      if (message !== undefined)
        context.addIssue({
          code: 'custom',
          message,
          path: ['models', index, 'parallel', model.parallel.jobs === undefined ? 'lenders' : 'jobs'],
        });
      const wrong = contradictsPools(model, sites !== undefined);
      if (wrong !== undefined)
        context.addIssue({ code: 'custom', message: wrong.message, path: ['models', index, ...wrong.at] });
    }
  });
export type DeploymentSpec = z.infer<typeof deploymentSchema>;
