import { setTimeout as delay } from 'node:timers/promises';
import type { AgentLog } from '../node/log.ts';
import { BlockFeed } from './block-feed.ts';
import { readEngineEvents } from './engine-events.ts';
import { subscribe } from './zmtp-subscriber.ts';

/** Of a batch of events: one iteration's, with 128 Ki tokens of up to five bytes. */
const bounds = { frame_bytes_max: 4 * 2 ** 20, frames_max: 3 };
const retry_ms = 1000;

/**
 * Follows the events of an engine that publishes them at a socket, from when it is there. What is no event, or a
 * connection that ends, ends what is told: blocks may have come and gone unseen.
 *
 * @param signal ends it with the engine
 */
export function followBlocks(path: string, signal: AbortSignal, log: AgentLog): BlockFeed {
  const feed = new BlockFeed();
  const giveUp = (why: string): void => {
    if (feed.whyOver === undefined && !signal.aborted)
      log.warn({ because: why }, 'what its cache holds is not followed any more');
    feed.giveUp(why);
  };
  const follow = async (): Promise<void> => {
    while (!signal.aborted && feed.whyOver === undefined) {
      let heard = false;
      const reason = await new Promise<string>((resolve) => {
        const close = subscribe(
          path,
          bounds,
          (frames) => {
            heard = true;
            try {
              feed.take(readEngineEvents(frames));
            } catch (error) {
              giveUp((error as Error).message);
            }
            if (feed.whyOver !== undefined) close();
          },
          resolve,
        );
        signal.addEventListener('abort', close, { once: true });
      });
      // Its socket is there when it is nearly ready.
      if (heard) giveUp(`its events ended: ${reason}`);
      else await delay(retry_ms, undefined, { signal, ref: false }).catch(() => undefined); // the engine has ended
    }
  };
  follow().catch((error: unknown) => giveUp(String(error)));
  return feed;
}
