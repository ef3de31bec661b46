import { closeSync, createReadStream } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { contentsSchema, type TensorRange, tensorRangeOf } from '../../memory/peers/peer-messages.ts';
import type { SharedTensors } from '../../memory/peers/shared-tensors.ts';
import { largestBody_bytes, readJson } from './read-body.ts';
import { sendJson } from './replies.ts';

/**
 * Ranges that are read at once. Lower: less noise beside answers of this node; higher: more nodes load at the same
 * time.
 */
const ranges_max = 8;
const read_bytes = 1024 * 1024;

/** Tensors in this node's memory, and in this worker's pool, for other device workers: their agents ask this one's. */
export class TensorAnswers {
  readonly #tensors: SharedTensors;
  #open = 0;

  constructor(tensors: SharedTensors) {
    this.#tensors = tensors;
  }

  /** @throws HpcserveError E_REQUEST_INVALID */
  async held(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const asked = contentsSchema.safeParse(await readJson(request, largestBody_bytes(0)));
    if (!asked.success)
      throw new HpcserveError('E_REQUEST_INVALID', {
        what: 'The tensors that are asked for were not understood',
        because: asked.error.issues.map(({ message }) => message),
      });
    sendJson(response, 200, { held: await this.#tensors.held(asked.data.contents) });
  }

  /** @throws HpcserveError E_REQUEST_PATH, E_WORKER_BUSY, E_WORKER_DRAINING */
  async range(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const range = tensorRangeOf(request.url ?? '', `${agentPaths.tensors}/`);
    if (this.#open >= ranges_max)
      throw new HpcserveError('E_WORKER_BUSY', { what: `${ranges_max} ranges of tensors are read already` });
    if (!range) throw notHere();
    this.#open++;
    const pooled = await this.#tensors.readPooled(range).finally(() => this.#open--);
    if (response.destroyed) return;
    if (pooled) response.writeHead(200, headersOf(range)).end(pooled);
    else this.#sendFromFile(range, response);
  }

  #sendFromFile(range: TensorRange, response: ServerResponse): void {
    const found = this.#tensors.open(range);
    if (!found) throw notHere();
    const { descriptor, start } = found;
    this.#open++;
    response.writeHead(200, headersOf(range));
    const bytes = createReadStream('', {
      fd: descriptor,
      autoClose: false,
      start,
      end: start + range.bytes - 1,
      highWaterMark: read_bytes,
    });
    pipeline(bytes, response, () => {
      this.#open--;
      closeSync(descriptor);
    });
  }
}

function headersOf({ bytes }: TensorRange): Record<string, string | number> {
  return { 'content-type': 'application/octet-stream', 'content-length': bytes };
}

function notHere(): HpcserveError {
  return new HpcserveError('E_REQUEST_PATH', { what: 'There is no such tensor here' });
}
