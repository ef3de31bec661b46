import { defineErrors } from './define.ts';

/** What can go wrong between us and the compute libraries, and inside the native engine. */
export const engineErrors = defineErrors({
  E_NATIVE_LIBRARY: {
    cause:
      'The ggml or libllama libraries are missing, need a newer C library than this system has, or do not run on this CPU.',
    fix: 'set HPCSERVE_NATIVE_LIBRARIES to a folder with a build for this system, or run inside a container; `hpcserve doctor` names the missing symbol version',
    http_status: 503,
    exit_code: 12,
  },
  E_NATIVE_VERSION: {
    cause:
      'The ggml or libllama libraries are of another version than the bindings; their structs may be laid out differently.',
    fix: 'install the pinned package with `npm ci`, or point HPCSERVE_NATIVE_LIBRARIES to a build of the same version',
    http_status: 503,
    exit_code: 12,
  },
  E_NATIVE_MEMORY: {
    cause:
      'The operating system or a device did not give the memory that weights, KV cache or computation need, or others have a part of it.',
    fix: 'ask for more memory in the job (`--mem`), a smaller kv_tokens, or a smaller model or quantization',
    http_status: 503,
    exit_code: 12,
  },
  E_NATIVE_TOKENIZER: {
    cause: 'libllama could not read a tokenizer from the model file.',
    fix: 'check that the GGUF file carries a tokenizer (tokenizer.ggml.*); convert the model again with its tokenizer',
    http_status: 500,
    exit_code: 4,
  },
  E_NATIVE_GRAMMAR: {
    cause: 'A grammar does not parse, or a token was accepted that the grammar does not allow.',
    fix: 'simplify the JSON schema or grammar of the request',
    http_status: 400,
    exit_code: 11,
  },
  E_NATIVE_REFERENCE: {
    cause: 'libllama refused to load a model, to make a context or to decode a batch.',
    fix: 'set HPCSERVE_NATIVE_LOG=1 to see the library’s own words',
    http_status: 500,
    exit_code: 11,
  },
  E_ENGINE_MODEL: {
    cause: 'The model file is damaged, incomplete, or not what the native engine can compute.',
    fix: 'check the file with `hpcserve model inspect FILE`; models of other architectures run on a wrapped engine',
    http_status: 500,
    exit_code: 4,
  },
  E_ENGINE_OPTIONS: {
    cause:
      'The engine was asked for something impossible: sizes of zero, a stage outside the model, or the like.',
    fix: 'correct the engine options in model.yaml',
    http_status: 500,
    exit_code: 3,
  },
  E_ENGINE_SEQUENCE: {
    cause:
      'A request can never fit: it is longer than the context or than the whole KV cache, or repeats a live id.',
    fix: 'shorten the prompt or max_tokens, or deploy with a larger context_tokens and kv_tokens',
    http_status: 400,
    exit_code: 11,
  },
  E_NATIVE_KERNEL: {
    cause:
      'A kernel of the compute library gives wrong numbers on this CPU: a few rows that every worker tries before it serves came out otherwise than they should. Or a GPU has no kernel for an operator, or one whose results differ from those of the CPU when it is tried, so that the CPU computes it instead.',
    fix: 'nothing, where other kernels take its place: answers are right and slower; else run on another kind of node, set native.library_dir to a build for this CPU, or change the version of the GPU’s driver, and report the device and the kernel',
    http_status: 503,
    exit_code: 11,
  },
  E_ENGINE_NUMBERS: {
    cause:
      'An iteration of the native engine gave logits or hidden states that are no numbers (NaN or infinite). The model is taken out of service, so that its requests go to other replicas.',
    fix: 'check the model file with `hpcserve model inspect FILE`; where other replicas of the same file answer, its node is at fault: exclude it, and report CPU and model type',
    http_status: 503,
    exit_code: 11,
  },
  E_ENGINE_COMPUTE: {
    cause: 'The compute library reported a failure in the middle of an iteration.',
    fix: 'see the agent’s log; the worker restarts its engine and the gateway retries elsewhere',
    http_status: 503,
    exit_code: 11,
  },
  E_DEVICE_FAILED: {
    cause:
      'A GPU reported a failure in the middle of an iteration: nothing that its worker has there can be trusted any more. The worker ends, and its requests go on elsewhere.',
    fix: 'nothing, where its worker serves again: it is started anew; else exclude the node, and see what its driver says (`dmesg`, `nvidia-smi -q`)',
    http_status: 503,
    exit_code: 11,
  },
  E_STAGE_FABRIC: {
    cause:
      'Two stages on two nodes may use a fabric, and a provider of it does not work. Frames take another one, or pass both agents, which is slower.',
    fix: 'see what libfabric says (`fi_info`, FI_LOG_LEVEL=warn), the limit on locked memory (`ulimit -l`), and whether both jobs may use the fabric',
    http_status: 503,
    exit_code: 12,
  },
  E_STAGE_FRAME: {
    cause:
      'A stage of a pipeline was sent something that is no frame of its protocol: damaged on its way, or out of order.',
    fix: 'nothing: the pipeline is opened anew and answers go on elsewhere; where it happens again, report it',
    http_status: 503,
    exit_code: 11,
  },
  E_STAGE_LOST: {
    cause:
      'A stage of a pipeline is gone: its process ended, its node failed, the way to it broke, or what it computed failed.',
    fix: 'nothing: answers go on at other replicas, and the pipeline serves again once the stage is back; its worker’s log says why it went',
    http_status: 503,
    exit_code: 11,
  },
  E_STAGE_MISMATCH: {
    cause:
      'The stages of a pipeline do not fit together: another model file, other operators, two of them on one device, two versions of hpcserve.',
    fix: 'make sure that all nodes see the same model file and the same hpcserve, and deploy again so that all stages come from one plan',
    http_status: 503,
    exit_code: 12,
  },
  E_REFACTOR_LAYOUT: {
    cause:
      'The stages that a pipeline was to be changed to are no layout of its model: blocks are missing or there twice, two stages are on one device, or the first stage is not where the requests are.',
    fix: 'name stages that follow one another from block 0 to the last one, each on a device of its own, the first on the device that it is on now',
    http_status: 400,
    exit_code: 2,
  },
  E_REFACTOR_DEVICE: {
    cause:
      'A device cannot take a stage of a pipeline that is to change: no device worker runs on it, its node is not one of the replica or its agent cannot be asked, or it is to go itself.',
    fix: 'name devices that `hpcserve status` shows with a device worker',
    http_status: 409,
    exit_code: 12,
  },
  E_REFACTOR_MODEL: {
    cause:
      'A model cannot change its stages while it serves: it was loaded whole, with memory for keys and values that grows and shrinks, or it does not serve.',
    fix: 'deploy it with `parallel: { pipeline: N }`, or wait until it serves',
    http_status: 409,
    exit_code: 12,
  },
  E_REFACTOR_BUSY: {
    cause: 'The stages of a pipeline change already. One change ends before another begins.',
    fix: 'ask again when it has ended',
    http_status: 409,
    exit_code: 12,
  },
  E_REFACTOR_KEPT: {
    cause:
      'The stages of a pipeline did not change: a device had no memory, loading or copying failed or took too long, a device was lost, it rested and had no room to come back, or somebody cancelled it. The stages that it had serve on, or do once it is back; no request failed by it.',
    fix: 'see the reason below the error; ask again where it was of the moment',
    http_status: 503,
    exit_code: 12,
  },
});
