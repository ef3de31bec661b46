import { type RefusedRequest, refusedRequestSchema } from '../../spec/device-view.ts';
import { headers, type MovedAnswer } from '../../spec/wire.ts';
import { parseMoved } from './moved-answer.ts';

/** Header fields that belong to one connection (RFC 9110 §7.6.1), and those the gateway writes itself. */
const own = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'content-length',
  'date',
  'server',
  'x-request-id',
  // A replica must not plant state in clients of a shared gateway, nor open it to web pages.
  'set-cookie',
  'access-control-allow-origin',
  'access-control-allow-credentials',
  'strict-transport-security',
  'alt-svc',
]);

/** Who answered is said by the gateway, which knows it; a replica could say anything. Its warnings are its own. */
const ownPrefix = 'x-hpcserve-';

/** What is left of the client's limits is a matter of its key. */
const limitsPrefix = 'x-ratelimit-';

export interface AnswerHeaders {
  /** Pairs to pass on. */
  pairs: string[];
  /** Lower case, `` where there is none. */
  contentType: string;
  /** `x-should-retry`, with which OpenAI's servers tell its clients whether to ask again. */
  shouldRetry: string | undefined;
  /** What a native replica says of a request that it refuses for its SLO. */
  refused: RefusedRequest | undefined;
  /** Where a native replica has brought what there is of the answer. */
  moved: MovedAnswer | undefined;
  /** What a native replica says of where the time went, as it came. */
  timings: string | undefined;
}

/** What of a replica's header (names in lower case, each followed by its value) goes on to the client. */
export function answerHeaders(fields: readonly string[]): AnswerHeaders {
  const pairs: string[] = [];
  let contentType = '';
  let shouldRetry: string | undefined;
  let refused: RefusedRequest | undefined;
  let moved: MovedAnswer | undefined;
  let timings: string | undefined;
  for (let index = 0; index + 1 < fields.length; index += 2) {
    const name = fields[index]!;
    const value = fields[index + 1]!;
    if (name === headers.refused) refused = readRefused(value);
    if (name === headers.moved) moved = parseMoved(value);
    if (name === headers.timings) timings = value;
    if (
      own.has(name) ||
      (name.startsWith(ownPrefix) && name !== headers.warning) ||
      name.startsWith(limitsPrefix)
    )
      continue;
    if (name === 'content-type') contentType = value.toLowerCase();
    else if (name === 'x-should-retry') shouldRetry = value.toLowerCase();
    pairs.push(name, value);
  }
  return { pairs, contentType, shouldRetry, refused, moved, timings };
}

/** What cannot be read counts as not said. */
function readRefused(value: string): RefusedRequest | undefined {
  try {
    return refusedRequestSchema.safeParse(JSON.parse(value)).data;
  } catch {
    return undefined;
  }
}
