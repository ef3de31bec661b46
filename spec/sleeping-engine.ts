/** Engines that can give up their device's memory and keep their process. */
import type { ModelSpec } from './model-yaml.ts';
import type { ResolvedEngine } from './plan.ts';

/** Who passes it wants vLLM to sleep (https://docs.vllm.ai/en/latest/features/sleep_mode/). */
export const sleep_option = '--enable-sleep-mode';

/** What an engine that sleeps keeps of its device: contexts, graphs and libraries of its processes. */
export const asleep_bytes = 2 ** 30;

/** Whether a model's engine may wait in host memory while others have its device. */
export function canSleep(engine: ResolvedEngine, { engine_args }: Pick<ModelSpec, 'engine_args'>): boolean {
  return engine === 'vllm' && engine_args.includes(sleep_option);
}
