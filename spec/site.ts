/**
 * The schema of a site config: what one cluster (or this machine) is and how jobs are written for it. Every
 * key is described here once; `hpcserve init` and the documentation take their words from here. Paths may
 * begin with `~` and hold `$NAME`; `spec/site-paths.ts` expands them on the login node.
 */
import { z } from 'zod';
import { firecrestSchema } from './firecrest-settings.ts';
import { gatewaySchema } from './gateway-settings.ts';
import { siteMeshSchema } from './mesh-settings.ts';
import { scavengingSchema } from './scavenging.ts';
import { sharingSchema } from './sharing-settings.ts';
import { duration, oneLine, oneWord, partitions } from './site-words.ts';

const path = oneLine;
const environmentName = z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'a POSIX environment name');
const kindName = z.string().regex(/^[a-z0-9][a-z0-9_-]{0,39}$/, 'lower-case letters, digits, "-" and "_"');
const optionName = z
  .string()
  .regex(/^(--)?[a-z][a-z-]*$/, 'the long name of an sbatch option, such as --mem');

/** Forms in which sites want GPUs asked for. */
const gpuRequestForms = ['gres', 'gpus-per-node', 'gpus', 'none'] as const;

const slurmDefaultsSchema = z.strictObject({
  partition: partitions
    .optional()
    .describe('Partition, or a list of which Slurm takes the first that can start.'),
  account: oneWord
    .optional()
    .describe('Account to charge. Default: $SBATCH_ACCOUNT, else Slurm’s own default.'),
  qos: oneWord.optional().describe('Quality of service.'),
  reservation: oneWord.optional().describe('Reservation to run in.'),
  constraint: oneLine
    .optional()
    .describe('Node features, as sbatch --constraint takes them; added to those of the node kind with "&".'),
  exclude: oneWord.optional().describe('Nodes not to use, in Slurm’s list form.'),
  nodelist: oneWord.optional().describe('Nodes to use, in Slurm’s list form.'),
  time_limit: duration
    .optional()
    .describe('Wall time of a job: MM, HH:MM:SS or D-HH:MM:SS. Default: the partition’s.'),
  exclusive: z.boolean().optional().describe('Ask for whole nodes (--exclusive).'),
  extra: z
    .array(oneLine)
    .default([])
    .describe('Further #SBATCH options, verbatim, one entry each, such as "--hint=nomultithread".'),
  remove: z
    .array(optionName)
    .default([])
    .describe('Options this site does not want, left out of every script, such as --mem.'),
});
export type SlurmDefaults = z.infer<typeof slurmDefaultsSchema>;

const gpuRequestSchema = z.strictObject({
  form: z
    .enum(gpuRequestForms)
    .default('gres')
    .describe(
      'How GPUs are asked for: --gres, --gpus-per-node, --gpus, or none where whole nodes are given.',
    ),
  gres_name: oneWord.default('gpu').describe('Name of the generic resource that stands for a GPU.'),
  with_type: z
    .boolean()
    .default(true)
    .describe('Whether the request names the type (gpu:a100:2) when the node kind has a gres_type.'),
});
export type GpuRequest = z.infer<typeof gpuRequestSchema>;

const sshSchema = z.strictObject({
  host: oneWord.describe('Login node to reach, as after `ssh`: a name of ~/.ssh/config counts.'),
  user: oneWord.optional().describe('User there. Default: as ~/.ssh/config says, else as here.'),
  port: z
    .int()
    .min(1)
    .max(65_535)
    .optional()
    .describe('Port of its ssh server. Default: as ~/.ssh/config says, else 22.'),
  identity_file: path.optional().describe('Private key to use, before those of ~/.ssh/config.'),
  proxy_jump: z
    .array(oneWord)
    .default([])
    .describe(
      'Hosts to go through, nearest first, each as [user@]host[:port]. Default: ProxyJump of ~/.ssh/config.',
    ),
  known_hosts_file: path
    .optional()
    .describe(
      'File the host’s key is checked against; an unknown key is refused. Default: UserKnownHostsFile of ~/.ssh/config, else ~/.ssh/known_hosts.',
    ),
  config_file: path.optional().describe('Instead of ~/.ssh/config and that of the system; as `ssh -F`.'),
});

