import type { TransferMemory } from '../../../native/fabric/memory.ts';
import { huge_page_bytes, SharedMemory } from '../../../native/memory-map.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { refactoringBounds } from '../../pipeline/refactoring-bounds.ts';
import type { HostRoom } from '../compute/kv-messages.ts';

/**
 * Of one room at most: rows of a stage come in pieces of that size. Lower: less is copied between two iterations;
 * higher: more goes with one word between workers, and with one iteration that is waited for.
 */
const room_bytes_max = refactoringBounds.beside_piece_bytes_max;
/** Rooms of all sizes are a multiple of this, so that all of them fill whole huge pages. */
const room_bytes_min = huge_page_bytes / 8;
/** Of the device's memory, one room. Lower: more of the host's memory; higher: more parts where devices are small. */
const pool_parts = 256;
/** Rooms for each direction. Lower: less memory of the host; higher: more peers at once. */
const rooms_per_direction = 4;
/** A peer waits so long for a room; then it hears that there is none. Below what it waits for an answer. */
const room_wait_ms = 2000;

/** Memory of the host for rows on their way, for one transfer. */
export interface StagingRoom extends HostRoom {
  /** Nothing reads or writes it any more. */
  give(): void;
}

/**
 * Memory of the host through which keys and values of a device come and go that others cannot address: a file without a
 * name, so that every way of transfers has it, for as long as the process lives. What leaves and what comes have rooms
 * of their own: two workers that send to each other never wait for one another.
 */
export class HostStaging {
  readonly memory: TransferMemory;
  readonly #leaving: Rooms;
  readonly #coming: Rooms;

  /** @param pool_bytes of the device @throws HpcserveError E_NATIVE_MEMORY */
  constructor(pool_bytes: number) {
    const room_bytes = roomSize_bytes(pool_bytes);
    const file = SharedMemory.create('hpcserve-staging', 2 * rooms_per_direction * room_bytes);
    const address = file.map();
    this.memory = { address, bytes: file.bytes, descriptor: file.descriptor };
    const rooms = Array.from({ length: 2 * rooms_per_direction }, (_, at): HostRoom => {
      const offset = at * room_bytes;
      return { offset, bytes: room_bytes, address: address + BigInt(offset) };
    });
    this.#leaving = new Rooms(rooms.slice(0, rooms_per_direction));
    this.#coming = new Rooms(rooms.slice(rooms_per_direction));
  }

  /** Of each of its rooms. */
  get room_bytes(): number {
    return this.memory.bytes / (2 * rooms_per_direction);
  }

  /** For what leaves: in turn, however long it takes. */
  toLeave(): Promise<StagingRoom> {
    return this.#leaving.take();
  }

  /** For what comes. @throws HpcserveError E_KV_ROOM */
  async toCome(bytes: number): Promise<StagingRoom> {
    if (bytes > this.room_bytes)
      throw new HpcserveError('E_KV_ROOM', {
        what: `${bytes} bytes of keys and values cannot come at once`,
        because: `they go through memory of the host, which has rooms of ${this.room_bytes} bytes`,
      });
    const limit = AbortSignal.timeout(room_wait_ms);
    return this.#coming.take(limit);
  }
}

function roomSize_bytes(pool_bytes: number): number {
  const whole = Math.floor(pool_bytes / pool_parts / room_bytes_min) * room_bytes_min;
  return Math.min(room_bytes_max, Math.max(room_bytes_min, whole));
}

/** Rooms of one direction, and who waits for one. */
class Rooms {
  /** The last one that was given back is taken first: its pages are there. */
  readonly #free: HostRoom[];
  readonly #waiting: ((room: HostRoom) => void)[] = [];

  constructor(rooms: readonly HostRoom[]) {
    this.#free = [...rooms].reverse();
  }

  /** @throws HpcserveError E_KV_ROOM: there is none in time */
  async take(limit?: AbortSignal): Promise<StagingRoom> {
    const room = this.#free.pop() ?? (await this.#wait(limit));
    let given = false;
    return {
      ...room,
      give: () => {
        if (given) return;
        given = true;
        const next = this.#waiting.shift();
        if (next) next(room);
        else this.#free.push(room);
      },
    };
  }

  #wait(limit: AbortSignal | undefined): Promise<HostRoom> {
    return new Promise((resolve, reject) => {
      const taken = (room: HostRoom): void => {
        limit?.removeEventListener('abort', late);
        resolve(room);
      };
      const late = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(taken), 1);
        reject(
          new HpcserveError('E_KV_ROOM', {
            what: 'keys and values have no room to come through',
            because: 'those of others are on their way through memory of the host',
          }),
        );
      };
      limit?.addEventListener('abort', late, { once: true });
      this.#waiting.push(taken);
    });
  }
}
