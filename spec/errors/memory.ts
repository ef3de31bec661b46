import { defineErrors } from './define.ts';

/** What can go wrong with the memory pool of a device and the tensors in it. */
export const memoryErrors = defineErrors({
  E_POOL_FULL: {
    cause:
      'A model does not fit into the memory pool of its device beside the models that are in use there, or the pool has no memory left for a request now.',
    fix: 'a request: ask again after the seconds that Retry-After says; a model: use a smaller one or another quantization, or unload one; for both: give the device a larger pool',
    http_status: 503,
    exit_code: 12,
  },
  E_POOL_INTEGRITY: {
    cause:
      'The books of a memory pool contradict themselves: a fault of hpcserve, found before it gave wrong answers.',
    fix: 'the worker restarts; report it with the agent’s log',
    http_status: 500,
    exit_code: 1,
  },
  E_POOL_LOAD: {
    cause: 'A model file could not be read to its end, or changed while it was read. Nothing of it is used.',
    fix: 'see that the file is whole and that nobody writes to it, then load the model again',
    http_status: 503,
    exit_code: 12,
  },
});
