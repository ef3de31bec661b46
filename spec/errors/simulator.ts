import { defineErrors } from './define.ts';

/** What can be wrong with a question to the catalog or to the serving simulator. */
export const simulatorErrors = defineErrors({
  E_DEVICE_UNKNOWN: {
    cause: 'A device or interconnect that the catalog does not know.',
    fix: 'Name a known one, or describe it in a file for `hpcserve simulate --devices`.',
    http_status: 404,
    exit_code: 9,
  },
  E_MODEL_SHAPE: {
    cause: 'The shape of a model cannot be told: an unknown name, or a config.json without the needed keys.',
    fix: 'Name a GGUF file, a Hugging Face folder or config.json, or a known model.',
    http_status: 400,
    exit_code: 4,
  },
  E_SIMULATION_INPUT: {
    cause:
      'A workload or a deployment that cannot be simulated: a negative rate, no devices, an empty trace.',
    fix: 'Correct the value that is named.',
    http_status: 400,
    exit_code: 2,
  },
  E_SIMULATION_MEMORY: {
    cause: 'The model does not fit on the devices it is simulated on.',
    fix: 'Use more tensor or pipeline parallelism, a larger device, or a smaller precision.',
    http_status: 400,
    exit_code: 5,
  },
});
