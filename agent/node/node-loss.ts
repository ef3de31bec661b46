/** That another node of the launch is gone, as the mesh sees it: nobody there can say so. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Registry } from '../../mesh/index.ts';

/**
 * How long an agent that left the mesh may take to come back to it before its node counts as lost. Lower: a replica is
 * replaced sooner; higher: an agent that was only suspended, and joins again, ends no replica.
 */
const return_ms_default = 10_000;

interface OtherNode {
  launch_id: string;
  node: string;
  return_ms?: number;
}

/**
 * Resolves once the agent of that node, which has been there, is gone and does not come back.
 * @throws by rejection where the signal is aborted first
 */
export async function untilNodeLost(
  registry: Pick<Registry, 'snapshot' | 'onChange'>,
  { launch_id, node, return_ms = return_ms_default }: OtherNode,
  signal: AbortSignal,
): Promise<void> {
  const isThere = (): boolean =>
    registry
      .snapshot()
      .some(
        ({ lifecycle, metadata }) =>
          lifecycle !== 'LEFT' &&
          metadata.role === 'node-agent' &&
          metadata.launch_id === launch_id &&
          metadata.node === node,
      );
  // What an earlier run of the job left behind is gone, too; the one of this run may not be known yet.
  await untilChange(registry, isThere, signal);
  for (;;) {
    await untilChange(registry, () => !isThere(), signal);
    const back = new AbortController();
    const returned = untilChange(registry, isThere, AbortSignal.any([signal, back.signal])).then(
      () => true,
      () => false,
    );
    const isBack = await Promise.race([returned, delay(return_ms, false, { signal, ref: false })]);
    back.abort();
    if (!isBack) return;
  }
}

function untilChange(
  registry: Pick<Registry, 'onChange'>,
  holds: () => boolean,
  signal: AbortSignal,
): Promise<void> {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const forget = registry.onChange(() => {
      if (holds()) end(resolve);
    });
    const aborted = (): void => end(() => reject(signal.reason));
    function end(settle: () => void): void {
      forget();
      signal.removeEventListener('abort', aborted);
      settle();
    }
    signal.addEventListener('abort', aborted);
    if (holds()) end(resolve);
  });
}
