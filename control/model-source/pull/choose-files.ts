/** Which files of a repository a model needs. */

import { parseSplitName } from '../../../native/formats/gguf-split.ts';
import { hfWeightFiles } from '../../../native/formats/hf-folder.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { nearest } from '../../../spec/nearest.ts';
import type { HubRepository } from '../parse-source.ts';
import type { HubFile } from './hub.ts';

/** Small files that engines read beside the weights. */
const companions = /\.(json|txt|model|jinja|tiktoken|py)$|^(LICENSE|NOTICE|README\.md|USE_POLICY\.md)/i;
const otherFormats = /^(onnx|openvino|coreml|original|metal|flax|tf)\//i;

/**
 * With `include` patterns (`*` matches anything): the files that match one. With a file: it, and all parts of
 * its split. Else safetensors with their companions, or the only GGUF model. Throws E_MODEL_PULL with the choice.
 */
export function chooseFiles(
  repository: HubRepository,
  files: readonly HubFile[],
  include: readonly string[] = [],
): HubFile[] {
  if (include.length > 0) {
    const patterns = include.map(toPattern);
    const chosen = files.filter((file) => patterns.some((pattern) => pattern.test(file.path)));
    if (chosen.length > 0) return chosen;
    throw choiceError(repository, `nothing matches ${include.join(', ')}`, files);
  }
  if (repository.file !== undefined) return chooseNamed(repository, repository.file, files);
  const paths = files.map((file) => file.path);
  const weights = new Set(hfWeightFiles(paths).filter((path) => !otherFormats.test(path)));
  if (weights.size > 0) {
    return files.filter(
      ({ path }) => weights.has(path) || (companions.test(path) && !otherFormats.test(path)),
    );
  }
  const models = files.filter((file) => file.path.endsWith('.gguf'));
  const first = models.filter((file) => (parseSplitName(file.path)?.part ?? 1) === 1);
  if (first.length === 1) return chooseNamed(repository, first[0]!.path, files);
  if (first.length > 1) throw choiceError(repository, `it holds ${first.length} GGUF models`, first);
  throw choiceError(repository, 'it holds neither safetensors nor GGUF files', files);
}

function chooseNamed(repository: HubRepository, name: string, files: readonly HubFile[]): HubFile[] {
  const split = parseSplitName(name);
  const chosen = files.filter((file) => {
    if (file.path === name) return true;
    const part = parseSplitName(file.path);
    return (
      split !== undefined && part !== undefined && part.base === split.base && part.parts === split.parts
    );
  });
  if (chosen.some((file) => file.path === name)) return chosen;
  const near = nearest(
    name,
    files.map((file) => file.path),
  );
  throw choiceError(
    repository,
    `it has no file ${JSON.stringify(name)}`,
    files.filter((file) => file.path.endsWith('.gguf')),
    near ? `did you mean hf:${repository.id}/${near}?` : undefined,
  );
}

function choiceError(
  repository: HubRepository,
  why: string,
  files: readonly HubFile[],
  advice?: string,
): HpcserveError {
  const names = files.slice(0, 20).map((file) => file.path);
  return new HpcserveError('E_MODEL_PULL', {
    what: `it is not clear which files of ${repository.id} are wanted`,
    because: [
      why,
      ...(names.length > 0 ? [`files: ${names.join(', ')}${files.length > 20 ? ', …' : ''}`] : []),
    ],
    try: advice ?? `name one: hf:${repository.id}/FILE, or use --include PATTERN`,
  });
}

function toPattern(glob: string): RegExp {
  const escaped = glob.split('*').map((part) => part.replaceAll(/[\\^$.|?+()[\]{}]/g, '\\$&'));
  return new RegExp(`^${escaped.join('.*')}$`);
}
