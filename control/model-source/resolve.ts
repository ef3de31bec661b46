/**
 * Resolves and checks the `source` of a model before anything is submitted: from headers alone, in
 * milliseconds, without foreign code.
 */
import { createHash } from 'node:crypto';
import { closeSync, existsSync, openSync, readdirSync, readSync, realpathSync, statSync } from 'node:fs';
import { basename, dirname, isAbsolute, join, resolve } from 'node:path';
import { homeFolder } from '../../host/own-user.ts';
import { modelFileError, translate } from '../../native/formats/file-window.ts';
import { parseSplitName, readGgufParts } from '../../native/formats/gguf-split.ts';
import { summarizeGguf } from '../../native/formats/gguf-summary.ts';
import { readHfFolder } from '../../native/formats/hf-folder.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ModelFileSummary } from '../../spec/model-summary.ts';
import { nearest } from '../../spec/nearest.ts';
import { findInModelsDir, findSnapshot, hubCacheFolder, notCached } from './hub-cache.ts';
import { type HubRepository, parseModelSource, withoutSecrets } from './parse-source.ts';

export interface ResolvedModel {
  /** As it was given. */
  source: string;
  kind: 'gguf' | 'gguf-split' | 'hf-folder';
  origin: 'path' | 'cache' | 'models_dir';
  /** What an engine is given, absolute: the GGUF file (of a split, its first part) or the folder. */
  path: string;
  /** All files with weights, absolute. */
  files: readonly string[];
  summary: ModelFileSummary;
  total_bytes: number;
  /**
   * Changes when a file's size, modification time or header does: 32 hexadecimal digits of a SHA-256. It
   * tells that a model is the same as before, not that its bytes are genuine.
   */
  fingerprint: string;
}

export interface ResolveContext {
  /** Relative paths start here: the folder of the model.yaml. */
  base_folder: string;
  /** `model_aliases` of the site config: name to source, whose relative paths start at `alias_folder`. */
  aliases?: Readonly<Record<string, string>>;
  alias_folder?: string;
  /** As $HF_HOME; default: from the environment, as huggingface_hub does. */
  hf_home?: string;
  /** Folder of models that the site keeps. */
  models_dir?: string;
  /** Where HF_HUB_CACHE and HF_HOME are looked up; default: that of the process. */
  environment?: Readonly<Record<string, string | undefined>>;
}

const alias_depth_max = 8;
/** Enough for all tensor records of most models, little enough for a slow filesystem. */
const fingerprint_header_bytes = 1024 * 1024;

/**
 * Throws E_MODEL_SOURCE, E_MODEL_ALIAS, E_MODEL_NOT_CACHED, E_MODEL_MISSING (with the nearest name), and every
 * error of the format readers.
 */
export async function resolveModelSource(source: string, context: ResolveContext): Promise<ResolvedModel> {
  const { path, origin, file } = locate(source, context, []);
  const target = file === undefined ? path : join(path, file);
  const found = inspect(target);
  return { source, origin, ...found, fingerprint: fingerprint(found.files) };
}

interface Located {
  path: string;
  origin: ResolvedModel['origin'];
  /** A file of the repository that was asked for. */
  file?: string | undefined;
}

function locate(source: string, context: ResolveContext, seen: readonly string[]): Located {
  const parsed = parseModelSource(source);
  switch (parsed.kind) {
    case 'url':
      throw new HpcserveError('E_MODEL_SOURCE', {
        what: 'a model cannot be served from a web address',
        because: 'compute nodes usually have no internet, and every replica would download it again',
        try: `hpcserve model pull ${withoutSecrets(parsed.url)}, then name the file as the source`,
      });
    case 'alias':
      return locateAlias(parsed.name, context, seen);
    case 'hub':
      return locateHub(parsed.repository, context);
    case 'path':
      return locatePath(parsed.path, context);
  }
}

function locateAlias(name: string, context: ResolveContext, seen: readonly string[]): Located {
  const aliases = context.aliases ?? {};
  if (!Object.hasOwn(aliases, name)) {
    const names = Object.keys(aliases);
    const near = nearest(name, names);
    throw new HpcserveError('E_MODEL_ALIAS', {
      what: `the site config has no model alias "${name}"`,
      because: names.length > 0 ? `it has ${names.join(', ')}` : 'it has no model_aliases',
      ...(near ? { try: `did you mean alias:${near}?` } : {}),
    });
  }
  const chain = [...seen, name];
  if (seen.includes(name) || chain.length > alias_depth_max) {
    throw new HpcserveError('E_MODEL_ALIAS', {
      what: `the model alias "${name}" leads in a circle`,
      because: chain.join(' → '),
      try: 'correct model_aliases of the site config',
    });
  }
  return locate(
    aliases[name]!,
    { ...context, base_folder: context.alias_folder ?? context.base_folder },
    chain,
  );
}

