/** A GGUF file as the engine sees it: its header, read and checked before any memory is taken. */
import { uncomputedTensors } from '../../native/formats/computed-tensors.ts';
import { type GgufFile, readGguf } from '../../native/formats/gguf-reader.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type Architecture, readArchitecture } from './architecture.ts';

/** Metadata arrays beyond this length (vocabularies, merges) are not needed to compute. */
const kept_array_items = 1024;

/** Of many tensors that cannot be computed, so many are named. */
const named_tensors_max = 8;

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
  const model = readArchitecture(gguf, n_vocab);
  refuseUncomputed(gguf, model);
  return {
    gguf,
    model,
    n_params: gguf.tensors.reduce((sum, tensor) => sum + tensor.n_elements, 0),
    file_type,
  };
}

function refuseUncomputed(gguf: GgufFile, model: Architecture): void {
  const names = uncomputedTensors(gguf.tensors, model);
  if (names.length === 0) return;
  const named = names.slice(0, named_tensors_max);
  const others = names.length - named.length;
  throw new HpcserveError('E_ENGINE_MODEL', {
    what: `${gguf.path} has tensors that the native engine does not compute with`,
    because: others === 0 ? named : [...named, `and ${others} more tensors`],
    try: 'serve it with a wrapped engine (vLLM, SGLang, llama.cpp server)',
  });
}