const slurmSchema = z.strictObject({
  bin_dir: path.optional().describe('Folder of sbatch and its siblings where they are not on PATH.'),
  conf_file: path.optional().describe('slurm.conf, where Slurm’s commands do not find it by themselves.'),
  cluster: oneWord
    .optional()
    .describe(
      'Cluster that commands are sent to, as -M of Slurm’s commands takes it, where slurmdbd knows several. Default: that of slurm.conf.',
    ),
  ssh: sshSchema
    .optional()
    .describe(
      'Run every command on a login node by ssh, from a laptop: hpcserve must be installed there too (runtime.install_dir, else ~/hpcserve).',
    ),
  firecrest: firecrestSchema
    .optional()
    .describe(
      'Talk to Slurm by FirecREST v2 instead of its commands, from a machine that has the state folder but no Slurm.',
    ),
  array: z
    .enum(['auto', 'never'])
    .default('auto')
    .describe(
      'auto: four or more equal jobs of one node are submitted as one job array, where Slurm takes arrays. never: each by itself.',
    ),
  poll_interval_s: z
    .number()
    .min(1)
    .default(30)
    .describe(
      'Seconds between polls; one squeue for all jobs each time. Lower: news sooner, more load on Slurm.',
    ),
  command_timeout_s: z
    .number()
    .min(1)
    .default(60)
    .describe('Seconds a Slurm command may take before Slurm counts as unreachable.'),
  defaults: slurmDefaultsSchema
    .prefault({})
    .describe('What every job asks for unless a node kind or model.yaml says otherwise.'),
  gpu_request: gpuRequestSchema.prefault({}).describe('How GPUs are asked for.'),
  signal_s: z
    .int()
    .min(0)
    .max(65_535)
    .default(120)
    .describe(
      'Seconds before the end at which a job is warned (--signal). Higher: more time to hand requests over, less of the allocation used. 0: no warning.',
    ),
  requeue: z
    .enum(['scavenger', 'always', 'never'])
    .default('scavenger')
    .describe('Which jobs Slurm may put back into the queue after preemption or a node failure.'),
  comment: z
    .boolean()
    .default(true)
    .describe('Mark jobs with --comment=hpcserve:…; off where a site uses the comment for itself.'),
});
export type SlurmSettings = z.infer<typeof slurmSchema>;

const rate = z.number().positive();
export const deviceFiguresSchema = z
  .strictObject({
    tflops: z
      .strictObject({
        fp32: rate.describe('32-bit.'),
        fp16: rate.describe('16-bit (IEEE half).'),
        bf16: rate.describe('16-bit (bfloat16).'),
        fp8: rate.describe('8-bit floating point.'),
        int8: rate.describe('8-bit integer.'),
        fp4: rate.describe('4-bit floating point.'),
      })
      .partial()
      .optional()
      .describe(
        'Peak arithmetic in 10^12 operations per second, dense, without structured sparsity; only what differs.',
      ),
    bandwidth_gb_per_s: rate.optional().describe('Memory bandwidth, in GB/s.'),
    link_gb_per_s: rate
      .optional()
      .describe('What one device can send to the others of its node, one direction, in GB/s.'),
    link_devices: z.int().min(1).optional().describe('How many devices reach each other over that link.'),
    tdp_w: rate.optional().describe('Power limit of one device, in watts.'),
  })
  .describe(
    'What differs from the device catalog, or a device it does not know: a power cap, a slower memory. Plans and their latencies follow it.',
  );
export type DeviceFigures = z.infer<typeof deviceFiguresSchema>;

const deviceSchema = z.strictObject({
  kind: z
    .enum(['gpu', 'cpu', 'mig'])
    .describe('A GPU, a MIG slice, or a CPU socket (or other set of cores).'),
  model: oneLine.describe(
    'Name of the hardware, as the device catalog knows it: A100, GH200, V100, Xeon-8480+.',
  ),
  count: z.int().min(1).describe('How many of it one node has.'),
  memory_gb: z.number().positive().describe('Memory of one device, in GB (10^9 bytes).'),
  cores: z.int().min(1).optional().describe('CPU cores that go with one device. Default: cpus / count.'),
  figures: deviceFiguresSchema.optional(),
  emulated: z
    .literal('cpu')
    .optional()
    .describe('The device is not there: CPU cores stand in for it. Shown as such everywhere.'),
  emulated_step_ms: z
    .number()
    .positive()
    .max(60_000)
    .optional()
    .describe(
      'With emulated: one iteration takes at least so long (native engine), so that several emulated devices have a declared speed whatever the cores behind them do.',
    ),
});
export type DeviceConfig = z.infer<typeof deviceSchema>;

