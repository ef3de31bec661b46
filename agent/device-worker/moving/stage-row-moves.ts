import type { MemoryPiece } from '../../../native/fabric/memory.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { KvFormat } from '../../transfer/kv-format.ts';
import type { KvPeer, KvSource } from '../../transfer/kv-source.ts';
import type { KvReservation } from '../../transfer/kv-target.ts';
import type { KvOffer } from '../../transfer/messages.ts';
import { runSize_bytes } from '../../transfer/run-headers.ts';
import type { HostRoom } from '../compute/kv-messages.ts';
import type { FromCompute } from '../compute/messages.ts';
import type { AgentPeers } from './agent-peers.ts';
import { type MovableModels, roomOnly } from './movable-models.ts';

type LeavingRows = FromCompute & { type: 'rows' };

/** Rows of stages on their way from and to this worker, while pipelines change their layout. */
export class StageRowMoves {
  readonly #models: MovableModels;
  readonly #agent: AgentPeers;
  readonly #peers = new Map<string, KvPeer>();

  constructor(models: MovableModels, agent: AgentPeers) {
    this.#models = models;
    this.#agent = agent;
  }

  /** @throws HpcserveError E_KV_*: they are not there */
  async send(
    source: KvSource,
    { id, model, refactoring, piece, layers, rows, pieces: inPool }: LeavingRows,
  ): Promise<void> {
    const { to_session = '' } = piece;
    const peer = await this.#peerOf(to_session);
    const tokens = { begin: 0, end: rows };
    const offer = {
      sequence: `${nameOf(refactoring, piece)}:${id}`,
      generation: 1,
      format: this.#models.rowFormatOf(model),
      layers,
      tokens,
      runs: [tokens],
      stage: { model, refactoring, piece },
    };
    try {
      await this.#models.withRoom(async (into) => {
        const pieces = inPool ?? (await this.#read(id, into!));
        await source.send(peer, { offer, pieces: () => pieces });
      });
    } catch (error) {
      // It may be another process by the next time.
      this.#peers.delete(to_session);
      throw error;
    }
  }

  async #read(id: number, into: HostRoom): Promise<MemoryPiece[]> {
    const bytes = (await this.#models.ask({ do: 'read_rows', id, into })) as number;
    return [{ offset: into.offset, bytes }];
  }

  /** @throws HpcserveError E_KV_FORMAT */
  formatOf({ stage }: KvOffer): KvFormat {
    return this.#models.rowFormatOf(stage?.model ?? '');
  }

  /** @throws HpcserveError E_KV_STALE, E_KV_FORMAT, E_KV_ROOM */
  async reserve(offer: KvOffer, stage: NonNullable<KvOffer['stage']>): Promise<KvReservation> {
    const { sequence: arrival, round } = offer;
    const name = `${arrival} ${round}`;
    const ask = this.#models.ask.bind(this.#models);
    const bytes = runSize_bytes(offer, offer.tokens);
    const room = await this.#models.staging?.toCome(bytes);
    const from = room && { ...roomOnly(room), bytes };
    let inPool: MemoryPiece[] | undefined;
    try {
      inPool = (await ask({ do: 'reserve_rows', arrival: name, ...stage })) as MemoryPiece[] | undefined;
    } catch (error) {
      room?.give();
      throw error;
    }
    const pieces = inPool ?? [{ offset: room!.offset, bytes }];
    return {
      places: () => pieces,
      commit: async (way) => {
        try {
          await ask({ do: 'commit_rows', arrival: name, way, from });
        } finally {
          room?.give();
        }
      },
      abort: () => {
        room?.give();
        void ask({ do: 'abort_rows', arrival: name }).catch(() => undefined); // the thread has ended
      },
    };
  }

  async #peerOf(session_id: string): Promise<KvPeer> {
    const known = this.#peers.get(session_id);
    if (known) return known;
    const listed = await this.#agent.find(session_id);
    if (!listed)
      throw new HpcserveError('E_KV_TRANSFER', {
        what: 'keys and values of a stage cannot be sent to its next device',
        because: `the session ${session_id} of its worker is not known here`,
      });
    const peer = this.#agent.peer(listed);
    this.#peers.set(session_id, peer);
    return peer;
  }
}

function nameOf(refactoring: number, { transfer, round, piece, from }: LeavingRows['piece']): string {
  // Of devices only their last word: paths may be long, and sequences have short names.
  return `stage:${refactoring}:${transfer}:${round}:${piece}:${from.slice(-16).replaceAll(/[^\x21-\x7e]/g, '_')}`;
}
