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
    models_dir: site.models_dir ? expandSitePath(site.models_dir, environment) : undefined,
  });
  const { summary } = resolved;
  const supported = summary.supported_by_native;
  const placement: PlacementModel = {
    spec,
    model_path: resolved.path,
    format: resolved.kind === 'hf-folder' ? 'huggingface' : 'gguf',
    architecture: summary.architecture,
    weight_bytes: summary.weight_bytes,
    kv_bytes_per_token: summary.kv_bytes_per_token,
    trained_context_tokens: summary.n_ctx_train,
    summary,
    native: supported === true ? { supported: true } : { supported: false, because: supported },
  };
  if (resolved.kind === 'hf-folder') {
    placement.config = configOf(resolved.path);
    placement.formats = formatsOf(spec, resolved);
  }
  return { resolved, placement };
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
