import { Agent, request } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { SessionIdentity } from '../../mesh/index.ts';
import { sessionTlsServerOptions } from '../../mesh/index.ts';
import { agentPaths } from '../../spec/wire.ts';

export interface PacedUpstream {
  port: number;
  close(): Promise<void>;
}

/**
 * A session whose streams send one event at a time, each in a TLS record of its own, all streams at the same
 * pace: what a batch of sequences on an engine looks like to a proxy.
 */
export async function startPacedUpstream(
  identity: SessionIdentity,
  heartbeat: () => string,
  { events, pause_ms }: { events: number; pause_ms: number },
): Promise<PacedUpstream> {
  const timers = new Set<NodeJS.Timeout>();
  const every = (ms: number, action: () => void): NodeJS.Timeout => {
    const timer = setInterval(action, ms);
    timers.add(timer);
    return timer;
  };
  const stop = (timer: NodeJS.Timeout): void => {
    clearInterval(timer);
    timers.delete(timer);
  };
  const chunk = `data: ${JSON.stringify({
    id: 'chatcmpl-bench',
    object: 'chat.completion.chunk',
    created: 1,
    model: 'bench',
    choices: [{ index: 0, delta: { content: ' token' }, logprobs: null, finish_reason: null }],
  })}\n\n`;
  const last = [
    chunk.replace('"finish_reason":null', '"finish_reason":"stop"'),
    `data: ${JSON.stringify({ id: 'chatcmpl-bench', choices: [], usage: { prompt_tokens: 9, completion_tokens: events, total_tokens: events + 9 } })}\n\n`,
    'data: [DONE]\n\n',
  ].join('');
  const server: Server = createServer(
    { ...sessionTlsServerOptions(() => identity), requestCert: false, keepAliveTimeout: 600_000 },
    (incoming, response) => {
      if (incoming.url === agentPaths.watch) {
        response.writeHead(200, { 'content-type': 'application/jsonl' });
        const beat = (): void => void response.write(`${heartbeat()}\n`);
        beat();
        const timer = every(500, beat);
        response.on('close', () => stop(timer));
        return;
      }
      incoming.resume();
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      let sent = 0;
      const timer = every(pause_ms, () => {
        if (sent++ < events) response.write(chunk);
        else {
          stop(timer);
          response.end(last);
        }
      });
      response.on('close', () => stop(timer));
    },
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    port: (server.address() as AddressInfo).port,
    close: async () => {
      for (const timer of timers) clearInterval(timer);
      server.closeAllConnections();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

export interface StreamsRead {
  /** Events with a choice. */
  events: number;
  /** Most streams that were open at the same time. */
  open_max: number;
}

/**
 * Reads `streams` streams to their end, at the same time.
 *
 * @param opening so many at most wait for the beginning of their answer; the next is asked for when one has begun
 */
export async function readStreams(
  url: string,
  key: string,
  body: string,
  streams: number,
  opening = streams,
): Promise<StreamsRead> {
  const agent = new Agent({ keepAlive: true, maxSockets: streams });
  const read: StreamsRead = { events: 0, open_max: 0 };
  let asked = 0;
  let open = 0;
  const reading: Promise<void>[] = [];
  const askNext = (): void => {
    if (asked === streams) return;
    asked++;
    const begun = (): void => {
      open++;
      read.open_max = Math.max(read.open_max, open);
      askNext();
    };
    reading.push(
      readStream(url, key, body, agent, begun).then((events) => {
        read.events += events;
        open--;
      }),
    );
  };
  try {
    for (let count = 0; count < opening; count++) askNext();
    // What is asked for later is in the list before the stream that made room for it ends.
    for (let at = 0; at < reading.length; at++) await reading[at];
    return read;
  } finally {
    agent.destroy();
  }
}

function readStream(
  url: string,
  key: string,
  body: string,
  agent: Agent,
  begun: () => void,
): Promise<number> {
  return new Promise((resolve, reject) => {
    const outgoing = request(
      url,
      {
        method: 'POST',
        agent,
        headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
      },
      (answer) => {
        begun();
        let events = 0;
        let tail = '';
        answer.on('data', (chunk: Buffer) => {
          // An event may be cut anywhere: what could be the beginning of one is looked at again.
          const bytes = tail + chunk.toString('latin1');
          events += bytes.split(choice).length - 1;
          tail = bytes.slice(-(choice.length - 1));
        });
        answer.on('error', reject);
        answer.on('end', () => {
          if (answer.statusCode !== 200 || !tail.endsWith('DONE]\n\n')) {
            reject(new Error(`a stream from ${url} ended with ${answer.statusCode}: ${tail}`));
          } else resolve(events);
        });
      },
    );
    outgoing.on('error', reject);
    outgoing.end(body);
  });
}

const choice = '"choices":[{';
