import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { ApiKey } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { inputItems, ResponseStore } from './response-store.ts';
import type { SealedFolder } from './sealed-folder.ts';

type ById = { Params: { id: string } };

/** Answers of the responses API that are kept, for the key that asked for them. */
export function responseRoutes(
  app: FastifyInstance,
  folder: SealedFolder | undefined,
  keyFor: (request: FastifyRequest) => Promise<ApiKey>,
): void {
  const storeFor = async (request: FastifyRequest): Promise<ResponseStore> => {
    const key = await keyFor(request);
    if (folder) return new ResponseStore(folder, key.id);
    throw new HpcserveError('E_KEPT_UNKNOWN', {
      what: 'responses are not kept here',
      because: 'gateway.responses_kept_h of the site config is 0',
    });
  };
  app.get<ById>('/v1/responses/:id', async (request) => {
    const { response } = await (await storeFor(request)).find(request.params.id);
    return response;
  });
  app.get<ById>('/v1/responses/:id/input_items', async (request) => {
    const kept = await (await storeFor(request)).find(request.params.id);
    // The newest first, as at OpenAI unless it is asked for otherwise.
    const items = inputItems(kept);
    const { order } = request.query as { order?: string };
    const data = order === 'asc' ? items : items.reverse();
    return {
      object: 'list',
      data,
      first_id: data[0]?.id ?? null,
      last_id: data.at(-1)?.id ?? null,
      has_more: false,
    };
  });
  app.delete<ById>('/v1/responses/:id', async (request) => {
    const { id } = request.params;
    await (await storeFor(request)).remove(id);
    return { id, object: 'response', deleted: true };
  });
}
