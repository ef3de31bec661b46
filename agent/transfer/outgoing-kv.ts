import { joinMemoryPieces, type MemoryPiece } from '../../native/fabric/memory.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { KvOffer, Range } from './messages.ts';
import { runSize_bytes } from './run-headers.ts';

/** Keys and values that are to go to a peer. */
export interface OutgoingKv {
  /** Without the round: each try is one. */
  offer: Omit<KvOffer, 'round'>;
  /** Where the bytes of a run lie: per layer keys, then values, each in token order. They stay until it is sent. */
  pieces(tokens: Range): MemoryPiece[];
}

/**
 * Tokens of which a part consists are a multiple of this, where they can be: blocks of a cache are shared whole.
 */
const part_tokens = 16;

/**
 * What goes at once of a sequence, from a token on: as much as a peer takes. Rows of a stage, and a token that is more
 * than that alone, are not divided: see `checkSize`.
 */
export function partFrom(outgoing: OutgoingKv, begin: number, bytes_max: number): OutgoingKv {
  const { offer } = outgoing;
  const token_bytes = runSize_bytes(offer, { begin: 0, end: 1 });
  const left = offer.tokens.end - begin;
  const fits = Math.floor(bytes_max / token_bytes);
  if (!offer.of || fits < 1) return outgoing;
  const whole = Math.floor((begin + fits) / part_tokens) * part_tokens - begin;
  const end = begin + (fits >= left ? left : whole > 0 ? whole : fits);
  if (begin === offer.tokens.begin && end === offer.tokens.end) return outgoing;
  const runs = offer.runs.flatMap((run) => {
    const part = { begin: Math.max(run.begin, begin), end: Math.min(run.end, end) };
    return part.begin < part.end ? [{ run, part }] : [];
  });
  return {
    offer: {
      ...offer,
      tokens: { begin, end },
      runs: runs.map(({ part }) => part),
      of: { ...offer.of, token_ids: offer.of.token_ids.slice(0, end) },
    },
    pieces: (tokens) => {
      const { run } = runs.find(({ part }) => part.begin === tokens.begin)!;
      return tokensOf(outgoing.pieces(run), run, tokens, token_bytes / matricesOf(offer), matricesOf(offer));
    },
  };
}

/** @throws HpcserveError E_KV_ROOM: the peer does not take so much at once */
export function checkSize({ offer }: OutgoingKv, bytes_max: number): void {
  const bytes = runSize_bytes(offer, offer.tokens);
  if (bytes <= bytes_max) return;
  throw new HpcserveError('E_KV_ROOM', {
    what: `${bytes} bytes of keys and values cannot go to a peer at once`,
    because: `it takes ${bytes_max}`,
  });
}

/** Keys and values of each layer. */
function matricesOf({ layers }: Pick<KvOffer, 'layers'>): number {
  return 2 * (layers.end - layers.begin);
}

/** Of a run, in which the rows of one matrix follow those of another, where some of the tokens lie. */
function tokensOf(
  pieces: readonly MemoryPiece[],
  run: Range,
  tokens: Range,
  row_bytes: number,
  matrices: number,
): MemoryPiece[] {
  const found: MemoryPiece[] = [];
  const matrix_bytes = (run.end - run.begin) * row_bytes;
  let at = 0;
  // Of the bytes of the run, where the piece that is looked at begins.
  let piece_begin = 0;
  for (let matrix = 0; matrix < matrices; matrix++) {
    const begin = matrix * matrix_bytes + (tokens.begin - run.begin) * row_bytes;
    const end = begin + (tokens.end - tokens.begin) * row_bytes;
    for (let next = begin; next < end; ) {
      const { offset, bytes } = pieces[at]!;
      if (piece_begin + bytes <= next) {
        piece_begin += bytes;
        at++;
        continue;
      }
      const taken = Math.min(end, piece_begin + bytes) - next;
      found.push({ offset: offset + next - piece_begin, bytes: taken });
      next += taken;
    }
  }
  return joinMemoryPieces(found);
}
