import type { ModelInfo } from '../../spec/engine-contract.ts';
import type { ModelFile } from './model-file.ts';

/** What an engine says of its model. */
export function modelInfo({ gguf, model, n_params, file_type }: ModelFile): ModelInfo {
  return {
    architecture: model.architecture,
    name: model.name,
    n_params,
    n_vocab: model.n_vocab,
    n_layer: model.n_layer,
    n_embd: model.n_embd,
    n_head: model.n_head,
    n_head_kv: model.n_head_kv,
    n_ctx_train: model.n_ctx_train,
    file_type,
    file_bytes: gguf.file_bytes,
  };
}
