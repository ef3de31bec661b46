/** Of a site config: what a job finds around it: modules, containers, Python, engines. */
import { z } from 'zod';
import { oneLine, oneWord } from './site-words.ts';

const path = oneLine;
const environmentName = z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'a POSIX environment name');

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

export const runtimeSchema = z.strictObject({
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
