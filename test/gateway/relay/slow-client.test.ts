/** A client that is behind while a session sends many events at once. */
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { chunkEvent, doneEvent, shareStage, until } from '../support.ts';

const shared = shareStage();
const event = chunkEvent('x');
/** More than the kernel and Node hold for a client that does not read. */
const events_max = 200_000;

/** Names of the warnings of this process while something is done. */
async function warnedDuring(action: () => Promise<void>): Promise<string[]> {
  const warned: string[] = [];
  const note = ({ name }: Error): void => void warned.push(name);
  process.on('warning', note);
  try {
    await action();
    await turn();
  } finally {
    process.off('warning', note);
  }
  return warned;
}

it('is waited for once, however many events came at once, and gets all of them', async () => {
  let written = 0;
  let isEnough = false;
  await shared.session(async (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    while (written < events_max && !isEnough) {
      // A hundred chunks of HTTP in a few records of TLS. Node 22 asks a response that is corked itself for no drain.
      const { socket } = response;
      socket!.cork();
      for (let at = 0; at < 100; at++) response.write(event);
      written += 100;
      socket!.uncork();
      if (response.writableNeedDrain) await once(response, 'drain');
    }
    response.end(doneEvent);
  });
  let received = 0;
  const warned = await warnedDuring(async () => {
    const asked = httpRequest(`${shared.stage.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${shared.stage.key}` },
    });
    asked.end(JSON.stringify({ model: 'tiny', messages: [{ role: 'user', content: 'hi' }], stream: true }));
    const [answer] = (await once(asked, 'response')) as [IncomingMessage];
    answer.pause();
    let before = -1;
    await until(async () => {
      const isStalled = written === before && written > 0;
      before = written;
      await delay(200);
      return isStalled;
    }, 'the replica to be paused');
    isEnough = true;
    for await (const chunk of answer) received += (chunk as Buffer).length;
  });
  expect(written).toBeLessThan(events_max);
  expect(received).toBe(written * Buffer.byteLength(event) + Buffer.byteLength(doneEvent));
  expect(warned).toEqual([]);
}, 60_000);
