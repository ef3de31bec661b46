/** Two ends of transfers in one process, with real sockets and real libfabric between them. */
import { type KvPeer, KvSource } from '../../../agent/transfer/kv-source.ts';
import { type KvReceiver, KvTarget } from '../../../agent/transfer/kv-target.ts';
import type { KvMessage, KvOffer, Range, Way } from '../../../agent/transfer/messages.ts';
import type { OutgoingKv } from '../../../agent/transfer/outgoing-kv.ts';
import type { TransferOptions } from '../../../agent/transfer/transfer-options.ts';
import { SessionIdentity } from '../../../mesh/index.ts';
import type { MemoryPiece } from '../../../native/fabric/memory.ts';
import type { HpcserveError } from '../../../spec/errors/error.ts';
import { TestMemory } from '../../native/fabric/support.ts';

export const format: KvOffer['format'] = {
  build: 'test',
  model: 'sha256:0',
  kv_type: 'f16',
  row_bytes: 512,
  n_head_kv: 4,
  head_dim: 64,
};
const layers = { begin: 0, end: 4 };
const token_bytes = 2 * 4 * 512;

/** Where rows of tokens lie in a memory: matrix by matrix, `first` tokens from its beginning. */
function matrixPieces(tokens_max: number, first: number) {
  return ({ begin, end }: Range): MemoryPiece[] =>
    Array.from({ length: 8 }, (_, matrix) => ({
      offset: (matrix * tokens_max + first + begin) * 512,
      bytes: (end - begin) * 512,
    }));
}

/** Takes what comes into its memory, and remembers what became of it. */
export class TestReceiver implements KvReceiver {
  readonly committed: KvOffer[] = [];
  readonly aborted: { offer: KvOffer; because: HpcserveError }[] = [];
  format = format;
  /** Thrown by the next reservation. */
  refusal: HpcserveError | undefined;
  readonly #pieces: (tokens: Range) => MemoryPiece[];

  constructor(pieces: (tokens: Range) => MemoryPiece[]) {
    this.#pieces = pieces;
  }

  formatOf(): KvOffer['format'] {
    return this.format;
  }

  room() {
    return { places: 1, kv_tokens: tokens_max };
  }

  /** Reservations wait for it. */
  room_free: Promise<void> | undefined;

  async reserve(offer: KvOffer) {
    if (this.refusal) throw this.refusal;
    await this.room_free;
    return {
      places: this.#pieces,
      commit: () => void this.committed.push(offer),
      abort: (because: HpcserveError) => void this.aborted.push({ offer, because }),
    };
  }
}

export interface PairOptions {
  ways?: Way[];
  private_fabric?: boolean;
  /** Default true. */
  same_node?: boolean;
  providers?: string[];
  /** What the target gets of a message; undefined: it never comes, and nobody answers. */
  tamper?: (message: KvMessage) => KvMessage | undefined | Promise<KvMessage>;
  /** Changed at the target. */
  target?: Partial<TransferOptions>;
}

export interface Pair extends AsyncDisposable {
  source: KvSource;
  target: KvTarget;
  receiver: TestReceiver;
  peer: KvPeer;
  from: TestMemory;
  to: TestMemory;
  /** What either side warned of. */
  notices: HpcserveError[];
  outgoing(sequence: string, tokens: number, change?: Partial<KvOffer>): OutgoingKv;
  /** Whether the target's memory has the rows that the source's has. */
  same(tokens: number): boolean;
}

export const tokens_max = 1024;

export async function transferPair(options: PairOptions = {}): Promise<Pair> {
  const [from, to] = [new TestMemory(8).fill(3), new TestMemory(8)];
  const notices: HpcserveError[] = [];
  const own = await SessionIdentity.create();
  const common = {
    own,
    host: '127.0.0.1',
    private_fabric: options.private_fabric ?? true,
    providers: options.providers ?? ['tcp'],
    warn: (notice: HpcserveError) => void notices.push(notice),
  };
  // Rows lie elsewhere at the target, so that a source that writes to its own offsets is found out.
  const placed = matrixPieces(tokens_max + 64, 17);
  const receiver = new TestReceiver(placed);
  const target = new KvTarget(
    { ...common, memory: to, own: await SessionIdentity.create(), ...options.target },
    receiver,
  );
  const source = new KvSource({ ...common, memory: from }, options.ways);
  const peer: KvPeer = {
    session_id: 'the-target',
    host: '127.0.0.1',
    same_node: options.same_node ?? true,
    ask: async (message, limit_ms) => {
      const told = options.tamper ? await options.tamper(message) : message;
      if (!told)
        return new Promise((_, reject) => setTimeout(() => reject(new Error('no answer')), limit_ms).unref());
      return target.answer('the-source', JSON.parse(JSON.stringify(told)));
    },
  };
  const pieces = matrixPieces(tokens_max, 0);
  return {
    source,
    target,
    receiver,
    peer,
    from,
    to,
    notices,
    outgoing: (sequence, tokens, change = {}) => ({
      offer: { ...offerOf(sequence, tokens), ...change },
      pieces,
    }),
    same: (tokens) => {
      const whole = { begin: 0, end: tokens };
      return pieces(whole).every(({ offset, bytes }, at) => {
        const place = placed(whole)[at]!.offset;
        return (
          Buffer.compare(
            from.view.subarray(offset, offset + bytes),
            to.view.subarray(place, place + bytes),
          ) === 0
        );
      });
    },
    [Symbol.asyncDispose]: async () => {
      await source.close();
      await target.close();
      from.free();
      to.free();
    },
  };
}

export function bytesOfTokens(tokens: number): number {
  return tokens * token_bytes;
}

function offerOf(sequence: string, tokens: number) {
  return {
    sequence,
    generation: 1,
    format,
    layers,
    tokens: { begin: 0, end: tokens },
    runs: runsOf(tokens),
  };
}

/** Of 64 tokens, and what is left. */
function runsOf(tokens: number): Range[] {
  const runs: Range[] = [];
  for (let begin = 0; begin < tokens; begin += 64) runs.push({ begin, end: Math.min(tokens, begin + 64) });
  return runs;
}
