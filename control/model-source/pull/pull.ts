/** `hpcserve model pull`: from the hub into the cache that every tool on a cluster reads, or from an address. */
import { existsSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { readlink, stat, statfs } from 'node:fs/promises';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { makeFolders } from '../../../host/make-folders.ts';
import { homeFolder } from '../../../host/own-user.ts';
import { replaceLink, writeFileAtomicallyAsync } from '../../../host/whole-file.ts';
import { readGguf } from '../../../native/formats/gguf-reader.ts';
import { readSafetensors } from '../../../native/formats/safetensors.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { hubCacheFolder, repositoryFolders } from '../hub-cache.ts';
import { type HubRepository, parseModelSource, withoutSecrets } from '../parse-source.ts';
import { chooseFiles } from './choose-files.ts';
import { diskError, downloadFile, partialPath, sharedModes } from './download.ts';
import type { HttpOptions } from './http.ts';
import { type HubFile, type HubFileVersion, hubFileVersion, listRepository } from './hub.ts';
import type { PullListener } from './progress.ts';

export interface PullOptions extends Omit<HttpOptions, 'token'> {
  /** `hf:org/name[@revision][/file]` or an http(s) address. */
  source: string;
  environment: Readonly<Record<string, string | undefined>>;
  /** Base address of the hub. Default: $HF_ENDPOINT, else https://huggingface.co. */
  endpoint?: string;
  /** `hub` folder of the cache. Default: as huggingface_hub's. */
  cache?: string;
  /** For addresses: the file, or the folder, to write to. Default: the working folder. */
  output?: string;
  working_folder: string;
  /** For addresses: the checksum that is known from elsewhere. */
  sha256?: string;
  /** For the hub: patterns of files. */
  include?: readonly string[];
  /** Files downloaded at once. Higher: faster from far away; lower: kinder to the login node. */
  parallel?: number;
  on_event: PullListener;
}

export interface PullResult {
  /** What a model.yaml takes as its source. */
  source: string;
  path: string;
  files: { file: string; path: string; bytes: number; sha256?: string }[];
  bytes: number;
  /** Of a repository: the commit that was downloaded. */
  commit?: string;
}

const parallel_default = 4;

/** A file of the repository that the snapshot lacks. Its blob may be in the cache all the same. */
interface AbsentFile {
  file: HubFile;
  version: HubFileVersion;
  blob: string;
}

/** Those that have one blob. */
type EqualFiles = [AbsentFile, ...AbsentFile[]];

/**
 * Throws E_MODEL_SOURCE, E_MODEL_PULL, E_MODEL_PULL_NETWORK, E_MODEL_PULL_BUSY, E_MODEL_CHECKSUM,
 * E_MODEL_DISK, E_FILE_EXISTS, and the format readers' errors where what arrived is no model and no SHA-256 says that
 * it is the right file.
 */
export async function pullModel(options: PullOptions): Promise<PullResult> {
  const source = parseModelSource(options.source);
  if (options.sha256 !== undefined && !/^[0-9a-f]{64}$/i.test(options.sha256)) {
    throw new HpcserveError('E_MODEL_SOURCE', {
      what: `"${options.sha256}" is not a SHA-256`,
      because: 'it must have 64 hexadecimal digits',
    });
  }
  if (source.kind === 'url') return await pullAddress(source.url, options);
  if (source.kind === 'hub') return await pullRepository(source.repository, options);
  throw new HpcserveError('E_MODEL_SOURCE', {
    what: `"${options.source}" cannot be pulled`,
    because:
      'only hf:org/name and http(s) addresses are downloaded; paths and aliases are used where they lie',
  });
}

async function pullAddress(url: URL, options: PullOptions): Promise<PullResult> {
  const name = decodeURIComponent(basename(url.pathname));
  const output = resolve(options.working_folder, options.output ?? '.');
  const isFolder =
    options.output === undefined || options.output.endsWith('/') || (await isDirectory(output));
  if (isFolder && !/^[\w][\w.+ -]*$/.test(name)) {
    throw new HpcserveError('E_MODEL_SOURCE', {
      what: `${withoutSecrets(url)} does not name a file`,
      try: 'say where to write it with --output FILE',
    });
  }
  const target = isFolder ? join(output, name) : output;
  if (existsSync(target)) {
    throw new HpcserveError('E_FILE_EXISTS', {
      what: `${target} exists already`,
      try: 'remove it, or name another --output',
    });
  }
  const done = await downloadFile({
    ...httpOptions(options, undefined),
    url,
    target,
    label: basename(target),
    expected: options.sha256 === undefined ? {} : { sha256: options.sha256 },
    on_event: options.on_event,
    inspect: (path) => inspectModel(path, target),
  });
  return {
    source: target,
    path: target,
    files: [{ file: basename(target), path: target, bytes: done.bytes, sha256: done.sha256 }],
    bytes: done.bytes,
  };
}

/** Refuses error pages and cut-off files before they get a model's name. */
function inspectModel(path: string, target: string): void {
  if (target.endsWith('.gguf')) readGguf(path, { keep_array_items: 4096 });
  else if (target.endsWith('.safetensors')) readSafetensors(path);
}

async function pullRepository(repository: HubRepository, options: PullOptions): Promise<PullResult> {
  if (options.sha256 !== undefined || options.output !== undefined) {
    throw new HpcserveError('E_MODEL_SOURCE', {
      what: '--sha256 and --output are for addresses',
      because: 'files of a hub repository go into the cache, verified by the checksums of the hub',
    });
  }
  const endpoint = hubEndpoint(options);
  const http = httpOptions(options, hubToken(options.environment));
  const cache = options.cache ?? hubCacheFolder(options.environment);
  const folders = repositoryFolders(cache, repository.id);
  options.on_event({ kind: 'listing', repository: repository.id, revision: repository.revision });
  const listing = await listRepository(endpoint, repository, http);
  const chosen = chooseFiles(repository, listing.files, options.include);
  const snapshot = join(folders.snapshots, listing.commit);
  const parallel = options.parallel ?? parallel_default;
  const unlinked = chosen.filter((file) => !existsSync(join(snapshot, file.path)));
  const versions = await inParallel(parallel, unlinked, options.signal, async (file, signal) => {
    const version = await hubFileVersion(endpoint, repository, listing.commit, file.path, {
      ...http,
      signal,
    });
    return { file, version, blob: join(folders.blobs, version.etag) };
  });
  const absent = byBlob(versions);
  await announce(cache, chosen, absent, options);

  const pulled: PullResult['files'] = [];
  await inParallel(parallel, absent, options.signal, async (files, signal) => {
    const { file, version, blob } = files[0];
    if (!existsSync(blob)) {
      await downloadFile({
        ...http,
        signal,
        url: version.url,
        target: blob,
        label: file.path,
        shared: true,
        expected: version.expected,
        on_event: options.on_event,
        inspect: (path) => inspectModel(path, file.path),
      });
    }
    for (const each of files) await linkFile(join(snapshot, each.file.path), blob);
  });
  for (const file of chosen) {
    const path = join(snapshot, file.path);
    const target = realpathSync(path);
    const sha256 = basename(target);
    pulled.push({
      file: file.path,
      path,
      bytes: (await stat(target)).size,
      ...(/^[0-9a-f]{64}$/.test(sha256) ? { sha256 } : {}),
    });
  }
  await writeRef(join(folders.refs, repository.revision), listing.commit);
  const revision = repository.revision === 'main' ? '' : `@${repository.revision}`;
  const file = repository.file === undefined ? '' : `/${repository.file}`;
  return {
    source: `hf:${repository.id}${revision}${file}`,
    path: snapshot,
    files: pulled,
    bytes: pulled.reduce((sum, entry) => sum + entry.bytes, 0),
    commit: listing.commit,
  };
}

/** Files of equal content are downloaded once. */
function byBlob(files: readonly AbsentFile[]): EqualFiles[] {
  const groups = new Map<string, EqualFiles>();
  for (const file of files) {
    const group = groups.get(file.blob);
    if (group) group.push(file);
    else groups.set(file.blob, [file]);
  }
  return [...groups.values()];
}

/** Says what will be done, and refuses at once what cannot fit. */
async function announce(
  cache: string,
  chosen: readonly HubFile[],
  absent: readonly EqualFiles[],
  options: PullOptions,
): Promise<void> {
  const bytes_total = chosen.reduce((sum, file) => sum + (file.size_bytes ?? 0), 0);
  const bytes_to_come = absent.reduce((sum, files) => sum + missing_bytes(files[0]), 0);
  try {
    makeFolders(cache, sharedModes.folder);
  } catch (error) {
    throw diskError(cache, error);
  }
  const space = await statfs(cache);
  const free = space.bavail * space.bsize;
  if (free < bytes_to_come) {
    throw new HpcserveError('E_MODEL_DISK', {
      what: `${options.source} does not fit into ${cache}`,
      because: `${bytes_to_come} bytes are to come, ${free} are free`,
    });
  }
  options.on_event({
    kind: 'planned',
    files: chosen.length,
    bytes_total,
    bytes_present: bytes_total - bytes_to_come,
  });
}

/** Beyond a blob of another snapshot, and the part that an earlier run left: one that is of no use is removed. */
function missing_bytes({ file, blob }: AbsentFile): number {
  if (existsSync(blob)) return 0;
  const part_bytes = statSync(partialPath(blob), { throwIfNoEntry: false })?.size ?? 0;
  return Math.max(0, (file.size_bytes ?? 0) - part_bytes);
}

/** A relative link, so that the cache can be moved; replaced atomically where it is wrong. */
async function linkFile(path: string, blob: string): Promise<void> {
  makeFolders(dirname(path), sharedModes.folder);
  const wanted = relative(dirname(path), blob);
  const present = await readlink(path).catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw diskError(path, error);
  });
  if (present === wanted) return;
  await replaceLink(path, wanted);
}

