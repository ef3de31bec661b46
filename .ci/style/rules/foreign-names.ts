/** Names that others have given: they stay as they are, and no rule of names looks at them. */
export const foreignNames = new Set([
  // OpenAI's API and what engines add to it.
  'max_tokens',
  'max_completion_tokens',
  'max_output_tokens',
  'max_new_tokens',
  'max_model_len',
  'min_tokens',
  'min_p',
  // Hugging Face's configs, llama.cpp's structures.
  'max_position_embeddings',
  'n_outputs_max_per_seq',
  // slurm.conf and scontrol: MaxNodes, MaxTime, MaxArraySize, MaxJobCount, MinJobAge.
  'max_nodes',
  'max_time_s',
  'max_array_size',
  'max_job_count',
  'min_job_age_s',
  // JSON schema.
  'minimum',
  'maximum',
  // Node's TLS.
  'maxVersion',
  'minVersion',
  // Keys of our own files and messages, which people have written down: model.yaml, site configs, launch.json, the plan
  // in deployment.json, what a gateway tells of its sessions, what `hpcserve simulate --json` prints.
  'max_sequences',
  'max_jobs',
  'min_stable_replicas',
  'max_rate_per_s',
  'heard_ms_ago',
  'max_batched_tokens',
]);
