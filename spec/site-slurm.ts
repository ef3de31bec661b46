/** Of a site config: how Slurm is reached, and what every job there asks of it. */
import { z } from 'zod';
import { firecrestSchema } from './firecrest-settings.ts';
import { duration, oneLine, oneWord, partitions } from './site-words.ts';

const path = oneLine;
const optionName = z
  .string()
  .regex(/^(--)?[a-z][a-z-]*$/, 'the long name of an sbatch option, such as --mem');

/** Forms in which sites want GPUs asked for. */
const gpuRequestForms = ['gres', 'gpus-per-node', 'gpus', 'none'] as const;

export const slurmDefaultsSchema = z.strictObject({
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

export const gpuRequestSchema = z.strictObject({
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

export const slurmSchema = z.strictObject({
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
