/**
 * The schema of a site config: what one cluster (or this machine) is and how jobs are written for it. Every
 * key is described here once; `hpcserve init` and the documentation take their words from here. Paths may
 * begin with `~` and hold `$NAME`; `spec/site-paths.ts` expands them on the login node.
 */
import { z } from 'zod';
import { gatewaySchema } from './gateway-settings.ts';
import { siteMeshSchema } from './mesh-settings.ts';
import { otelSchema } from './otel-settings.ts';
import { scavengingSchema } from './scavenging.ts';
import { sharingSchema } from './sharing-settings.ts';
import { nodeKindSchema } from './site-nodes.ts';
import { runtimeSchema } from './site-runtime.ts';
import { type SlurmSettings, slurmSchema } from './site-slurm.ts';
import { oneLine, oneWord } from './site-words.ts';

const path = oneLine;
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

const replanSchema = z.strictObject({
  interval_s: z
    .number()
    .min(0)
    .default(600)
    .describe(
      'Seconds between two searches for a better plan. 0: none but for what is lost. Lower: follows load and cluster sooner; higher: fewer moves.',
    ),
  hold_s: z
    .number()
    .min(0)
    .default(120)
    .describe(
      'Seconds for which load or nodes must differ from what the plan was made for. Lower: sooner; higher: a node that reboots and a burst move nothing.',
    ),
  load_factor: z
    .number()
    .min(1.1)
    .max(100)
    .default(1.5)
    .describe(
      'Requests differ when their rate or lengths are so many times what was planned for, or that part of it. Lower: smaller changes count; higher: only large ones do.',
    ),
  gain_min: z
    .number()
    .min(0)
    .max(1)
    .default(0.1)
    .describe(
      'Share of its cost that a new plan must save, its moves counted in. Lower: follows closely; higher: more stays where it is.',
    ),
});

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
            'Folder of the site’s own ggml and llama.cpp libraries, on nodes; with a backend for GPUs among them the native engine is offered on GPUs, too. Default: what `hpcserve native add` put beside the state, else those that came with hpcserve: for CPUs, and for GPUs where its archive was made with `--cuda`.',
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
            'Only you and people you trust can listen on the compute network: KV, and frames between stages of a pipeline, may travel unencrypted.',
          ),
        fabrics: z
          .array(oneWord)
          .optional()
          .describe(
            'Providers of libfabric over which KV and frames of pipelines may travel where private_fabric is set, best first, by the names of `fi_info`. []: none. Default: [cxi, efa, verbs], and shm within a node.',
          ),
        prefer: oneWord
          .optional()
          .describe('Interface name or CIDR that agents announce, such as hsn0 or 10.1.0.0/16.'),
        port_range: z
          .tuple([z.int().min(1024).max(65_535), z.int().min(1024).max(65_535)])
          .optional()
          .describe('Ports agents may listen on, first and last. Default: any free port.'),
        engine_interfaces: z
          .array(oneWord)
          .min(1)
          .optional()
          .describe(
            'Interfaces over which the parts of an engine on several nodes talk, such as [hsn0]: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, where nothing else sets them. Default: the one of the address that the agent announces.',
          ),
      })
      .prefault({})
      .describe('The network between agents and gateway.'),
    mesh: siteMeshSchema.prefault({}).describe('How agents and gateways know of each other.'),
    gateway: gatewaySchema.prefault({}).describe('The front door.'),
    otel: otelSchema.optional().describe('Traces of requests, by OpenTelemetry.'),
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
        lost_after_s: z
          .number()
          .min(0)
          .default(30)
          .describe(
            'Seconds after which a job is ended and replaced whose node gives Slurm no answer while its agent has left the mesh; Slurm itself takes SlurmdTimeout (300 s) for that. Where Slurm hears from the node and the agent alone is gone: after four times as long, two minutes at least. 0: never. Lower: replaced sooner; higher: nodes that come back keep their job.',
          ),
        sites_silent_s: z
          .number()
          .min(10)
          .default(60)
          .describe(
            'Of models that follow demand over several sites: a site that was not heard of for so long is done without, seconds. Lower: its part is taken over sooner; higher: fewer replicas that start because a link was slow.',
          ),
        replan: replanSchema
          .prefault({})
          .describe(
            'When a deployment is planned again. A job that is over and has no node of its kind left is placed elsewhere at once, whatever stands here; see docs/lifetimes.md.',
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
        shared_time_max: z
          .number()
          .min(0)
          .max(1)
          .default(0.5)
          .describe(
            'Replicas of native models share a device as long as all of them together are expected to compute for at most this share of its time. Lower: fewer share, and answers of one disturb the other less; 0: they share only where devices do not suffice. Higher: fewer devices.',
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