const nodeKindSchema = z.strictObject({
  name: kindName.describe('Name by which model.yaml can ask for it.'),
  description: z.string().optional().describe('For people.'),
  count: z
    .int()
    .min(1)
    .optional()
    .describe('How many such nodes there are; on a local site, how many node agents are started.'),
  partition: partitions
    .optional()
    .describe('Partition(s) with these nodes. Default: slurm.defaults.partition.'),
  features: z
    .array(oneWord)
    .default([])
    .describe('Node features that select this kind; all of them, asked for with --constraint.'),
  gres_type: oneWord.optional().describe('Type of its GPUs in Slurm’s words: a100 in gpu:a100:4.'),
  devices: z
    .array(deviceSchema)
    .default([])
    .describe('What computes on such a node. Empty: what the node agent finds (local sites).'),
  cpus: z.int().min(1).optional().describe('CPUs of a node as Slurm counts them.'),
  memory_gb: z
    .number()
    .positive()
    .optional()
    .describe('Memory of a node that a job may ask for, in GB (10^9 bytes).'),
  architecture: z.enum(['x86_64', 'aarch64']).default('x86_64').describe('Instruction set of its CPUs.'),
  isa: z
    .array(oneWord)
    .default([])
    .describe('CPU extensions that matter, as /proc/cpuinfo names them: avx512_bf16, amx_bf16, sve.'),
  interconnect: z
    .enum(['ethernet', 'infiniband', 'slingshot', 'efa', 'omnipath', 'none'])
    .default('ethernet')
    .describe('Network between the nodes.'),
  tier: z
    .enum(['stable', 'scavenger'])
    .default('stable')
    .describe('scavenger: jobs there may be preempted at any time.'),
  max_time: duration.optional().describe('Longest wall time there. Default: what the partition says.'),
  slurm: slurmDefaultsSchema
    .partial()
    .optional()
    .describe('Slurm settings of this kind; each overrides slurm.defaults.'),
  gpu_request: gpuRequestSchema.optional().describe('How GPUs of this kind are asked for, where it differs.'),
});
export type NodeKind = z.infer<typeof nodeKindSchema>;

const containerRuntimes = ['none', 'apptainer', 'enroot-pyxis', 'podman', 'edf'] as const;

export const containerSchema = z.strictObject({
  runtime: z
    .enum(containerRuntimes)
    .default('none')
    .describe(
      'What runs the container: apptainer, enroot-pyxis (srun --container-image), podman, or edf (srun --environment, CSCS). none: no container.',
    ),
  command: path
    .optional()
    .describe('Program to call where its name differs: singularity, podman-hpc, or a full path.'),
  image: oneLine
    .optional()
    .describe(
      'Image: a .sif file, an enroot image or registry name, a podman image, or an EDF file or name.',
    ),
  binds: z
    .array(oneLine)
    .default([])
    .describe('Folders visible inside, each as SOURCE, SOURCE:TARGET or SOURCE:TARGET:OPTIONS.'),
  flags: z
    .array(oneLine)
    .default([])
    .describe('Further arguments for the container runtime, one entry each, such as --nv, --rocm, --gpu.'),
});
export type ContainerConfig = z.infer<typeof containerSchema>;

const pythonSchema = z.strictObject({
  kind: z.enum(['conda', 'venv']).describe('What is activated before the job’s command.'),
  path: path.describe('Folder of the virtual environment, or name or folder of the conda environment.'),
  conda_base: path
    .optional()
    .describe('Folder of the conda installation (with etc/profile.d/conda.sh), where conda is not on PATH.'),
});

const engineSchema = z.union([
  z.boolean(),
  z.strictObject({
    prefix: z
      .array(oneLine)
      .min(1)
      .describe(
        'Words before the engine’s command, one entry each, such as [apptainer, exec, --nv, /images/vllm.sif].',
      ),
  }),
]);

/** Wrapped engines a site can speak of; `native` comes with hpcserve, `command` with model.yaml. */
const enginesSchema = z.strictObject({
  vllm: engineSchema.optional().describe('vLLM (vllm serve): true, false, or how it is started.'),
  sglang: engineSchema.optional().describe('SGLang (python3 -m sglang.launch_server).'),
  'llama.cpp': engineSchema.optional().describe('llama.cpp’s server (llama-server).'),
  lmdeploy: engineSchema.optional().describe('LMDeploy with TurboMind (lmdeploy serve api_server).'),
  'tensorrt-llm': engineSchema.optional().describe('TensorRT-LLM (trtllm-serve).'),
  tgi: engineSchema.optional().describe('Text Generation Inference (text-generation-launcher).'),
  transformers: engineSchema.optional().describe('Hugging Face transformers serve.'),
  ollama: engineSchema
    .optional()
    .describe('Ollama (ollama serve), in a network namespace of its own; never chosen by engine: auto.'),
});

