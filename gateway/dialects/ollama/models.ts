import { createHash } from 'node:crypto';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { ApiKey } from '../../../ledger/index.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { errorCodeHeader, errorEnvelope } from '../../http-error.ts';
import type { ListedModel, ModelList } from '../../model-list.ts';
import { isMembers, type Members, unusable } from '../chat-form.ts';

/** Whose API this is; clients ask for one at least. */
const ollamaVersion = '0.12.6';

/** Models that are served stay until their deployment ends. */
const expires_at = '9999-12-31T00:00:00Z';

/** What Ollama's API says of models: those that the key may ask for. Sizes are not known to a gateway, and are 0. */
export function ollamaModelRoutes(
  app: FastifyInstance,
  models: ModelList,
  keyOf: (request: FastifyRequest) => Promise<ApiKey>,
): void {
  app.get('/api/version', async () => ({ version: ollamaVersion }));
  app.get('/api/tags', (request, reply) =>
    inItsWords(reply, async () => ({ models: (await models.all(await keyOf(request))).map(tagOf) })),
  );
  app.get('/api/ps', (request, reply) =>
    inItsWords(reply, async () => {
      const all = await models.all(await keyOf(request));
      const running = all.filter(({ hpcserve }) => hpcserve.replicas > 0);
      return { models: running.map((model) => ({ ...tagOf(model), ...loadedOf(model) })) };
    }),
  );
  app.post('/api/show', (request, reply) =>
    inItsWords(reply, async () => {
      const key = await keyOf(request);
      const { model, name } = isMembers(request.body) ? request.body : ({} as Members);
      const asked = model ?? name;
      if (typeof asked !== 'string') throw unusable('`model` must be a text', 'model');
      return shownOf(await models.one(key, asked));
    }),
  );
}

/** Ollama's clients read an error as a text. */
async function inItsWords(reply: FastifyReply, answer: () => Promise<Members>): Promise<Members> {
  try {
    return await answer();
  } catch (thrown) {
    const error = HpcserveError.from(thrown);
    if (error.http_status === 401) reply.header('connection', 'close');
    reply.code(error.http_status).header(errorCodeHeader, error.code);
    return { error: errorEnvelope(error).error.message };
  }
}

function tagOf(model: ListedModel): Members {
  return {
    name: model.id,
    model: model.id,
    modified_at: new Date(1000 * model.created).toISOString(),
    size: 0,
    // Of the name: clients tell models apart by it.
    digest: createHash('sha256').update(model.root).digest('hex'),
    details: detailsOf(model),
  };
}

function detailsOf({ hpcserve }: ListedModel): Members {
  const quantization_level = hpcserve.precisions.join(', ');
  return {
    parent_model: '',
    format: 'gguf',
    family: '',
    families: [],
    parameter_size: '',
    quantization_level,
  };
}

function loadedOf({ max_model_len }: ListedModel): Members {
  return { expires_at, size_vram: 0, context_length: max_model_len ?? 0 };
}

function shownOf(model: ListedModel): Members {
  return {
    modelfile: '',
    parameters: '',
    template: '',
    license: '',
    modified_at: new Date(1000 * model.created).toISOString(),
    details: detailsOf(model),
    model_info: { 'general.architecture': 'hpcserve', 'hpcserve.context_length': model.max_model_len ?? 0 },
    // What a model takes shows when it is asked: tools are refused by name where its template has none.
    capabilities: ['completion', 'tools'],
  };
}
