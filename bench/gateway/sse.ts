import { Agent, request } from 'node:http';

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
    const one = readStream(url, key, body, agent, begun).then((events) => {
      read.events += events;
      open--;
    });
    // It is waited for in its turn; one that breaks before must not end the process, and leave who listens for it.
    one.catch(() => {});
    reading.push(one);
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
