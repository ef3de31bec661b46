/**
 * How engines say what ended them, from failures that were recorded: the words of each are in its test. Patterns are
 * of lines without the prefixes of loggers, and so narrow that no line of an engine in order has them.
 */
/**
 * `device`: the device or its driver failed, by an error of its own; nothing that runs there can be trusted, and
 * another process on it may meet the same. That something did not end in time is no such error. `process`: this process
 * cannot do what it was asked to, and another start of it would fail like this one.
 */
export type FatalScope = 'device' | 'process';

export interface RecordedFailure {
  /** Who cannot go on; absent: another start of the same may. */
  scope?: FatalScope;
  /** What happened, in words that follow `because`. */
  what: string;
  test: RegExp;
  /** What people do about it. */
  try: string;
  /** It was an option of its command line that this version does not take. */
  option?: true;
  /** It follows from something that other lines may say: it counts where they say nothing. */
  consequence?: true;
}

const less_memory =
  'ask for less at once (max_sequences, context_tokens or kv_tokens of the model), a smaller precision, or more devices (parallel.tensor)';
const look_at_device =
  'see what the node says of it (dmesg, nvidia-smi -q); deploy again, away from that node (slurm.exclude) if it repeats, and tell the site';
const whole_files =
  'compare the folder with where the model comes from: names and sizes of all files (git-lfs pointers are 130 bytes), and fetch what is missing or cut short again';

const deviceMemory: readonly RecordedFailure[] = [
  {
    scope: 'process',
    what: 'the memory of the device is used up',
    test: /\b(CUDA|HIP) out of memory\b|\b(CUDA|HIP|ROCm|MUSA) error: out of memory\b|\bcudaMalloc failed: out of memory\b|\bhipMalloc failed: out of memory\b|\bCUBLAS_STATUS_ALLOC_FAILED\b|\bCUDA_ERROR_OUT_OF_MEMORY\b/,
    try: less_memory,
  },
  {
    scope: 'process',
    what: 'less of the device’s memory is free than the engine is to take',
    test: /\bFree memory on device.*\bis less than desired GPU memory utilization\b/,
    try: 'see what else has memory of the device (nvidia-smi on the node), or give --gpu-memory-utilization a smaller share in engine_args',
  },
  {
    scope: 'process',
    what: 'no memory is left for KV cache beside the weights',
    test: /\bNo available memory for the cache blocks\b|\bNot enough memory\. Please try (to increase|increasing) --mem-fraction-static\b|\bNot enough memory to handle (the prefill|\d+ prefill tokens)/,
    try: less_memory,
  },
  {
    scope: 'process',
    what: 'the KV cache that fits is shorter than one sequence may be',
    test: /\bmodel(?:'s|s's) max seq len \(\d+\)(?=.*\bKV cache\b)|\bis larger than the maximum number of tokens that can be stored in KV cache\b/i,
    try: 'lower context_tokens of the model to what the line says fits, or give it more memory (parallel.tensor, a smaller precision)',
  },
  {
    scope: 'process',
    what: 'the KV cache ran out while requests were computed',
    test: /\balloc_req_slots runs out of memory\b|\b(Prefill|Decode) out of memory\. Try to lower your batch size\b/,
    try: 'lower max_sequences of the model',
  },
];

