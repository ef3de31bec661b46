/** Answers of a model as they come: one request to a gateway, its events, and the text in them. */
import { z } from 'zod';
import { refusal } from '../../control/gateway/admin.ts';
import { askOverHttp, type GatewayAddress, readAnswer, reasonOf } from '../../control/gateway/client.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

const chunkSchema = z.looseObject({
  choices: z
    .array(
      z.looseObject({
        delta: z
          .looseObject({ content: z.string().nullish(), reasoning_content: z.string().nullish() })
          .optional(),
      }),
    )
    .default([]),
  error: z.looseObject({ message: z.string() }).optional(),
});

/**
 * The `data:` payloads of an answer, up to `[DONE]`.
 * @param gateway with its base URL
 * @throws E_GATEWAY_UNREACHABLE, E_GATEWAY_ANSWER, or the gateway's own error
 */
export async function* streamOf(
  gateway: GatewayAddress,
  bearer: string,
  body: unknown,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const url = new URL(`${gateway.url}/chat/completions`);
  let response: Awaited<ReturnType<typeof askOverHttp>>;
  try {
    response = await askOverHttp(gateway, url.pathname, { method: 'POST', bearer, body, signal });
  } catch (error) {
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: `the gateway does not answer at ${url.origin}`,
      because: reasonOf(error),
      cause: error,
    });
  }
  const { statusCode = 0 } = response;
  if (statusCode < 200 || statusCode > 299) throw refusal(url, await readAnswer(response));
  let rest = '';
  for await (const text of response.setEncoding('utf8') as AsyncIterable<string>) {
    const lines = (rest + text).split(/\r?\n/);
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const data = line.slice('data:'.length).trim();
      if (data === '[DONE]') return;
      yield data;
    }
  }
  throw new HpcserveError('E_GATEWAY_ANSWER', {
    what: 'the answer broke off',
    because: 'the connection ended before [DONE]',
  });
}

/** The text that a chunk adds. @throws E_GATEWAY_ANSWER where the stream ends with an error */
export function textOfChunk(data: string): string {
  const chunk = chunkSchema.parse(JSON.parse(data));
  if (chunk.error)
    throw new HpcserveError('E_GATEWAY_ANSWER', {
      what: 'the answer broke off',
      because: chunk.error.message,
    });
  return chunk.choices[0]?.delta?.content ?? '';
}
