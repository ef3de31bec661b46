import type { Backend } from '../backend/backend.ts';

/** Of one thread that brings weights: what its units lie in on their way. */
const thread_bytes = 4 * 2 ** 20;

/**
 * Why weights go to the device through memory that is not page-locked, by taking as much of it as threads will have.
 * Backends of ggml give other memory where the system locks no more, and say nothing.
 * @returns undefined: they go through page-locked memory, or the device has no use for it
 */
export function whyUnlocked(
  { ggml, upload }: Pick<Backend, 'ggml' | 'upload'>,
  threads: number,
): string | undefined {
  const type = upload?.host_buffer_type;
  if (type === undefined) return undefined;
  const buffer = ggml.ggml_backend_buft_alloc_buffer(type, threads * thread_bytes);
  const isLocked = buffer !== null && ggml.ggml_backend_buffer_get_type(buffer) === type;
  if (buffer !== null) ggml.ggml_backend_buffer_free(buffer);
  return isLocked
    ? undefined
    : `page-locked memory of the host was refused (${(threads * thread_bytes) / 2 ** 20} MiB): weights go to the device through other memory, which is slower`;
}
