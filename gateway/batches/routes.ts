import { Readable } from 'node:stream';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { z } from 'zod';
import type { ApiKey } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { limits } from '../../spec/wire.ts';
import type { BodyMemory } from '../body-memory.ts';
import { unusable } from '../dialects/chat-form.ts';
import type { SealedFolder } from '../kept/sealed-folder.ts';
import { announcedBytes } from '../relay/body-reader.ts';
import { batchPaths, shownBatch } from './batch.ts';
import type { Batches } from './batches.ts';
import { FileStore } from './file-store.ts';

type ById = { Params: { id: string } };

export interface FileServices {
  folder: SealedFolder | undefined;
  batches: Batches;
  bodies: BodyMemory;
  keyFor(request: FastifyRequest): Promise<ApiKey>;
}

const batchAsked = z.object({
  input_file_id: z.string().min(1),
  endpoint: z.enum(batchPaths),
  completion_window: z.literal('24h'),
  metadata: z.record(z.string(), z.string()).nullable().default(null),
});
const page = z.object({
  limit: z.coerce.number().int().min(1).max(10_000).default(100),
  after: z.string().optional(),
  purpose: z.string().optional(),
});

/** OpenAI's files, as far as batches need them, and batches. */
export function batchRoutes(app: FastifyInstance, services: FileServices): void {
  void app.register(async (part) => fileRoutes(part, services));
  const { batches, keyFor } = services;
  app.post('/v1/batches', async (request) => {
    const key = await keyFor(request);
    const wish = batchAsked.safeParse(request.body ?? {});
    if (!wish.success) throw wrong(wish.error);
    return shownBatch(await batches.create(key, wish.data));
  });
  app.get('/v1/batches', async (request) => {
    const all = await batches.list(await keyFor(request));
    return pageOf(all.map(shownBatch), request.query);
  });
  app.get<ById>('/v1/batches/:id', async (request) =>
    shownBatch(await batches.find(await keyFor(request), request.params.id)),
  );
  app.post<ById>('/v1/batches/:id/cancel', async (request) =>
    shownBatch(await batches.cancel(await keyFor(request), request.params.id)),
  );
}

function fileRoutes(app: FastifyInstance, { folder, bodies, keyFor }: FileServices): void {
  const filesOf = async (request: FastifyRequest): Promise<FileStore> => {
    const key = await keyFor(request);
    if (folder) return new FileStore(folder, key.id);
    throw new HpcserveError('E_KEPT_UNKNOWN', {
      what: 'there are no files here',
      because: 'gateway.files_kept_d of the site config is 0',
    });
  };
  app.addContentTypeParser('multipart/form-data', { parseAs: 'buffer' }, (_request, body, done) =>
    done(null, body),
  );
  app.post('/v1/files', {
    bodyLimit: limits.body_bytes,
    // Before the body is read: who has no key has none read, and all that is read is counted.
    onRequest: async (request, reply) => {
      const key = await keyFor(request);
      // Its client left while the key was looked for: nothing would give back what it held.
      if (reply.raw.destroyed) {
        reply.hijack();
        return;
      }
      const hold = bodies.hold(key.id);
      reply.raw.once('close', () => hold.release());
      await new Promise<void>((resolve, reject) => {
        const bytes = Math.min(announcedBytes(request.raw) ?? limits.body_bytes, limits.body_bytes);
        hold.need(bytes, (refusal) => (refusal ? reject(refusal) : resolve()));
      });
    },
    handler: async (request) => {
      const files = await filesOf(request);
      const form = await formOf(request);
      const [file, purpose] = [form.get('file'), form.get('purpose')];
      if (!(file instanceof File)) throw unusable('`file` must be a file', 'file');
      if (purpose !== 'batch')
        throw unusable('`purpose` must be `batch`: other uses of files are not here', 'purpose');
      return files.put(file.name.slice(0, 256), purpose, [Buffer.from(await file.arrayBuffer())]);
    },
  });
  app.get('/v1/files', async (request) => {
    const { purpose } = pageAsked(request.query);
    const all = await (await filesOf(request)).list();
    return pageOf(
      all.filter((file) => purpose === undefined || file.purpose === purpose),
      request.query,
    );
  });
  app.get<ById>('/v1/files/:id', async (request) => (await filesOf(request)).find(request.params.id));
  app.get<ById>('/v1/files/:id/content', async (request, reply) => {
    const { id } = request.params;
    const files = await filesOf(request);
    const { bytes } = await files.find(id);
    const pieces = await files.pieces(id);
    reply.header('content-type', 'application/octet-stream').header('content-length', bytes);
    return reply.send(Readable.from(pieces));
  });
  app.delete<ById>('/v1/files/:id', async (request) => {
    const { id } = request.params;
    await (await filesOf(request)).remove(id);
    return { id, object: 'file', deleted: true };
  });
}

/** @throws E_REQUEST_INVALID */
async function formOf({ headers, body }: FastifyRequest): Promise<FormData> {
  const type = headers['content-type'] ?? '';
  if (!type.startsWith('multipart/form-data') || !Buffer.isBuffer(body))
    throw unusable('a file is sent as multipart/form-data', 'file');
  try {
    return await new Response(new Uint8Array(body), { headers: { 'content-type': type } }).formData();
  } catch {
    throw unusable('the form cannot be read', 'file');
  }
}

function pageOf<T extends { id: string }>(all: readonly T[], query: unknown) {
  const { limit, after } = pageAsked(query);
  const from = after === undefined ? 0 : all.findIndex(({ id }) => id === after) + 1;
  const data = all.slice(from, from + limit);
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null];
  return { object: 'list', data, first_id, last_id, has_more: from + limit < all.length };
}

/** @throws E_REQUEST_INVALID */
function pageAsked(query: unknown): z.infer<typeof page> {
  const asked = page.safeParse(query ?? {});
  if (asked.success) return asked.data;
  throw wrong(asked.error);
}

function wrong({ issues: [issue] }: z.ZodError): HpcserveError {
  const param = issue!.path.join('.');
  return unusable(`\`${param}\`: ${issue!.message}`, param);
}
