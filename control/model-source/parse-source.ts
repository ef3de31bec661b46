/** The forms that `source:` of a model.yaml may have. */
import { HpcserveError } from '../../spec/errors/error.ts';

export type ModelSource =
  | { kind: 'path'; path: string }
  | { kind: 'hub'; repository: HubRepository }
  | { kind: 'alias'; name: string }
  | { kind: 'url'; url: URL };

export interface HubRepository {
  /** `org/name`. */
  id: string;
  /** Branch, tag or commit. */
  revision: string;
  /** A file in the repository, for repositories of many GGUF files. */
  file?: string;
}

const namePart = '[A-Za-z0-9][A-Za-z0-9._-]{0,95}';
const repositoryPattern = new RegExp(`^(${namePart}/${namePart})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{0,127}))?$`);
const repositoryWithFile = new RegExp(
  `^(${namePart}/${namePart})(?:@([A-Za-z0-9][A-Za-z0-9._-]{0,127}))?/(.+)$`,
);

/**
 * Forms: a path; `hf:org/name[@revision][/file]`; `alias:NAME`; `http(s)://…`. Throws E_MODEL_SOURCE.
 */
export function parseModelSource(source: string): ModelSource {
  if (source.trim() === '' || source.includes('\0')) {
    throw new HpcserveError('E_MODEL_SOURCE', {
      what: 'the source of the model is empty or holds a NUL byte',
    });
  }
  if (source.startsWith('hf:')) return { kind: 'hub', repository: parseHubRepository(source) };
  if (source.startsWith('alias:')) return { kind: 'alias', name: source.slice('alias:'.length) };
  if (/^https?:\/\//i.test(source)) {
    if (!URL.canParse(source)) {
      throw new HpcserveError('E_MODEL_SOURCE', { what: `"${source}" is not a valid address` });
    }
    return { kind: 'url', url: new URL(source) };
  }
  const scheme = /^([a-z][a-z0-9+.-]{1,15}):/i.exec(source)?.[1];
  if (scheme !== undefined && !source.includes('.gguf')) {
    throw new HpcserveError('E_MODEL_SOURCE', {
      what: `"${source}" begins with "${scheme}:", which is not a kind of model source`,
      because: 'known are hf:org/name[@revision], alias:NAME, paths, and http(s) addresses for `model pull`',
      ...(/^file$/i.test(scheme) ? { try: 'give the path without "file:"' } : {}),
    });
  }
  return { kind: 'path', path: source };
}

/** After a revision, "/" may belong to it (refs/pr/1) or begin a file; files are told by their ending. */
function parseHubRepository(source: string): HubRepository {
  const text = source.slice('hf:'.length);
  const withFile = repositoryWithFile.exec(text);
  if (withFile && isSafe(withFile[3]!) && (withFile[2] === undefined || /\.[a-z0-9]+$/i.test(withFile[3]!))) {
    return { id: withFile[1]!, revision: withFile[2] ?? 'main', file: withFile[3]! };
  }
  const plain = repositoryPattern.exec(text);
  if (plain && isSafe(plain[2] ?? '')) return { id: plain[1]!, revision: plain[2] ?? 'main' };
  throw new HpcserveError('E_MODEL_SOURCE', {
    what: `"${source}" is not hf:org/name[@revision][/file]`,
    because:
      'names have letters, digits, ".", "_" and "-"; revisions and files have no ".." and no empty part',
  });
}

/** Whether a relative path of the hub stays below its folder. */
export function isSafe(path: string): boolean {
  if (path === '') return true;
  return (
    path.split('/').every((part) => part !== '' && part !== '.' && part !== '..') && !/[\0\\]/.test(path)
  );
}

/** An address for messages: without user, password and query, which may hold signatures. */
export function withoutSecrets(url: URL): string {
  return `${url.origin}${url.pathname}${url.search ? '?…' : ''}`;
}
