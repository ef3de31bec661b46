/**
 * Images, sounds and films in requests that are named by where they lie: wrapped engines fetch them, from the compute
 * node and with what it reaches. Whoever asks must not choose that, so only hosts that the model allows pass; what is
 * in the request itself (`data:`) does.
 */
import { HpcserveError } from '../../spec/errors/error.ts';
import { jsonSize } from '../text/json-size.ts';

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/**
 * Of bodies that have to be read here: reading takes about 1 µs a value. Lower: shorter pauses; higher: longer
 * requests.
 */
const containers_max = 100_000;
const strings_max = 300_000;
const depth_max = 500;
/** Of an address, what a message shows. */
const shown_chars = 100;

/** Members beside media that nobody opens; `text` may hold anything. */
const describing_key = /^(type|format|detail|file_?name|file_id|id|name|mime_?type|media_type|text)$/i;
/** Members of content that are, or hold, media. */
const media_key = /url|uri|image|video|audio|file|media|path|source/i;
/** One of them is in every body that names media: such a word, an escape that may spell one, or no UTF-8. */
const sign = /url|uri|image|video|audio|file|media|path|source|\\u|\0/i;

/**
 * @param domains hosts from which media may be fetched, in lower case
 * @throws HpcserveError E_REQUEST_REMOTE_MEDIA, E_REQUEST_INVALID, E_REQUEST_TOO_LARGE
 */
export function checkRemoteMedia(body: Buffer, domains: readonly string[]): void {
  // Most requests have none of them, and are not read here at all.
  if (!sign.test(body.toString('latin1'))) return;
  const { containers, strings, depth } = jsonSize(body);
  if (containers > containers_max || strings > strings_max || depth > depth_max)
    throw new HpcserveError('E_REQUEST_TOO_LARGE', {
      what: 'The request body holds too many values to be looked through for media',
      because: `it has ${containers} objects and lists of at most ${containers_max}, ${strings} texts of at most ${strings_max}, ${depth} in each other of at most ${depth_max}`,
    });
  let request: Json;
  try {
    request = JSON.parse(body.toString('utf8')) as Json;
  } catch (error) {
    // What an engine reads all the same, such as NaN or UTF-16, could name media unseen.
    throw new HpcserveError('E_REQUEST_INVALID', {
      what: 'The request body is not valid JSON',
      because: (error as Error).message.slice(0, shown_chars),
    });
  }
  for (const address of mediaOf(request)) requireAllowed(address, domains);
}

/** Texts in the places of media, in messages (chat) and items (responses). */
function mediaOf(request: Json): string[] {
  const found: string[] = [];
  if (!isObject(request)) return found;
  for (const list of [request.messages, request.input]) {
    if (!Array.isArray(list)) continue;
    for (const item of list) {
      if (!isObject(item)) continue;
      collect(item.content, false, found);
      collect(item.output, false, found);
      // An item may itself be media.
      for (const [key, value] of Object.entries(item))
        if (key !== 'content' && key !== 'output' && media_key.test(key) && !describing_key.test(key))
          collect(value, true, found);
    }
  }
  return found;
}

/** @param media whether texts here are of media, but for what describes them */
function collect(value: Json | undefined, media: boolean, found: string[]): void {
  if (typeof value === 'string') {
    if (media) found.push(value);
  } else if (Array.isArray(value)) for (const item of value) collect(item, media, found);
  else if (isObject(value))
    for (const [key, inner] of Object.entries(value))
      collect(inner, (media || media_key.test(key)) && !describing_key.test(key), found);
}

function requireAllowed(address: string, domains: readonly string[]): void {
  const text = address.trim();
  if (/^data:/i.test(text)) return;
  const scheme = /^[a-z][a-z0-9+.-]*:/i.exec(text)?.[0].toLowerCase();
  // Without a scheme it is the medium itself, in base64, or a file of the node: names have dots, which base64 has not.
  if (scheme === undefined && !/[.~]|\.\//.test(text) && !text.startsWith('//')) return;
  const host = scheme === 'http:' || scheme === 'https:' ? hostOf(text) : undefined;
  if (host !== undefined && domains.includes(host)) return;
  const shown = text.length > shown_chars ? `${text.slice(0, shown_chars)}…` : text;
  throw new HpcserveError('E_REQUEST_REMOTE_MEDIA', {
    what: `${JSON.stringify(shown)} is not fetched for this request`,
    because:
      domains.length === 0
        ? 'the model allows no remote media'
        : `the model allows ${domains.join(', ')} alone`,
    details: { param: 'messages' },
  });
}

/** Undefined where parsers of addresses may differ about it. */
function hostOf(text: string): string | undefined {
  if (/[\\@\s\p{Cc}]/u.test(text) || !URL.canParse(text)) return undefined;
  return new URL(text).hostname.toLowerCase();
}

function isObject(value: Json | undefined): value is { [key: string]: Json } {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
