/** A GGUF file as the engine sees it: its header, read and checked before any memory is taken. */
import { type GgufFile, readGguf } from '../../native/formats/gguf-reader.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type Architecture, readArchitecture } from './architecture.ts';

/** Metadata arrays beyond this length (vocabularies, merges) are not needed to compute. */
const kept_array_items = 1024;

export interface ModelFile {
  gguf: GgufFile;
  model: Architecture;
  n_params: number;
  /** The storage type that most of the weights have. */
  file_type: string;
}

/**
 * @throws HpcserveError E_MODEL_* where the file is missing, cut off or not GGUF; E_ENGINE_MODEL where its
 *   architecture cannot be computed
 */
export function openModelFile(path: string): ModelFile {
  const gguf = readGguf(path, { keep_array_items: kept_array_items });
  const embedding = gguf.tensors.find(({ name }) => name === 'token_embd.weight');
  const n_vocab = embedding?.shape[1];
  if (n_vocab === undefined)
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${path} lacks weights that its architecture needs`,
      because: 'the tensor token_embd.weight is missing',
    });
  const elements = new Map<string, number>();
  for (const { type, n_elements } of gguf.tensors) elements.set(type, (elements.get(type) ?? 0) + n_elements);
  const [file_type] = [...elements].sort((a, b) => b[1] - a[1])[0]!;
  return {
    gguf,
    model: readArchitecture(gguf, n_vocab),
    n_params: gguf.tensors.reduce((sum, tensor) => sum + tensor.n_elements, 0),
    file_type,
  };
}
