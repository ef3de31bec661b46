/**
 * Downloads one file into place: resumes with Range and If-Range, notices content that changed between two
 * parts, verifies the checksum, and renames only what is whole. The unfinished part lies beside the target as
 * `<target>.incomplete`, its validators in `<target>.incomplete.json`.
 */
import { createHash, type Hash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { type FileHandle, open, readFile, rm, stat, statfs, writeFile } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { z } from 'zod';
import { FolderLock, lastingLock } from '../../../host/folder-lock.ts';
import { makeFolders } from '../../../host/make-folders.ts';
import { moveIntoPlace } from '../../../host/move.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { whoHolds } from '../../state/locks.ts';
import { withoutSecrets } from '../parse-source.ts';
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
import { type PullListener, RateMeter } from './progress.ts';

export interface Expected {
  /** 64 hexadecimal digits. */
  sha256?: string;
  /** Object id of git: SHA-1 over `blob <size>\0` and the content. */
  git_sha1?: string;
  size_bytes?: number;
}

export interface DownloadOptions extends HttpOptions {
  url: URL;
  /** Absolute path of the finished file. */
  target: string;
  /** Whether others may read the file, as far as the umask lets them: in the cache of the hub. Else it is private. */
  shared?: boolean;
  expected: Expected;
  /** Name in events. */
  label: string;
  on_event: PullListener;
  /**
   * Looks at the whole file before it is renamed; throws where it is not what was wanted. The error is a note where the
   * file has the SHA-256 that was expected: it is the right one, for an engine that knows more formats than we.
   */
  inspect?: (path: string) => void;
}

export interface Downloaded {
  bytes: number;
  /** Of the content; computed always. */
  sha256: string;
}

/** What the server said about the version of the file that the unfinished part belongs to. */
const validatorsSchema = z.object({
  url: z.string(),
  etag: z.string().optional(),
  last_modified: z.string().optional(),
  size_bytes: z.number().optional(),
});
type Validators = z.infer<typeof validatorsSchema>;

/** As huggingface_hub makes them: a group that shares a cache sets its umask for it. */
export const sharedModes = { file: 0o666, folder: 0o777 };
const ownModes = { file: 0o600, folder: 0o700 };

const progress_interval_ms = 250;
/** Left free on the filesystem: a full one harms others. */
const disk_reserve_bytes = 64 * 1024 * 1024;

/**
 * Throws E_MODEL_PULL, E_MODEL_PULL_NETWORK, E_MODEL_PULL_BUSY, E_MODEL_CHECKSUM, E_MODEL_DISK, what `inspect`
 * throws, and the reason of the signal. The unfinished part stays, except where its content is wrong.
 */
export async function downloadFile(options: DownloadOptions): Promise<Downloaded> {
  try {
    makeFolders(dirname(options.target), modesOf(options).folder);
  } catch (error) {
    throw diskError(options.target, error);
  }
  const lock = await lockTarget(options);
  try {
    return await new Download(options).run();
  } finally {
    lock.release();
  }
}

function modesOf({ shared }: DownloadOptions): typeof ownModes {
  return shared ? sharedModes : ownModes;
}

/** Where the unfinished part of a file lies. */
export function partialPath(target: string): string {
  return `${target}.incomplete`;
}

async function lockTarget(options: DownloadOptions): Promise<FolderLock> {
  try {
    return await FolderLock.acquire(`${options.target}.lock`, {
      command: 'hpcserve model pull',
      timeout_ms: 0,
      times: lastingLock,
      shared: options.shared === true,
      error: (trouble) =>
        new HpcserveError('E_MODEL_PULL_BUSY', {
          what: `${options.target} is being downloaded already`,
          because: whoHolds(trouble),
        }),
    });
  } catch (error) {
    throw diskError(options.target, error);
  }
}

class Download {
  readonly #options: DownloadOptions;
  readonly #partial: string;
  readonly #sidecar: string;
  readonly #retry: RetryPolicy;
  readonly #rate = new RateMeter();
  #validators: Validators | undefined;
  #hashes!: Hashes;
  #have = 0;
  #sha256 = '';
  /** Whether bytes of more than one answer are in the file: only then can a second try help a wrong checksum. */
  #joined = false;
  #lastEvent = Number.NEGATIVE_INFINITY;

  constructor(options: DownloadOptions) {
    this.#options = options;
    this.#partial = partialPath(options.target);
    this.#sidecar = `${this.#partial}.json`;
    this.#retry = new RetryPolicy(options);
  }

  async run(): Promise<Downloaded> {
    await this.#restore();
    await using file = await open(this.#partial, 'a+', modesOf(this.#options).file).catch(
      (error: unknown) => {
        throw diskError(this.#partial, error);
      },
    );
    try {
      await this.#receive(file);
      let wrong = this.#compare();
      if (wrong && this.#joined) {
        this.#note('the checksum is wrong after joining parts: starting over');
        await this.#restart(file);
        await this.#receive(file);
        wrong = this.#compare();
      }
      if (wrong) {
        await this.#restart(file);
        throw wrong;
      }
      return await this.#finish(file);
    } finally {
      // A part without bytes helps nobody.
      if (this.#have === 0) await this.#discard();
    }
  }

  /** Takes up what an earlier run left, where the server's version of it is known or a checksum will tell. */
  async #restore(): Promise<void> {
    this.#hashes = new Hashes(this.#options.expected);
    const size = await stat(this.#partial).then((entry) => entry.size, absent);
    if (size === undefined) return;
    this.#validators = await readValidators(this.#sidecar, this.#options.url);
    const tooLong = size > (this.#options.expected.size_bytes ?? Number.POSITIVE_INFINITY);
    if (tooLong || !this.#resumable()) {
      await rm(this.#partial, { force: true });
      return;
    }
    for await (const piece of createReadStream(this.#partial)) this.#hashes.update(piece as Buffer);
    this.#have = size;
    this.#joined = size > 0;
    if (size > 0) this.#note(`continuing after ${size} bytes`);
  }

  /** Another version of the file would be noticed, by the server or by the checksum. */
  #resumable(): boolean {
    const { sha256, git_sha1 } = this.#options.expected;
    return validatorOf(this.#validators) !== undefined || (sha256 ?? git_sha1) !== undefined;
  }

  /** Until the file is whole as far as the server tells its size. */
  async #receive(file: FileHandle): Promise<void> {
    const { url, expected } = this.#options;
    for (;;) {
      if (this.#have > 0 && this.#have === (expected.size_bytes ?? this.#validators?.size_bytes)) return;
      if (this.#have > 0 && !this.#resumable()) {
        this.#note('the server names no version of the file: starting over');
        await this.#restart(file);
      }
      try {
        const answer = await httpRequest('GET', url, this.#rangeHeaders(), this.#options);
        if (await this.#take(answer, file)) return;
      } catch (error) {
        this.#options.signal?.throwIfAborted();
        if (!isNetworkError(error)) throw error;
        await this.#retry.failed(url, error.message);
      }
    }
  }

  #rangeHeaders(): Record<string, string> {
    if (this.#have === 0) return {};
    const validator = validatorOf(this.#validators);
    return { range: `bytes=${this.#have}-`, ...(validator ? { 'if-range': validator } : {}) };
  }

  /** True where the answer brought the end of the file. */
  async #take(answer: HttpAnswer, file: FileHandle): Promise<boolean> {
    const { url, token } = this.#options;
    if (answer.status === 416) {
      await answer.body.dump();
      this.#note('the server has fewer bytes than are here: starting over');
      await this.#restart(file);
      await this.#retry.failed(url, 'the server refused the range (416)');
      return false;
    }
    if (isTemporary(answer.status)) {
      await answer.body.dump();
      await this.#retry.failed(url, `${url.host} answered ${answer.status}`, pauseAsked_s(answer.headers));
      return false;
    }
    if (answer.status !== 200 && answer.status !== 206) {
      await answer.body.dump();
      throw refusal(url, answer, token !== undefined);
    }
    const total = await this.#align(answer, file);
    if (total === undefined) return false;
    await this.#checkSpace(total.bytes);
    await this.#append(answer, file);
    if (total.bytes !== undefined && this.#have < total.bytes) {
      await this.#retry.failed(url, `the connection ended after ${this.#have} of ${total.bytes} bytes`);
      return false;
    }
    return true;
  }

  /** Makes the file's end and the answer's beginning meet. Undefined: ask again from the start. */
  async #align(answer: HttpAnswer, file: FileHandle): Promise<{ bytes: number | undefined } | undefined> {
    const { headers } = answer;
    const validators: Validators = {
      url: withoutSecrets(this.#options.url),
      ...(headers.etag ? { etag: headers.etag } : {}),
      ...(headers['last-modified'] ? { last_modified: headers['last-modified'] } : {}),
    };
    let bytes: number | undefined;
    if (answer.status === 206) {
      const range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers['content-range'] ?? '');
      const changed = this.#validators !== undefined && differ(this.#validators, validators);
      if (!range || Number(range[1]) !== this.#have || changed) {
        await answer.body.dump();
        this.#note(
          changed ? 'the file changed on the server: starting over' : 'the server sent another range',
        );
        await this.#restart(file);
        await this.#retry.failed(this.#options.url, 'the answer did not fit the part that is here');
        return undefined;
      }
      bytes = range[2] === '*' ? undefined : Number(range[2]);
      this.#joined = true;
    } else {
      if (this.#have > 0) {
        const changed = this.#validators !== undefined && differ(this.#validators, validators);
        this.#note(
          changed
            ? 'the file changed on the server: starting over'
            : 'the server cannot resume: starting over',
        );
        await this.#restart(file);
      }
      bytes = headers['content-length'] === undefined ? undefined : Number(headers['content-length']);
    }
    const size = this.#options.expected.size_bytes;
    if (size !== undefined && bytes !== undefined && bytes !== size) {
      await answer.body.dump();
      throw new HpcserveError('E_MODEL_CHECKSUM', {
        what: `${this.#options.label} has ${bytes} bytes instead of ${size}`,
        because: `${this.#options.url.host} offers another file than its listing promised`,
      });
    }
    this.#validators = { ...validators, ...(bytes === undefined ? {} : { size_bytes: bytes }) };
    const { file: mode } = modesOf(this.#options);
    await writeFile(this.#sidecar, JSON.stringify(this.#validators), { mode }).catch((error: unknown) => {
      throw diskError(this.#sidecar, error);
    });
    return { bytes };
  }

  async #append(answer: HttpAnswer, file: FileHandle): Promise<void> {
    for await (const piece of answer.body as AsyncIterable<Buffer>) {
      await file.appendFile(piece).catch((error: unknown) => {
        throw diskError(this.#partial, error);
      });
      this.#hashes.update(piece);
      this.#have += piece.length;
      this.#retry.progressed();
      this.#progress(piece.length);
    }
  }

  async #checkSpace(total: number | undefined): Promise<void> {
    if (total === undefined) return;
    const folder = dirname(this.#partial);
    const space = await statfs(folder);
    const free = space.bavail * space.bsize;
    const needed = total - this.#have + disk_reserve_bytes;
    if (free >= needed) return;
    throw new HpcserveError('E_MODEL_DISK', {
      what: `${this.#options.label} does not fit into ${folder}`,
      because: `${total - this.#have} bytes are to come, ${free} are free (${disk_reserve_bytes} stay reserved)`,
      details: { needed_bytes: needed, free_bytes: free },
    });
  }

  /** The error where the received bytes are not those expected. */
  #compare(): HpcserveError | undefined {
    const { expected, label, url } = this.#options;
    const found = this.#hashes.digest();
    this.#sha256 = found.sha256;
    const wrong =
      (expected.sha256 !== undefined && expected.sha256.toLowerCase() !== found.sha256) ||
      (expected.git_sha1 !== undefined && expected.git_sha1 !== found.git_sha1) ||
      (expected.size_bytes !== undefined && expected.size_bytes !== this.#have);
    if (!wrong) return undefined;
    return new HpcserveError('E_MODEL_CHECKSUM', {
      what: `${label} from ${url.host} is not the file that was promised`,
      because: [
        ...(expected.sha256
          ? [`SHA-256 expected ${expected.sha256.toLowerCase()}, received ${found.sha256}`]
          : []),
        ...(expected.git_sha1
          ? [`git object expected ${expected.git_sha1}, received ${found.git_sha1}`]
          : []),
        `${this.#have} bytes were received`,
      ],
    });
  }

  async #finish(file: FileHandle): Promise<Downloaded> {
    const { target, label, on_event, inspect } = this.#options;
    // Some filesystems say only now that a quota is exceeded.
    await file.sync().catch((error: unknown) => {
      throw diskError(this.#partial, error);
    });
    try {
      inspect?.(this.#partial);
    } catch (error) {
      if (this.#verifiedBy() !== 'sha256') {
        await this.#discard();
        throw error;
      }
      this.#note(
        `kept, since its checksum is right, but hpcserve cannot read it: ${(error as Error).message}`,
      );
    }
    await moveIntoPlace(this.#partial, target);
    await rm(this.#sidecar, { force: true });
    on_event({
      kind: 'file_done',
      file: label,
      path: target,
      bytes: this.#have,
      verified: this.#verifiedBy(),
    });
    return { bytes: this.#have, sha256: this.#sha256 };
  }

  #verifiedBy(): 'sha256' | 'git-sha1' | 'size' | 'none' {
    const { expected } = this.#options;
    if (expected.sha256 !== undefined) return 'sha256';
    if (expected.git_sha1 !== undefined) return 'git-sha1';
    const size = expected.size_bytes ?? this.#validators?.size_bytes;
    return size === undefined ? 'none' : 'size';
  }

  async #restart(file: FileHandle): Promise<void> {
    await file.truncate(0);
    await rm(this.#sidecar, { force: true });
    this.#have = 0;
    this.#joined = false;
    this.#validators = undefined;
    this.#hashes = new Hashes(this.#options.expected);
  }

  async #discard(): Promise<void> {
    await rm(this.#partial, { force: true });
    await rm(this.#sidecar, { force: true });
  }

  #progress(bytes: number): void {
    this.#rate.add(bytes);
    const now = performance.now();
    if (now - this.#lastEvent < progress_interval_ms) return;
    this.#lastEvent = now;
    this.#options.on_event({
      kind: 'progress',
      file: this.#options.label,
      bytes_done: this.#have,
      bytes_total: this.#options.expected.size_bytes ?? this.#validators?.size_bytes,
      bytes_per_s: this.#rate.bytes_per_s,
    });
  }

  #note(message: string): void {
    this.#options.on_event({ kind: 'note', file: this.#options.label, message });
  }
}

class Hashes {
  readonly #sha256 = createHash('sha256');
  readonly #git: Hash | undefined;

  constructor(expected: Expected) {
    // Git hashes the size first, so it must be known before the first byte.
    if (expected.git_sha1 !== undefined && expected.size_bytes !== undefined) {
      this.#git = createHash('sha1').update(`blob ${expected.size_bytes}\0`);
    }
  }

  update(piece: Buffer): void {
    this.#sha256.update(piece);
    this.#git?.update(piece);
  }

  digest(): { sha256: string; git_sha1: string | undefined } {
    return { sha256: this.#sha256.digest('hex'), git_sha1: this.#git?.digest('hex') };
  }
}

/** A strong ETag, else the date: what If-Range takes. */
function validatorOf(validators: Validators | undefined): string | undefined {
  if (validators?.etag && !validators.etag.startsWith('W/')) return validators.etag;
  return validators?.last_modified;
}

function differ(before: Validators, now: Validators): boolean {
  if (before.etag !== undefined && now.etag !== undefined) return before.etag !== now.etag;
  return (
    before.last_modified !== undefined &&
    now.last_modified !== undefined &&
    before.last_modified !== now.last_modified
  );
}

async function readValidators(path: string, url: URL): Promise<Validators | undefined> {
  const text = await readFile(path, 'utf8').catch(absent);
  if (text === undefined) return undefined;
  try {
    const parsed = validatorsSchema.safeParse(JSON.parse(text));
    return parsed.success && parsed.data.url === withoutSecrets(url) ? parsed.data : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function absent(error: unknown): undefined {
  if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
  throw error;
}

/** What a filesystem error on the target means. */
export function diskError(path: string, error: unknown): unknown {
  const code = (error as NodeJS.ErrnoException).code;
  if (typeof code !== 'string' || error instanceof HpcserveError) return error;
  return new HpcserveError('E_MODEL_DISK', {
    what: `${basename(path)} cannot be written to ${dirname(path)}`,
    because: (error as Error).message,
    cause: error,
  });
}
