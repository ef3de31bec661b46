/**
 * The grow-only map of sessions (LLMFabric §3): merged by lifecycle, then version, then the bytes of the record, so that
 * merging in any order, in any grouping, any number of times gives the same map.
 */
import { type GossipRecord, left, type Mark } from './messages.ts';

export class RecordMap {
  readonly #records = new Map<string, GossipRecord>();
  /** Ids of sessions that left and were forgotten: they do not come back. */
  readonly #forgotten = new Set<string>();
  /** Ids of sessions that have not left, in ascending order: the ring. */
  readonly #ring: string[] = [];
  #digest = 0;

  get size(): number {
    return this.#records.size;
  }

  /** Equal for equal maps; of different ones, different but for one in 2^53. */
  get digest(): number {
    return this.#digest;
  }

  /** Ids of sessions that have not left, ascending. */
  get ring(): readonly string[] {
    return this.#ring;
  }

  get(session_id: string): GossipRecord | undefined {
    return this.#records.get(session_id);
  }

  values(): IterableIterator<GossipRecord> {
    return this.#records.values();
  }

  /** @returns whether the record was news */
  merge(record: GossipRecord): boolean {
    const known = this.#records.get(record.session_id);
    if (known ? !isNewer(record, known) : this.#forgotten.has(record.session_id)) return false;
    if (known) this.#digest = (this.#digest - markHash(known) + 2 ** 52) % 2 ** 52;
    this.#records.set(record.session_id, record);
    this.#digest = (this.#digest + markHash(record)) % 2 ** 52;
    const was = known !== undefined && known.lifecycle < left;
    const is = record.lifecycle < left;
    if (was !== is) this.#turn(record.session_id, is);
    return true;
  }

  /** Drops the record of a session that left. */
  forget(session_id: string): void {
    const known = this.#records.get(session_id);
    if (known === undefined || known.lifecycle < left) return;
    this.#records.delete(session_id);
    this.#digest = (this.#digest - markHash(known) + 2 ** 52) % 2 ** 52;
    this.#forgotten.add(session_id);
  }

  marks(): Mark[] {
    return [...this.#records.values()].map(({ session_id, lifecycle, version }) => [
      session_id,
      lifecycle,
      version,
    ]);
  }

  /** Whether a record of this mark would be news here. */
  lacks([session_id, lifecycle, version]: Mark): boolean {
    const known = this.#records.get(session_id);
    if (known === undefined) return !this.#forgotten.has(session_id);
    return lifecycle > known.lifecycle || (lifecycle === known.lifecycle && version > known.version);
  }

  /** The next `count` sessions after this one on the ring, without itself; with a negative count those before it. */
  neighbours(session_id: string, count: number): string[] {
    const ring = this.#ring;
    const at = lowerBound(ring, session_id);
    const others = ring.length - (ring[at] === session_id ? 1 : 0);
    const step = Math.sign(count);
    const found: string[] = [];
    // Without itself on the ring, the one at its place is already the next.
    let index = step > 0 && ring[at] !== session_id ? at - 1 : at;
    while (found.length < Math.min(Math.abs(count), others)) {
      index = (index + step + ring.length) % ring.length;
      if (ring[index] !== session_id) found.push(ring[index]!);
    }
    return found;
  }

  #turn(session_id: string, live: boolean): void {
    const at = lowerBound(this.#ring, session_id);
    if (live) this.#ring.splice(at, 0, session_id);
    else this.#ring.splice(at, 1);
  }
}

function isNewer(record: GossipRecord, known: GossipRecord): boolean {
  if (record.lifecycle !== known.lifecycle) return record.lifecycle > known.lifecycle;
  if (record.version !== known.version) return record.version > known.version;
  return Buffer.compare(record.envelope, known.envelope) > 0;
}

function lowerBound(sorted: readonly string[], value: string): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** 52 bits over id, lifecycle and version: FNV-1a twice, with different starts. */
function markHash({ session_id, lifecycle, version }: GossipRecord): number {
  let a = 0x811c9dc5 ^ lifecycle;
  let b = 0x9e3779b1 ^ version;
  for (let at = 0; at < session_id.length; at++) {
    const code = session_id.charCodeAt(at);
    a = Math.imul(a ^ code, 0x01000193);
    b = Math.imul(b ^ (code + at), 0x85ebca6b);
  }
  return (a >>> 0) * 2 ** 20 + ((b ^ (b >>> 13)) >>> 12);
}
