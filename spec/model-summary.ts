/**
 * What the headers of a model's files say: enough to plan memory, to choose an engine and to refuse early.
 * Made without reading weights; see `native/formats/`.
 */
import { z } from 'zod';
import { hyperParametersSchema } from './hyper-parameters.ts';

const count = z.int().min(0);
const number = z.number();

export const modelFileSummarySchema = hyperParametersSchema.extend({
  format: z.enum(['gguf', 'safetensors']),
  n_params: number,
  /** Parameters that one token uses: fewer than n_params where there are experts. */
  n_params_active: number,
  /** Short name of the weights' precision: Q4_0, Q4_K_M, BF16, fp8, awq-4bit, … */
  quantization: z.string(),
  /** Tensors by storage type. */
  tensor_types: z.record(z.string(), z.strictObject({ tensors: count, bytes: count })),
  /** All files of the model together. */
  file_bytes: count,
  /** Tensor data without headers and padding. */
  weight_bytes: count,
  /** Where the weights lie: for stages that hold a range of layers. `layers` has n_layer entries. */
  weight_bytes_of: z.strictObject({ embedding: number, layers: z.array(number), output: number }),
  /** One token's keys and values over all layers, at 16 bits each; sliding windows are not deducted. */
  kv_bytes_per_token: number,
  has_chat_template: z.boolean(),
  has_tokenizer: z.boolean(),
  /** True, or the reason why the native engine cannot serve it. */
  supported_by_native: z.union([z.literal(true), z.string()]),
});
export type ModelFileSummary = z.infer<typeof modelFileSummarySchema>;