const runtimeSchema = z.strictObject({
  modules: z.array(oneWord).default([]).describe('Environment modules to load, in order.'),
  module_purge: z.boolean().default(false).describe('Run "module purge" before loading.'),
  module_init: path
    .optional()
    .describe('File that defines "module" in a bash script, where none of the usual places has it.'),
  prologue: z
    .array(z.string())
    .default([])
    .describe('Lines of bash, verbatim, run on the first node before anything is started.'),
  environment: z
    .record(environmentName, z.string().regex(/^[^\u0000]*$/, 'no NUL character'))
    .default({})
    .describe(
      'Environment of everything in the job, taken literally ($ is not expanded). Never secrets: scripts are readable.',
    ),
  container: containerSchema.prefault({}).describe('Container that everything in the job runs in.'),
  python: pythonSchema.optional().describe('conda or venv to activate.'),
  engines: enginesSchema
    .optional()
    .describe(
      'Which wrapped engines a job finds with the modules, container and environment above; those not listed are not there, and engine: auto passes them by. Default: nobody has looked, and auto takes them for there.',
    ),
  remote_media_domains: z
    .array(oneWord)
    .optional()
    .describe(
      'Hosts that models may name in remote_media. Default: any; empty: no engine of the site fetches what requests name.',
    ),
  srun_args: z.array(oneLine).default([]).describe('Further arguments of the srun line, one entry each.'),
  install_dir: path
    .optional()
    .describe('Where compute nodes find hpcserve. Default: the folder this command runs from.'),
  node_path: path
    .optional()
    .describe('Node.js binary on compute nodes. Default: the one this command runs with.'),
});
export type SiteEngine = keyof z.infer<typeof enginesSchema>;
export type RuntimeConfig = z.infer<typeof runtimeSchema>;

const factor = z.number().min(0).max(1000);
/** Shared by plans made without a site. */
export const penaltiesSchema = z.strictObject({
  waiting: factor
    .default(3)
    .describe(
      'A node that is taken now: the replica waits in the queue. Higher: a slower device that is free is taken instead.',
    ),
  wait_horizon_s: z
    .number()
    .positive()
    .default(3600)
    .describe(
      'With queue_wait: a wait this long counts as much as the replica itself. Lower: waiting counts for more.',
    ),
  moving: factor
    .default(0.5)
    .describe('A running replica that would move. Higher: plans change less when things change.'),
  preemptible: factor.default(0.25).describe('A node that may be taken away (tier scavenger).'),
  shortened_kv: factor
    .default(1.5)
    .describe(
      'A KV cache shorter than asked for, by the share that is missing; where the workload is known, its speed is weighed instead.',
    ),
  lower_precision: factor.default(0.05).describe('Each step down in precision_choices.'),
});
export type PlacementPenalties = z.infer<typeof penaltiesSchema>;

