/**
 * The part of the Hugging Face hub's HTTP interface that a download needs (huggingface.co/docs/hub/api), from
 * any endpoint that has it: huggingface.co, a mirror, a site's own.
 */
import { z } from 'zod';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { type HubRepository, isSafe } from '../parse-source.ts';
import type { Expected } from './download.ts';
import {
  type HttpAnswer,
  type HttpOptions,
  httpRequest,
  isNetworkError,
  isTemporary,
  pauseAsked_s,
  RetryPolicy,
  refusal,
} from './http.ts';

export interface HubFile {
  /** Path in the repository. */
  path: string;
  /** Undefined where the listing does not tell. */
  size_bytes: number | undefined;
}

export interface HubListing {
  /** 40 hexadecimal digits. */
  commit: string;
  files: HubFile[];
}

const listingSchema = z.object({
  sha: z.string().regex(/^[0-9a-f]{40}$/),
  siblings: z.array(z.object({ rfilename: z.string(), size: z.int().nonnegative().nullish() })),
});
/** A listing of some ten thousand files is about 10 MB. */
const listing_bytes_max = 64 * 1024 * 1024;

/** Files of a revision. Throws E_MODEL_PULL and E_MODEL_PULL_NETWORK. */
export async function listRepository(
  endpoint: URL,
  repository: HubRepository,
  options: HttpOptions,
): Promise<HubListing> {
  const url = below(
    endpoint,
    `api/models/${repository.id}/revision/${encodeURIComponent(repository.revision)}?blobs=true`,
  );
  const answer = await retried('GET', url, options);
  const parsed = listingSchema.safeParse(parseJson(await readText(answer, url)));
  if (!parsed.success) {
    throw new HpcserveError('E_MODEL_PULL', {
      what: `${endpoint.host} answered with something that is not a listing of ${repository.id}`,
      because: parsed.error.issues.slice(0, 3).map((issue) => `${issue.path.join('.')}: ${issue.message}`),
      try: 'check HF_ENDPOINT',
    });
  }
  const { sha, siblings } = parsed.data;
  const hostile = siblings.find((entry) => entry.rfilename === '' || !isSafe(entry.rfilename));
  if (hostile) {
    throw new HpcserveError('E_MODEL_PULL', {
      what: `${repository.id} lists a file that would lie outside of its folder`,
      because: JSON.stringify(hostile.rfilename),
    });
  }
  return {
    commit: sha,
    files: siblings.map(({ rfilename, size }) => ({ path: rfilename, size_bytes: size ?? undefined })),
  };
}

export interface HubFileVersion {
  url: URL;
  /** Name of the blob in the cache. */
  etag: string;
  expected: Expected;
}

/**
 * What the hub says about one file: its blob's name, size and checksum (`X-Linked-Etag` is the SHA-256 of a
 * large file; the ETag of a small one is its git object id).
 */
export async function hubFileVersion(
  endpoint: URL,
  repository: HubRepository,
  commit: string,
  path: string,
  options: HttpOptions,
): Promise<HubFileVersion> {
  const encoded = path.split('/').map(encodeURIComponent).join('/');
  const url = below(endpoint, `${repository.id}/resolve/${commit}/${encoded}`);
  const answer = await retried('HEAD', url, options, 'same-host');
  await answer.body.dump();
  const { headers } = answer;
  const linked = headers['x-linked-etag'];
  const etag = (linked || headers.etag || '').replace(/^W\//, '').replaceAll('"', '');
  if (!/^[A-Za-z0-9._-]{1,128}$/.test(etag) || etag.startsWith('.')) {
    throw new HpcserveError('E_MODEL_PULL', {
      what: `${endpoint.host} does not say which version of ${path} it has`,
      because: 'its answer has neither X-Linked-Etag nor a usable ETag',
      try: 'check HF_ENDPOINT, or download the file by its address with --sha256',
    });
  }
  const redirected = answer.status >= 300;
  const size = headers['x-linked-size'] ?? (redirected ? undefined : headers['content-length']);
  return {
    url,
    etag,
    expected: {
      size_bytes: size !== undefined && /^\d+$/.test(size) ? Number(size) : undefined,
      sha256: /^[0-9a-f]{64}$/.test(etag) ? etag : undefined,
      git_sha1: /^[0-9a-f]{40}$/.test(etag) ? etag : undefined,
    },
  };
}

async function retried(
  method: 'GET' | 'HEAD',
  url: URL,
  options: HttpOptions,
  follow?: 'same-host',
): Promise<HttpAnswer> {
  const retry = new RetryPolicy(options);
  for (;;) {
    try {
      const answer = await httpRequest(method, url, {}, options, follow);
      if (answer.status < 400) return answer;
      await answer.body.dump();
      if (!isTemporary(answer.status)) throw refusal(url, answer, options.token !== undefined);
      await retry.failed(url, `it answered ${answer.status}`, pauseAsked_s(answer.headers));
    } catch (error) {
      options.signal?.throwIfAborted();
      if (!isNetworkError(error)) throw error;
      await retry.failed(url, error.message);
    }
  }
}

async function readText(answer: HttpAnswer, url: URL): Promise<string> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of answer.body as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > listing_bytes_max) {
      throw new HpcserveError('E_MODEL_PULL', {
        what: `the listing of ${url.host} is larger than ${listing_bytes_max} bytes`,
      });
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString('utf8');
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** The endpoint may have a path of its own, as mirrors do. */
function below(endpoint: URL, path: string): URL {
  const base = new URL(endpoint);
  if (!base.pathname.endsWith('/')) base.pathname += '/';
  return new URL(path, base);
}
