import { systemMessage } from '../../spec/errors/system-error.ts';
import type { SealedFolder } from '../kept/sealed-folder.ts';
import { unknownKept } from '../kept/unknown-kept.ts';
import type { GatewayLog } from '../log.ts';

/** Results that may be lost with the gateway, and are computed again. Lower: fewer; higher: fewer files. */
const unsaved_max = 64;
/** The same in bytes, of long answers. Lower: less memory; higher: fewer files. */
const unsaved_bytes_max = 8 << 20;
/** Parts in memory while results are put into order. Lower: less memory; higher: late answers cost less to find. */
const readParts_max = 4;
/** Given at a time. Lower: less memory; higher: fewer calls of the filesystem. */
const piece_bytes = 1 << 20;
const newline = 10;

/** What came of one request: its place in the batch, and its line of the output. */
export interface BatchResult {
  at: number;
  ok: boolean;
  line: string;
}

/** How a request stands. */
const states = { open: 0, failed: 1, ok: 2 } as const;
const recordPattern = /^(\d{1,9}) ([01]) /;
const recordHead_bytes_max = 12;

/** A kept part: the lines of its results by their requests, each with its newline. */
type Part = ReadonlyMap<number, { ok: boolean; line: Buffer }>;

export interface ResultPartsOptions {
  key_id: string;
  batch_id: string;
  /** How many requests the batch has. */
  requests: number;
  folder: SealedFolder;
  log: GatewayLog;
}

/**
 * Results of a batch that runs, in numbered parts on disk: a run that goes on later reads them up to the first gap.
 * In memory is how each request stands and which part has its result, and the lines that are in no part yet.
 *
 * ```
 *   add ─► unsaved ─► part 0, part 1, …     in the order of the answers, a line each: AT OK RESULT
 *                          └─► lines        in the order of the requests
 * ```
 */
export class ResultParts {
  readonly #options: ResultPartsOptions;
  /** By request. */
  readonly #states: Uint8Array;
  readonly #partOf: Uint32Array;
  readonly #counts = { completed: 0, failed: 0 };
  #bytes = 0;
  #unsaved: BatchResult[] = [];
  #unsaved_bytes = 0;
  #parts = 0;
  /** Never rejects, so that a part that cannot be written does not stand in the way of the next. */
  #saving: Promise<boolean> = Promise.resolve(true);
  #isFailing = false;

  constructor(options: ResultPartsOptions) {
    this.#options = options;
    this.#states = new Uint8Array(options.requests);
    this.#partOf = new Uint32Array(options.requests);
  }

  get counts(): Readonly<{ completed: number; failed: number }> {
    return this.#counts;
  }

  /** Of all lines, saved or not. */
  get bytes(): number {
    return this.#bytes;
  }

  /** As many as may be lost are not saved yet. */
  get isFull(): boolean {
    return this.#unsaved.length >= unsaved_max || this.#unsaved_bytes >= unsaved_bytes_max;
  }

  has(at: number): boolean {
    return this.#states[at] !== states.open;
  }

  add(result: BatchResult): void {
    const bytes = Buffer.byteLength(result.line) + 1;
    this.#unsaved.push(result);
    this.#unsaved_bytes += bytes;
    this.#note(result.at, result.ok, bytes);
  }

  /** @returns whether all that was added before is kept now; what is not waits for the next call */
  save(): Promise<boolean> {
    this.#saving = this.#saving.then(() => this.#write());
    return this.#saving;
  }

  /** Takes up what an earlier run has kept. @throws the system's error */
  async load(): Promise<void> {
    for (; ; this.#parts++) {
      const part = await this.#read(this.#parts);
      if (!part) return;
      for (const [at, { ok, line }] of part) {
        if (this.has(at)) continue;
        this.#note(at, ok, line.length);
        this.#partOf[at] = this.#parts;
      }
    }
  }

  /**
   * Lines of the requests that were answered, or of those that failed, in the order of the requests. All results must
   * be saved.
   *
   * @throws E_KEPT_UNKNOWN where a part is gone, the system's error
   */
  async *lines(ok: boolean): AsyncGenerator<Buffer> {
    const wanted = ok ? states.ok : states.failed;
    /** The one that was used last is the last. */
    const read = new Map<number, Part>();
    let piece: Buffer[] = [];
    let gathered_bytes = 0;
    for (const [at, state] of this.#states.entries()) {
      if (state !== wanted) continue;
      const number = this.#partOf[at]!;
      const part = read.get(number) ?? (await this.#read(number));
      const line = part?.get(at)?.line;
      if (!line) throw unknownKept('part', this.#idOf(number), null);
      read.delete(number);
      read.set(number, part);
      if (read.size > readParts_max) read.delete(read.keys().next().value!);
      piece.push(line);
      gathered_bytes += line.length;
      if (gathered_bytes < piece_bytes) continue;
      yield Buffer.concat(piece);
      piece = [];
      gathered_bytes = 0;
    }
    yield Buffer.concat(piece);
  }

  /** @throws the system's error */
  async remove(): Promise<void> {
    const { folder, key_id } = this.#options;
    for (let part = 0; part < this.#parts; part++) await folder.remove(key_id, this.#idOf(part));
  }

  #note(at: number, ok: boolean, bytes: number): void {
    this.#states[at] = ok ? states.ok : states.failed;
    this.#counts[ok ? 'completed' : 'failed']++;
    this.#bytes += bytes;
  }

  async #write(): Promise<boolean> {
    const part = this.#unsaved;
    if (part.length === 0) return true;
    const part_bytes = this.#unsaved_bytes;
    this.#unsaved = [];
    this.#unsaved_bytes = 0;
    const { folder, key_id, batch_id: batch, log } = this.#options;
    const records = part.map(({ at, ok, line }) => `${at} ${ok ? 1 : 0} ${line}\n`);
    try {
      await folder.put(
        key_id,
        this.#idOf(this.#parts),
        Buffer.concat(records.map((one) => Buffer.from(one))),
      );
    } catch (error) {
      // The number is not used up: a gap would hide all parts behind it.
      this.#unsaved = [...part, ...this.#unsaved];
      this.#unsaved_bytes += part_bytes;
      if (!this.#isFailing)
        log.error({ batch, reason: systemMessage(error as Error) }, 'results of a batch cannot be kept');
      this.#isFailing = true;
      return false;
    }
    for (const { at } of part) this.#partOf[at] = this.#parts;
    this.#parts++;
    if (this.#isFailing) log.info({ batch }, 'results of a batch are kept again');
    this.#isFailing = false;
    return true;
  }

  /** Undefined where there is none, or none that can be read. */
  async #read(number: number): Promise<Part | undefined> {
    const { folder, key_id, requests } = this.#options;
    const bytes = await folder.get(key_id, this.#idOf(number));
    if (!bytes) return undefined;
    const part = new Map<number, { ok: boolean; line: Buffer }>();
    for (let begin = 0, end: number; begin < bytes.length; begin = end) {
      end = bytes.indexOf(newline, begin) + 1;
      const head = recordPattern.exec(bytes.toString('latin1', begin, begin + recordHead_bytes_max));
      if (!head || end === 0 || Number(head[1]) >= requests) return undefined;
      const line = bytes.subarray(begin + head[0].length, end);
      part.set(Number(head[1]), { ok: head[2] === '1', line });
    }
    return part;
  }

  #idOf(part: number): string {
    return `part-${this.#options.batch_id.replace(/^batch_/, '')}x${part}`;
  }
}
