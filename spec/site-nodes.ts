/** Of a site config: the kinds of nodes there are, and what computes on them. */
import { z } from 'zod';
import { gpuRequestSchema, slurmDefaultsSchema } from './site-slurm.ts';
import { duration, oneLine, oneWord, partitions } from './site-words.ts';

const kindName = z.string().regex(/^[a-z0-9][a-z0-9_-]{0,39}$/, 'lower-case letters, digits, "-" and "_"');

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

export const nodeKindSchema = z.strictObject({
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
