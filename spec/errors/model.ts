import { defineErrors } from './define.ts';

/** What can be wrong with a model: its files, its source, its download, its synthesis. */
export const modelErrors = defineErrors({
  E_MODEL_MISSING: {
    cause: 'The path of the model does not exist.',
    fix: 'check the path (relative paths start at the YAML file) and that this host mounts the filesystem',
    http_status: 404,
    exit_code: 4,
  },
  E_MODEL_UNREADABLE: {
    cause: 'The operating system refused to read the model (permissions, I/O error, not a regular file).',
    fix: 'check with `ls -l` who may read it; copy it, or ask its owner for read permission',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_EMPTY: {
    cause: 'The model file has no bytes: a download or copy never started, or the disk was full.',
    fix: 'download or copy the file again',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_FORMAT: {
    cause: 'The file is not in the format that its place or name promises.',
    fix: 'give a GGUF file, or a folder with config.json and safetensors files',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_VERSION: {
    cause:
      'A GGUF file of a version or byte order that is not supported (supported: 2 and 3, little-endian).',
    fix: 'convert the file again with a current llama.cpp converter',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_WEIGHTS: {
    cause:
      'A matrix of the model file has weights that are NaN or infinite: it was damaged, or converted from damaged weights.',
    fix: 'compare its checksum with that of its source and copy it again; if it is the same, convert the model again',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_CUT_OFF: {
    cause: 'The file ends before the data that its header promises: an interrupted download or copy.',
    fix: 'download or copy the file again; `hpcserve model pull` resumes and verifies',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_HEADER: {
    cause: 'The header of the model file contradicts itself or holds impossible counts.',
    fix: 'the file is damaged or hostile: get it again from a source you trust and compare its SHA-256',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_TENSOR_TYPE: {
    cause: 'A tensor is stored in a type that this version does not know.',
    fix: 'requantize the model to a known type (Q8_0, Q4_K, …), or use a wrapped engine that reads it',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_METADATA: {
    cause: 'A key that the architecture needs is absent from the metadata or has a wrong type.',
    fix: 'convert the model again with a current converter',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_SPLIT: {
    cause: 'Parts of a model that is split over several files are missing or do not belong together.',
    fix: 'get all parts of the same split into one folder, and name the first one as the source',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_FOLDER: {
    cause: 'A Hugging Face folder lacks files that it needs or that its index names.',
    fix: 'download the whole repository again, for instance with `hpcserve model pull`',
    http_status: 500,
    exit_code: 4,
  },
  E_MODEL_SOURCE: {
    cause: 'The `source` of a model is not of any form that is understood.',
    fix: 'give a GGUF file, a Hugging Face folder, hf:org/name[@revision], or alias:NAME',
    http_status: 400,
    exit_code: 3,
  },
  E_MODEL_ALIAS: {
    cause: 'The site config has no model of this alias.',
    fix: 'use one of the names under `models` of the site config, or add it there',
    http_status: 404,
    exit_code: 4,
  },
  E_MODEL_NOT_CACHED: {
    cause: 'A model named by id is not in the offline cache, and nothing is downloaded during a deployment.',
    fix: 'fetch it first on a host with internet: `hpcserve model pull hf:org/name`',
    http_status: 404,
    exit_code: 4,
  },
  E_MODEL_PULL: {
    cause: 'The server of a download answered with an error or with something that is not the file.',
    fix: 'check the address; for gated repositories accept the licence and set HF_TOKEN',
    http_status: 502,
    exit_code: 4,
  },
  E_MODEL_PULL_NETWORK: {
    cause:
      'The connection to the server of a download failed again and again, or a proxy or the certificate stands against it.',
    fix: 'run the same command again: it continues where it stopped; check HTTPS_PROXY, HF_ENDPOINT, NODE_EXTRA_CA_CERTS',
    http_status: 502,
    exit_code: 7,
  },
  E_MODEL_PULL_BUSY: {
    cause: 'Another process is downloading the same file.',
    fix: 'wait for it, or end it; then run the command again',
    http_status: 409,
    exit_code: 10,
  },
  E_MODEL_CHECKSUM: {
    cause: 'The downloaded bytes do not have the SHA-256 that was promised; they were not kept.',
    fix: 'run the command again; if it repeats, the source or the given checksum is wrong',
    http_status: 502,
    exit_code: 4,
  },
  E_MODEL_DISK: {
    cause: 'The filesystem has too little space for the model, or refused to take it.',
    fix: 'free space, or name another folder (--cache, HF_HOME)',
    http_status: 507,
    exit_code: 12,
  },
  E_MODEL_SYNTH: {
    cause: 'The sizes asked for do not make a valid model.',
    fix: 'see `hpcserve model synth --help` for presets and what the sizes must satisfy',
    http_status: 400,
    exit_code: 2,
  },
});