const hostMemory: readonly RecordedFailure[] = [
  {
    scope: 'process',
    what: 'less memory of the host is free than the engine is to take',
    test: /\bAvailable memory on node \d+ \([\d./ ]+GiB\) on (startup|kv cache allocation) is less than\b/,
    try: 'ask for less memory (kv_tokens, max_sequences, or --gpu-memory-utilization in engine_args: on CPUs it is the share of the host’s), or for fewer replicas a node',
  },
  {
    scope: 'process',
    what: 'the memory of the host is used up',
    test: /\bDefaultCPUAllocator: (can't allocate memory|not enough memory)\b|\[Errno 12\] Cannot allocate memory|^(std::)?bad_alloc\b|\bstd::bad_alloc\b|^MemoryError\b|\bnumpy\..*_ArrayMemoryError\b|\bfailed to allocate (CPU )?buffer of size \d+|\bunable to allocate (CPU|CUDA_Host) buffer\b/,
    try: 'ask for less (kv_tokens, max_sequences), or for a job with more memory a node',
  },
  {
    scope: 'process',
    what: 'the shared memory of the node (/dev/shm) is full',
    test: /\bunable to (open|allocate|write to|mmap) (shared memory|file <\/torch_\w+>)|\bNo space left on device: '?\/(dev\/shm|psm_)|\bBus error\b.*\bshared memory\b|\bCall to posix_fallocate failed: No space left on device\b/,
    try: 'look at /dev/shm of the node (df -h /dev/shm); in a container, give it that of the host',
  },
  {
    scope: 'process',
    what: 'a disk is full, or its quota is used up',
    test: /\[Errno 28\] No space left on device|\[Errno 122\] Disk quota exceeded|\bno space left on device\b/,
    try: 'make room there, or point caches elsewhere (environment of the model: XDG_CACHE_HOME, VLLM_CACHE_ROOT, TRITON_CACHE_DIR)',
  },
];

const software: readonly RecordedFailure[] = [
  {
    // Of argparse (vLLM, SGLang, LMDeploy), clap (TGI), click and typer (trtllm-serve, transformers), llama.cpp.
    scope: 'process',
    what: 'this version of the engine does not take an option it was given',
    test: /\berror: unrecognized arguments: -|\berror: (argument -.*: (invalid|expected)|ambiguous option: -)|\berror: unexpected argument '-|\berror: invalid value '.*' for '-|\bno such option:? '?-|\berror: invalid argument: -/i,
    try: 'compare engine_args of model.yaml with what this version takes (its --help), or use the version they are for',
    option: true,
  },
  {
    scope: 'process',
    what: 'a library that the engine needs is not found, or is of another version',
    test: /\berror while loading shared libraries: |\bcannot open shared object file: No such file\b|\bundefined symbol: |\bversion `(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found\b/,
    try: 'load the modules that the engine was built with (`runtime` in the site config), or use a container',
  },
  {
    scope: 'process',
    what: 'a package is missing where the engine is installed',
    test: /^(ModuleNotFoundError: )?No module named '|^ModuleNotFoundError: |^ImportError: (?!cannot import name)|^ImportError: cannot import name '/,
    try: 'install it into the environment that `runtime` of the site config names, in the versions that this engine asks for',
  },
  {
    scope: 'process',
    what: 'the driver of the node is too old for this build of the engine',
    test: /\bNVIDIA driver on your system is too old\b|\bCUDA driver version is insufficient for CUDA runtime version\b|\bforward compatibility was attempted on non supported HW\b/,
    try: 'use a build for the CUDA version that nvidia-smi on the node names, or a container with the compatibility libraries',
  },
  {
    scope: 'process',
    what: 'this build of the engine has no code for the device',
    test: /\bno kernel image is available for execution on the device\b|\bPTX was compiled with an unsupported toolchain\b/,
    try: 'use a build for the compute capability of the device, or another device (devices.models)',
  },
  {
    scope: 'process',
    what: 'the engine found no device that it can use',
    test: /\bNo CUDA GPUs are available\b|\bFailed to infer device type\b|\bFound no NVIDIA driver on your system\b|\bCUDA is not available\b|\bNo accelerator \(CUDA, XPU, HPU\b/,
    try: 'check that the job has the device (`hpcserve status`, nvidia-smi on the node), that a container is given it (--nv), and that the build is for it',
  },
  {
    scope: 'process',
    what: 'no compiler is there, which the engine needs to build kernels',
    test: /\bInvalidCxxCompiler\b|\bNo working C\+\+ compiler found\b|\bFailed to find C compiler\b|\bPython\.h: No such file or directory\b|\b(g\+\+|gcc|nvcc|ninja): (command )?not found\b|\bNo such file or directory: '[^']*\b(g\+\+|gcc|nvcc|ninja)'/,
    try: 'load a compiler (modules of `runtime` in the site config), or pass --enforce-eager in engine_args where the engine has it',
  },
];

const model: readonly RecordedFailure[] = [
  {
    scope: 'process',
    what: 'this version of the engine does not know the architecture of the model',
    test: /\bModel architectures \[.*\] (are not supported|failed to be inspected)|\bTransformers does not recognize this architecture\b|\bunknown model architecture: '|\bunsupported model type\b|\bCannot find model module\b|\bhas no vLLM implementation\b|\bUnrecognized configuration class\b|\bUnrecognized model in\b/i,
    try: 'use a version of the engine that lists it, or another engine',
  },
  {
    scope: 'process',
    what: 'the engine does not take this quantization, or not on this device',
    test: /\bquantization method specified in the model config\b.*\bdoes not match\b|\bUnknown quantization method\b|\bquantization method .* is not supported for the current (GPU|platform|device)\b|\bis not supported for quantization method\b|\bquantization is currently not supported in\b|\bCannot find the config file for (awq|gptq|fp8|bitsandbytes)\b|\binvalid choice: '[^']*' \(choose from .*awq/i,
    try: 'set `precision` of the model to what its files are in (auto takes what they say), or choose a device that the line allows',
  },
  {
    scope: 'process',
    what: 'the device does not compute in this precision',
    test: /\bBfloat16 is only supported on GPUs with compute capability of at least\b/,
    try: 'set `precision: f16` of the model, or choose a newer device',
  },
  {
    scope: 'process',
    what: 'context_tokens is more than the model was trained for',
    test: /\bUser-specified max_model_len \(\d+\) is greater than the derived max_model_len\b|\bmax_model_len \(\d+\) is greater than the derived\b/,
    try: 'lower context_tokens of the model to what the line names, or leave it out',
  },
  {
    scope: 'process',
    what: 'the model cannot be split over so many devices',
    test: /\battention heads \(\d+\) must be divisible by tensor parallel size\b|\bis not divisible by (tp_size|tensor parallel|the number of ranks)\b|\bmust be divisible by (the number of )?(tp_size|tensor_parallel_size)\b|\bWorld size \(\d+\) is larger than the number of available GPUs\b|\bnot enough topology domains to bind\b/i,
    try: 'choose another parallel.tensor: the heads of the model must divide by it',
  },
  {
    scope: 'process',
    what: 'weights of the model are missing',
    test: /\bCannot find any model weights with\b|\bno file named .* found in directory\b|\bNo such file or directory: '[^']*\.(safetensors|bin|gguf|pt)'|\bdoes not appear to have a file named\b|\bweights were not initialized from checkpoint\b|\bmissing tensor '|\bNo (safetensors|weights?) (files? )?found\b|\bNo such file or directory: .*model\.safetensors\.index\.json/i,
    try: whole_files,
  },
  {
    scope: 'process',
    what: 'a file of the model is damaged or cut short',
    test: /\bError while deserializing header\b|\bSafetensorError\b|\b(HeaderTooLarge|InvalidHeaderDeserialization|MetadataIncompleteBuffer)\b|\bnot within the file bounds, model is corrupted or incomplete\b|\binvalid magic characters\b|\binvalid GGUF magic\b|\bPytorchStreamReader failed reading\b|\bfailed finding central directory\b/,
    try: whole_files,
  },
  {
    scope: 'process',
    what: 'the files of the model hold other tensors than its config.json says',
    test: /\bThere is no module or parameter named '|\bsize mismatch for [\w.]+: |\bAttempted to load weight \(torch\.Size|\bcheck_tensor_dims: tensor '.*' (not found|has wrong shape)\b/,
    try: 'check that config.json and the weights are of one model, and that the engine knows this variant of it',
  },
  {
    scope: 'process',
    what: 'the model brings code of its own, which the engine was not allowed to run',
    test: /\bcontains custom code which must be executed\b|\brequires you to execute the (configuration|model) file\b|\bpass the argument `?trust_remote_code=True/,
    try: 'read that code, and pass --trust-remote-code in engine_args if you trust it',
  },
  {
    scope: 'process',
    what: 'the tokenizer of the model cannot be read',
    test: /\bCan't load tokenizer for\b|\bCouldn't instantiate the backend tokenizer\b|\berror loading model vocabulary\b|\bTokenizer class \w+ does not exist\b/,
    try: whole_files,
  },
  {
    scope: 'process',
    what: 'the engine looked for files of the model on the internet',
    test: /\bLocalEntryNotFoundError\b|\bOfflineModeIsEnabled\b|\bcouldn't connect to 'https:\/\/huggingface\.co'|\bGatedRepoError\b|\btrying to access a gated repo\b|\bRepository Not Found for url\b/,
    try: 'fetch the model beforehand (`hpcserve model pull`), with all files that its config.json refers to',
  },
];

const processes: readonly RecordedFailure[] = [
  {
    what: 'the port or socket it was to listen on is taken',
    test: /\[Errno 98\]|\bAddress already in use\b|\bEADDRINUSE\b|\bcouldn't bind (to server|HTTP server) socket\b/,
    try: 'deploy again, which chooses another; if it repeats, see what runs on the node (ss -lntp)',
  },
  {
    scope: 'process',
    what: 'it may not read or write a file',
    test: /^(OSError|PermissionError): \[Errno 13\] Permission denied/,
    try: 'check owner and mode of that file where the job runs; caches of others are avoided by XDG_CACHE_HOME in the environment of the model',
  },
  {
    scope: 'process',
    what: 'it has too many files open',
    test: /\[Errno 24\] Too many open files\b/,
    try: 'raise the limit in the job (`ulimit -n` in `runtime.setup` of the site config)',
  },
  {
    what: 'one of its processes was killed, or ended without a word',
    test: /\b(Engine core proc|Worker proc|EngineCore process) \S+ died unexpectedly\b|\bEngineDeadError: |\bRank \d+ scheduler (is dead|died)\b|\bShard \d+ (crashed|terminated)\b|\bprocess was signaled to shutdown with signal 9\b|\bllama runner process (has terminated|no longer running)\b/i,
    try: 'see whether the kernel ended it for want of memory (dmesg of the node, `seff` of the job), or somebody did',
    consequence: true,
  },
  {
    what: 'it made a memory error of its own',
    test: /^Segmentation fault\b|^Fatal Python error: Segmentation fault\b|^!{3,}.*Segfault encountered|\bfree\(\): invalid pointer\b|\bdouble free or corruption\b/i,
    try: 'use another version of the engine; if that ends the same, report it to its project with the log',
    consequence: true,
  },
];

/**
 * Ranks that wait for one another. Each of these lines is written as well where another rank ended, or computed for
 * longer than the engine waits: none says anything of a device. Where a device failed, another line says so, before or
 * after, and counts.
 */
const links: readonly RecordedFailure[] = [
  {
    what: 'a process of the engine did not answer another one in time',
    test: /\bTimeoutError: RPC call to \w+ timed out\b|\bEngine iteration timed out\b|\bWatchdog timeout \(self\.watchdog_timeout=|\bwatchdog timeout \(self\.(soft_)?watchdog_timeout=/,
    try: 'if it repeats, see what its processes did meanwhile (`hpcserve logs`): where they only computed for long, let it wait longer (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS in the environment of the model, --watchdog-timeout of SGLang), or give it shorter prompts at once (prefill_chunk_tokens)',
    consequence: true,
  },
  {
    what: 'a collective operation between ranks did not end in time',
    test: /\bWatchdog caught collective operation timeout\b|\bTimeout at NCCL work\b/,
    try: 'see whether another rank ended or hung (its log is beside this one); NCCL_DEBUG=INFO in the environment of the model makes it say more',
    consequence: true,
  },
  {
    what: 'the library that links ranks failed',
    test: /\b(NCCL|RCCL) error\b|\bnccl(SystemError|RemoteError|InternalError|InvalidUsage)\b/,
    try: 'see whether another rank ended (its log is beside this one), and over which interface they talk (network.engine_interfaces of the site config); NCCL_DEBUG=INFO in the environment of the model makes it say more',
    consequence: true,
  },
  {
    what: 'another rank broke the connection',
    test: /\bgloo\/transport\/\S+\] (Connection closed by peer|Read timeout|Read error|Write error)\b|\bGloo connectFullMesh failed\b/,
    try: 'see whether another rank ended (its log is beside this one), and over which interface they talk (network.engine_interfaces of the site config)',
    consequence: true,
  },
];

/** Messages of PyTorch's NCCL process groups, CUDA, ROCm, vLLM, SGLang and ggml. */
const device: readonly RecordedFailure[] = [
  {
    scope: 'device',
    what: 'a device failed under the library that links devices',
    test: /\bncclUnhandledCudaError\b|\b(NCCL|RCCL) error\b.*\bunhandled (cuda|hip) error\b/i,
    try: `NCCL_DEBUG=INFO in the environment of the model makes it say more; ${look_at_device}`,
  },
  {
    scope: 'device',
    what: 'the device has a memory error that cannot be corrected',
    test: /\buncorrectable (ECC|NVLink) error\b|\bCUDA_ERROR_ECC_UNCORRECTABLE\b|\bcudaErrorECCUncorrectable\b/,
    try: look_at_device,
  },
  {
    scope: 'device',
    what: 'the device is gone',
    test: /\bGPU is lost\b|\bhas fallen off the bus\b|\bno CUDA-capable device is detected\b|\bUnable to determine the device handle for GPU\b|\bvk::(Device|Physical)\w*LostError\b|\bErrorDeviceLost\b/,
    try: look_at_device,
  },
  {
    scope: 'device',
    what: 'the device failed',
    test: /\b(CUDA|HIP|ROCm|MUSA) error: (?!out of memory)|\bCUDA driver error: (?!out of memory)|\bcuda runtime error \(\d+\)|\bMemory access fault by GPU node-\d+|\bHSA_STATUS_ERROR_(?!OUT_OF_RESOURCES)\w+|\b(CUBLAS|CUDNN|HIPBLAS|CUSOLVER)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|NOT_INITIALIZED)\b/,
    try: look_at_device,
  },
  {
    scope: 'device',
    what: 'the device failed, and ggml says no more',
    consequence: true,
    test: /\.cuh?:\d+: (CUDA|ROCm|MUSA) error$/,
    try: look_at_device,
  },
];

/** Of a line that several fit, the first is meant: narrow ones stand before wide ones. */
export const recordedFailures: readonly RecordedFailure[] = [
  ...software,
  ...deviceMemory,
  ...hostMemory,
  ...model,
  ...device,
  ...links,
  ...processes,
];
