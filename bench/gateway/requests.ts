/** What clients of the bench ask, and what its upstreams answer. */

/** A request that is answered at once. */
export const requestBody = JSON.stringify({
  model: 'bench',
  messages: [
    { role: 'system', content: 'You are a helpful assistant.' },
    { role: 'user', content: 'Say hello to the world, please, and be brief about it.' },
  ],
  max_tokens: 64,
  temperature: 0.7,
});

/**
 * What a request says of the stream that it wants, in its last message: so many events, one each `pause_ms`. Routers
 * pass messages on, whatever they do with members that they do not know.
 */
export interface Pace {
  events: number;
  pause_ms: number;
}

/** The body of a request for such a stream. */
export function pacedRequest(model: string, { events, pause_ms }: Pace): string {
  const content = JSON.stringify({ events, pause_ms });
  return JSON.stringify({
    model,
    messages: [{ role: 'user', content }],
    max_tokens: events + 1,
    stream: true,
  });
}

/** Of the last message of such a request. */
export function paceOf(content: string): Pace {
  return JSON.parse(content) as Pace;
}

/** What is answered at once to a request that wants no stream. */
export const instantAnswer = JSON.stringify({
  id: 'chatcmpl-bench',
  object: 'chat.completion',
  created: 1,
  model: 'bench',
  choices: [
    {
      index: 0,
      message: { role: 'assistant', content: 'Hello, world! '.repeat(8).trim() },
      finish_reason: 'stop',
    },
  ],
  usage: { prompt_tokens: 29, completion_tokens: 32, total_tokens: 61 },
});

/** Of a server with one model, as routers ask for it. */
export const modelList = JSON.stringify({
  object: 'list',
  data: [{ id: 'bench', object: 'model', created: 1, owned_by: 'bench', max_model_len: 4096 }],
});