export const siteSchema = z
  .strictObject({
    name: z
      .string()
      .regex(/^[a-z0-9][a-z0-9-]{0,39}$/, 'lower-case letters, digits and "-", at most 40')
      .describe('Name of the site; also of its config file.'),
    description: z.string().optional().describe('For people.'),
    kind: z
      .enum(['slurm', 'local'])
      .describe('slurm: jobs are submitted. local: agents run on this machine.'),
    region: oneWord
      .optional()
      .describe(
        'Where the nodes are, such as eu or ch; requests may ask for it (`region` of x-hpcserve-qos).',
      ),
    provider: oneWord.optional().describe('Who offers these nodes to others. Default: the name of the site.'),
    state_dir: path
      .default('~/.hpcserve')
      .describe('Folder for state, on a filesystem that login and compute nodes share.'),
    scratch_dir: path
      .optional()
      .describe('Large shared folder for downloaded models and other data that can be made again.'),
    cache_dir: path
      .optional()
      .describe(
        'Folder for caches of engines and containers, off the home directory. Default: cache in scratch_dir.',
      ),
    models_dir: path
      .optional()
      .describe('Folder in which relative model names and downloads are looked for.'),
    model_aliases: z
      .record(z.string().regex(/^[A-Za-z0-9][A-Za-z0-9._-]*$/, 'letters, digits, ".", "_" and "-"'), oneLine)
      .default({})
      .describe('Names for model sources: model.yaml says alias:NAME.'),
    slurm: slurmSchema.optional().describe('How jobs are submitted (kind: slurm).'),
    node_kinds: z.array(nodeKindSchema).default([]).describe('The kinds of nodes that may be used.'),
    runtime: runtimeSchema.prefault({}).describe('How things start inside a job.'),
    native: z
      .strictObject({
        library_dir: path
          .optional()
          .describe(
            'Folder of the site’s own ggml and llama.cpp libraries. Default: the ones hpcserve brings.',
          ),
      })
      .prefault({})
      .describe('The native engine.'),
    network: z
      .strictObject({
        private_fabric: z
          .boolean()
          .default(false)
          .describe(
            'Only you and people you trust can listen on the compute network: KV may travel unencrypted.',
          ),
        prefer: oneWord
          .optional()
          .describe('Interface name or CIDR that agents announce, such as hsn0 or 10.1.0.0/16.'),
        port_range: z
          .tuple([z.int().min(1024).max(65_535), z.int().min(1024).max(65_535)])
          .optional()
          .describe('Ports agents may listen on, first and last. Default: any free port.'),
      })
      .prefault({})
      .describe('The network between agents and gateway.'),
    mesh: siteMeshSchema.prefault({}).describe('How agents and gateways know of each other.'),
    gateway: gatewaySchema.prefault({}).describe('The front door.'),
    keeper: z
      .strictObject({
        place: z
          .enum(['login', 'job', 'none'])
          .default('login')
          .describe(
            'What looks after deployments when no command does: submits successors before time limits and replaces jobs that ended. login: a process on the machine that deploys, until the last deployment is stopped. job: a process beside the gateway in its job (gateway.place: job), where login nodes forbid long processes; that job is renewed before its time limit. none: nothing; run `hpcserve keep` yourself, or `hpcserve keep --once` from cron.',
          ),
        move_after_s: z
          .number()
          .min(0)
          .default(120)
          .describe(
            'Seconds in the queue after which a job is submitted to nodes of another kind instead, where such that suit it are free. 0: never. Lower: less waiting; higher: fewer changes of mind.',
          ),
      })
      .prefault({})
      .describe('The keeper of deployments.'),
    planning: z
      .strictObject({
        queue_wait: z
          .boolean()
          .default(false)
          .describe(
            'Ask Slurm for each kind of node how long a job would wait (sbatch --test-only), and weigh that. Off: nodes that are taken count as a fixed factor dearer.',
          ),
        penalties: penaltiesSchema
          .prefault({})
          .describe('What counts against an option beside its speed; 0.5 is half as much again.'),
      })
      .prefault({})
      .describe('How plans are made.'),
    sharing: sharingSchema.prefault({}).describe('How native models share a device; see docs/sharing.md.'),
    scavenging: scavengingSchema.prefault({}).describe('Replicas on idle nodes: `hpcserve backfill`.'),
    limits: z
      .strictObject({
        max_jobs: z.int().min(1).default(64).describe('Jobs this tool keeps in the queue at most.'),
        submissions_per_minute: z
          .int()
          .min(1)
          .default(30)
          .describe('Submissions in any minute at most. Lower: kinder to a busy controller.'),
      })
      .prefault({})
      .describe('Manners.'),
  })
  .superRefine((site, context) => {
    if (site.kind === 'local' && site.slurm !== undefined)
      context.addIssue({
        code: 'custom',
        path: ['slurm'],
        message: 'a site of kind local has no Slurm settings',
      });
    if (site.slurm?.ssh !== undefined && site.slurm.firecrest !== undefined)
      context.addIssue({
        code: 'custom',
        path: ['slurm', 'firecrest'],
        message: 'a site is reached by ssh or by FirecREST, not by both',
      });
    if (site.keeper.place === 'job' && site.gateway.place !== 'job')
      context.addIssue({
        code: 'custom',
        path: ['keeper', 'place'],
        message: 'the keeper is in the gateway’s job, and there is none: set gateway.place to job',
      });
    for (const [index, kind] of site.node_kinds.entries())
      if (site.node_kinds.findIndex((other) => other.name === kind.name) < index)
        context.addIssue({
          code: 'custom',
          path: ['node_kinds', index, 'name'],
          message: `two node kinds are named ${kind.name}`,
        });
    const { container } = site.runtime;
    if (container.runtime !== 'none' && container.image === undefined)
      context.addIssue({
        code: 'custom',
        path: ['runtime', 'container', 'runtime'],
        message: `container runtime ${container.runtime} needs an image`,
      });
    const range = site.network.port_range;
    if (range !== undefined && range[0] > range[1])
      context.addIssue({
        code: 'custom',
        path: ['network', 'port_range'],
        message: `the first port, ${range[0]}, is after the last, ${range[1]}`,
      });
  });
export type SiteConfig = z.infer<typeof siteSchema>;
/** As people write it: everything with a default may be absent. */
export type SiteInput = z.input<typeof siteSchema>;

/** Slurm settings of a site; a site of kind slurm that says nothing gets the defaults. */
export function slurmSettings(site: SiteConfig): SlurmSettings {
  return site.slurm ?? slurmSchema.parse({});
}
