import type { EngineOptions, KernelsOption } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { kv_block_tokens } from './kv-storage.ts';
import type { KernelPolicy } from './weight-plan.ts';

/** @throws HpcserveError E_ENGINE_OPTIONS */
export function checkOptions(options: EngineOptions): void {
  const wrong: string[] = [];
  const counts = ['threads', 'context_tokens', 'max_sequences', 'prefill_chunk_tokens', 'kv_tokens'] as const;
  for (const name of counts)
    if (!Number.isInteger(options[name]) || options[name] < 1) wrong.push(`${name} is ${options[name]}`);
  if (options.kv_tokens < kv_block_tokens)
    wrong.push(`kv_tokens is ${options.kv_tokens}, and a block has ${kv_block_tokens} tokens`);
  if (options.threads > 512) wrong.push('ggml runs at most 512 threads');
  if (wrong.length > 0)
    throw new HpcserveError('E_ENGINE_OPTIONS', { what: 'the engine cannot start', because: wrong });
}

/**
 * Where answers must not depend on the batch, nothing is measured: nodes of one kind choose alike, and our products
 * need no padding.
 */
export function kernelPolicy({
  kernels = 'auto',
  batch_invariant,
}: {
  kernels?: KernelsOption;
  batch_invariant?: boolean | undefined;
}): KernelPolicy {
  if (kernels !== 'auto') return kernels;
  return batch_invariant ? 'own' : 'faster';
}