async function writeRef(path: string, commit: string): Promise<void> {
  makeFolders(dirname(path), sharedModes.folder);
  await writeFileAtomicallyAsync(path, commit, { mode: sharedModes.file, durability: 'content' });
}

/** At most `limit` at once; the first failure stops the others and is thrown when all have ended. */
async function inParallel<T, R>(
  limit: number,
  items: readonly T[],
  signal: AbortSignal | undefined,
  work: (item: T, signal: AbortSignal) => Promise<R>,
): Promise<R[]> {
  const failed = new AbortController();
  const combined = signal ? AbortSignal.any([signal, failed.signal]) : failed.signal;
  const queue = [...items.entries()];
  const results: R[] = [];
  let failure: { error: unknown } | undefined;
  const worker = async (): Promise<void> => {
    for (let entry = queue.shift(); entry !== undefined && !failure; entry = queue.shift()) {
      const [index, item] = entry;
      try {
        results[index] = await work(item, combined);
      } catch (error) {
        failure ??= { error };
        failed.abort(error);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, limit) }, worker));
  if (failure) throw failure.error;
  return results;
}

function httpOptions(options: PullOptions, token: string | undefined): HttpOptions {
  const { signal, retries, idle_timeout_ms, retry_pause_ms } = options;
  return { token, signal, retries, idle_timeout_ms, retry_pause_ms };
}

function hubEndpoint(options: PullOptions): URL {
  const text = options.endpoint ?? (options.environment.HF_ENDPOINT || 'https://huggingface.co');
  if (/^https?:\/\//.test(text) && URL.canParse(text)) return new URL(text);
  throw new HpcserveError('E_MODEL_SOURCE', {
    what: `"${text}" is not the address of a hub`,
    because: 'HF_ENDPOINT and --endpoint take http(s)://host[/path]',
  });
}

/** $HF_TOKEN, else the file that $HF_TOKEN_PATH names or `hf auth login` writes. */
function hubToken(environment: PullOptions['environment']): string | undefined {
  if (environment.HF_TOKEN) return environment.HF_TOKEN.trim();
  const home =
    environment.HF_HOME ||
    join(environment.XDG_CACHE_HOME || join(homeFolder(environment), '.cache'), 'huggingface');
  const path = environment.HF_TOKEN_PATH || join(home, 'token');
  if (!existsSync(path)) return undefined;
  return readFileSync(path, 'utf8').trim() || undefined;
}

async function isDirectory(path: string): Promise<boolean> {
  const found = await stat(path).catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw diskError(path, error);
  });
  return found?.isDirectory() ?? false;
}
