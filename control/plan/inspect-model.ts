/** From a model of model.yaml to what placement must know of it, by reading file headers. */
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { readChatTemplate } from '../../native/formats/hf-chat-template.ts';
import { answerFormats } from '../../solver/catalog/answer-formats.ts';
import type { AnswerFormats } from '../../spec/answer-parsers.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { PlacementModel } from '../../spec/plan.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import { type ResolvedModel, resolveModelSource } from '../model-source/resolve.ts';

/** Bytes per KV element relative to the summary's 16 bits; q8_0 holds 32 elements in 34 bytes. */
const kvFactor: Record<ModelSpec['kv_type'], number> = { f16: 1, q8_0: 34 / 64, f32: 2 };

export interface InspectedModel {
  placement: PlacementModel;
  resolved: ResolvedModel;
}

/** @throws HpcserveError E_MODEL_… when the source is not there, damaged, or of an unknown form. */
export async function inspectModel(
  spec: ModelSpec,
  folder: string,
  site: SiteConfig,
  sitePath: string,
  environment: Readonly<Record<string, string | undefined>>,
): Promise<InspectedModel> {
  const resolved = await resolveModelSource(spec.source, {
    base_folder: folder,
    aliases: site.model_aliases,
    alias_folder: dirname(sitePath),
    environment,
    ...(site.models_dir ? { models_dir: expandSitePath(site.models_dir, environment) } : {}),
  });
  const { summary } = resolved;
  const supported = summary.supported_by_native;
  return {
    resolved,
    placement: {
      spec,
      model_path: resolved.path,
      format: resolved.kind === 'hf-folder' ? 'huggingface' : 'gguf',
      architecture: summary.architecture,
      weight_bytes: summary.weight_bytes,
      kv_bytes_per_token: Math.ceil(summary.kv_bytes_per_token * kvFactor[spec.kv_type]),
      trained_context_tokens: summary.n_ctx_train,
      summary,
      ...(resolved.kind === 'hf-folder'
        ? { config: configOf(resolved.path), formats: formatsOf(spec, resolved) }
        : {}),
      native: supported === true ? { supported: true } : { supported: false, because: supported },
    },
  };
}

/** By the template that it will be served with. */
function formatsOf(spec: ModelSpec, { path, summary }: ResolvedModel): AnswerFormats {
  return answerFormats({
    type: summary.architecture,
    names: [spec.name, spec.source, path],
    template:
      spec.chat_template === undefined ? readChatTemplate(path) : readFileSync(spec.chat_template, 'utf8'),
  });
}

/** Checked already as the folder was resolved. */
function configOf(folder: string): unknown {
  return JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8'));
}
