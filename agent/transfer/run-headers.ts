import { HpcserveError } from '../../spec/errors/error.ts';
import type { KvOffer, KvRunHeader, Range } from './messages.ts';

/** Of one token in all layers of an offer: keys and values. */
function tokenSize_bytes({ format, layers }: Pick<KvOffer, 'format' | 'layers'>): number {
  return 2 * (layers.end - layers.begin) * format.row_bytes;
}

export function runSize_bytes(offer: Pick<KvOffer, 'format' | 'layers'>, { begin, end }: Range): number {
  return (end - begin) * tokenSize_bytes(offer);
}

export function runHeaders(offer: KvOffer, checksums: readonly number[]): KvRunHeader[] {
  const { sequence, generation, layers, format, runs } = offer;
  return runs.map((tokens, at) => ({
    sequence,
    generation,
    layers,
    tokens,
    kv_type: format.kv_type,
    bytes: runSize_bytes(offer, tokens),
    checksum: checksums[at]!,
  }));
}

/**
 * Compares what is said of runs with what was announced and with what came.
 * @throws HpcserveError E_KV_CHECKSUM, E_KV_STALE
 */
export function checkHeaders(
  offer: KvOffer,
  headers: readonly KvRunHeader[],
  checksums: readonly number[],
): void {
  const expected = runHeaders(offer, checksums);
  const name = `sequence ${offer.sequence}, generation ${offer.generation}`;
  if (headers.length !== expected.length)
    throw new HpcserveError('E_KV_STALE', {
      what: `${headers.length} runs are said to have come of ${name}`,
      because: `${expected.length} were announced`,
    });
  for (const [at, header] of headers.entries()) {
    const { checksum, ...meant } = expected[at]!;
    const { checksum: said, ...told } = header;
    const { begin, end } = meant.tokens;
    if (JSON.stringify(sorted(told)) !== JSON.stringify(sorted(meant)))
      throw new HpcserveError('E_KV_STALE', {
        what: `a run that came for tokens ${begin} to ${end} of ${name} is another one`,
        because: `it is said to be ${JSON.stringify(told)}`,
      });
    if (checksum !== said)
      throw new HpcserveError('E_KV_CHECKSUM', {
        what: `keys and values of tokens ${begin} to ${end} of ${name} are not those that were sent`,
        because: `their checksum is ${hex(checksum)}, and ${hex(said)} was sent`,
      });
  }
}

function sorted({ sequence, generation, layers, tokens, kv_type, bytes }: Omit<KvRunHeader, 'checksum'>) {
  return [sequence, generation, layers.begin, layers.end, tokens.begin, tokens.end, kv_type, bytes];
}

function hex(checksum: number): string {
  return checksum.toString(16).padStart(8, '0');
}

/**
 * Tokens in order, without gaps, and no more bytes than there may be.
 * @throws HpcserveError E_KV_MESSAGE
 */
export function checkRuns(offer: KvOffer, bytes_max: number): void {
  let at = offer.tokens.begin;
  for (const { begin, end } of offer.runs) {
    if (begin !== at)
      throw wrong(offer, `a run begins at token ${begin}, and the one before it ends at ${at}`);
    at = end;
  }
  if (at !== offer.tokens.end)
    throw wrong(offer, `the last run ends at ${at}, and the tokens at ${offer.tokens.end}`);
  const bytes = runSize_bytes(offer, offer.tokens);
  if (bytes > bytes_max) throw wrong(offer, `it has ${bytes} bytes, and at most ${bytes_max} may come`);
}

function wrong({ sequence }: KvOffer, because: string): HpcserveError {
  return new HpcserveError('E_KV_MESSAGE', {
    what: `the transfer of sequence ${sequence} cannot be`,
    because,
  });
}
