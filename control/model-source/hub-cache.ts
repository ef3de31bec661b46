/**
 * The cache of huggingface_hub (docs: "Understand caching"), which other programs on a cluster fill and read:
 * `models--org--name/{blobs/<etag>, refs/<revision>, snapshots/<commit>/<file> → blob}`.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { homeFolder } from '../../host/own-user.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { nearest } from '../../spec/nearest.ts';
import type { HubRepository } from './parse-source.ts';

/** `hub` folder of the cache: $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub. */
export function hubCacheFolder(environment: Readonly<Record<string, string | undefined>>): string {
  if (environment.HF_HUB_CACHE) return environment.HF_HUB_CACHE;
  if (environment.HF_HOME) return join(environment.HF_HOME, 'hub');
  const cache = environment.XDG_CACHE_HOME || join(homeFolder(environment), '.cache');
  return join(cache, 'huggingface', 'hub');
}

export interface RepositoryFolders {
  root: string;
  blobs: string;
  refs: string;
  snapshots: string;
}

export function repositoryFolders(cache: string, id: string): RepositoryFolders {
  const root = join(cache, `models--${id.replaceAll('/', '--')}`);
  return { root, blobs: join(root, 'blobs'), refs: join(root, 'refs'), snapshots: join(root, 'snapshots') };
}

/**
 * The snapshot folder of a revision (branch, tag, commit or the beginning of one), or where it is not cached
 * the reasons, one a place.
 */
export function findSnapshot(
  cache: string,
  repository: HubRepository,
): { path: string } | { absent: string } {
  const { root, refs, snapshots } = repositoryFolders(cache, repository.id);
  if (!existsSync(snapshots)) return { absent: `${root} does not exist` };
  const commits = readdirSync(snapshots);
  const { revision } = repository;
  const ref = join(refs, revision);
  const commit = existsSync(ref) ? readFileSync(ref, 'utf8').trim() : undefined;
  const named = commits.find((name) => name === (commit ?? revision));
  if (named) return { path: join(snapshots, named) };
  const begun = /^[0-9a-f]{7,40}$/.test(revision) ? commits.filter((name) => name.startsWith(revision)) : [];
  if (begun.length === 1) return { path: join(snapshots, begun[0]!) };
  if (revision === 'main' && commit === undefined && commits.length === 1) {
    return { path: join(snapshots, commits[0]!) };
  }
  return {
    absent: `${root} holds ${commits.length === 0 ? 'no snapshot' : `the snapshots ${commits.join(', ')}`}, none of revision ${revision}`,
  };
}

/** A folder of models that a site keeps: `<models_dir>/org/name`, `<models_dir>/name`, or laid out as a cache. */
export function findInModelsDir(modelsDir: string, repository: HubRepository): string | undefined {
  const name = repository.id.split('/')[1]!;
  const cached = findSnapshot(modelsDir, repository);
  if ('path' in cached) return cached.path;
  if (repository.revision !== 'main') return undefined;
  return [join(modelsDir, repository.id), join(modelsDir, name)].find((path) => existsSync(path));
}

export function notCached(
  repository: HubRepository,
  cache: string,
  looked: readonly string[],
): HpcserveError {
  const near = nearest(repository.id, cachedIds(cache));
  const source = `hf:${repository.id}${repository.revision === 'main' ? '' : `@${repository.revision}`}`;
  return new HpcserveError('E_MODEL_NOT_CACHED', {
    what: `${source} is not in the offline cache`,
    because: looked,
    try: [
      ...(near ? [`did you mean hf:${near}?`] : []),
      `on a host with internet: hpcserve model pull ${source}`,
    ],
  });
}

function cachedIds(cache: string): string[] {
  if (!existsSync(cache)) return [];
  return readdirSync(cache)
    .filter((name) => name.startsWith('models--'))
    .map((name) => name.slice('models--'.length).replace('--', '/'));
}