function locateHub(repository: HubRepository, context: ResolveContext): Located {
  const looked: string[] = [];
  if (context.models_dir !== undefined) {
    const path = findInModelsDir(context.models_dir, repository);
    if (path) return { path, origin: 'models_dir', file: repository.file };
    looked.push(`${context.models_dir} (models_dir of the site) has no ${repository.id}`);
  }
  const cache = context.hf_home
    ? join(context.hf_home, 'hub')
    : hubCacheFolder(context.environment ?? process.env);
  const snapshot = findSnapshot(cache, repository);
  if ('path' in snapshot) return { path: snapshot.path, origin: 'cache', file: repository.file };
  throw notCached(repository, cache, [...looked, snapshot.absent]);
}

/** Relative paths start at the base folder; what is not there may be in the site's folder of models. */
function locatePath(path: string, context: ResolveContext): Located {
  const { base_folder, models_dir } = context;
  if (models_dir !== undefined && !isAbsolute(path) && !existsSync(resolve(base_folder, path))) {
    const kept = resolve(models_dir, path);
    if (existsSync(kept)) return { path: kept, origin: 'models_dir' };
  }
  return { path: existing(path, base_folder), origin: 'path' };
}

/** The absolute path, or E_MODEL_MISSING with the first folder that is absent and the nearest name there. */
function existing(path: string, baseFolder: string): string {
  const home = /^~(?=\/|$)/.test(path) ? homeFolder() + path.slice(1) : path;
  const absolute = isAbsolute(home) ? resolve(home) : resolve(baseFolder, home);
  try {
    statSync(absolute);
    return absolute;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw modelFileError(absolute, error);
    throw missing(path, absolute);
  }
}

function missing(path: string, absolute: string): HpcserveError {
  let folder = dirname(absolute);
  let name = basename(absolute);
  while (!existsSync(folder)) {
    name = basename(folder);
    folder = dirname(folder);
  }
  const names = translate(folder, () => (statSync(folder).isDirectory() ? readdirSync(folder) : []));
  const near = nearest(name, names);
  const models = names.filter((entry) => entry.endsWith('.gguf')).slice(0, 5);
  const because = [`there is no "${name}" in ${folder}`];
  if (models.length > 0) because.push(`GGUF files there: ${models.join(', ')}`);
  const looksLikeId = /^[\w.-]+\/[\w.-]+$/.test(path) && !path.endsWith('.gguf');
  const advice = [
    ...(near ? [`did you mean ${join(folder, near)}?`] : []),
    ...(looksLikeId ? [`for a model of the offline cache write hf:${path}`] : []),
  ];
  return new HpcserveError('E_MODEL_MISSING', {
    what: `${absolute} does not exist`,
    because,
    ...(advice.length > 0 ? { try: advice } : {}),
    details: { path: absolute },
  });
}

type Inspected = Pick<ResolvedModel, 'kind' | 'path' | 'files' | 'summary' | 'total_bytes'>;

function inspect(path: string): Inspected {
  const stat = translate(path, () => statSync(path));
  return stat.isDirectory() ? inspectFolder(path) : inspectGguf(path);
}

function inspectGguf(path: string): Inspected {
  const parts = readGgufParts(path, { keep_array_items: 4096 });
  const summary = summarizeGguf(parts);
  return {
    kind: parts.length > 1 ? 'gguf-split' : 'gguf',
    path: parts[0]!.path,
    files: parts.map((part) => part.path),
    summary,
    total_bytes: summary.file_bytes,
  };
}

/** A Hugging Face folder, or a folder with exactly one GGUF model in it. */
function inspectFolder(path: string): Inspected {
  const names = translate(path, () => readdirSync(path));
  const models = names
    .filter((name) => name.endsWith('.gguf') && (parseSplitName(name)?.part ?? 1) === 1)
    .sort();
  const isHf = names.includes('config.json') && names.some((name) => name.endsWith('.safetensors'));
  if (!isHf && models.length === 1) return inspectGguf(join(path, models[0]!));
  if (!isHf && models.length > 1) {
    throw new HpcserveError('E_MODEL_FOLDER', {
      what: `${path} holds ${models.length} GGUF models`,
      because: models.slice(0, 20),
      try: 'name one of the files as the source',
    });
  }
  const folder = readHfFolder(path);
  return {
    kind: 'hf-folder',
    path,
    files: folder.files.map((file) => file.path),
    summary: folder.summary,
    total_bytes: folder.summary.file_bytes,
  };
}

function fingerprint(files: readonly string[]): string {
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(fingerprint_header_bytes);
  for (const file of files) {
    const real = translate(file, () => realpathSync(file));
    const descriptor = translate(real, () => openSync(real, 'r'));
    try {
      const stat = statSync(real);
      const count = translate(real, () => readSync(descriptor, buffer, 0, buffer.length, 0));
      hash.update(`${basename(file)}\0${stat.size}\0${Math.round(stat.mtimeMs)}\0`);
      hash.update(buffer.subarray(0, count));
    } finally {
      closeSync(descriptor);
    }
  }
  return hash.digest('hex').slice(0, 32);
}
