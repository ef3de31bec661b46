/** Batches over HTTP, at a gateway whose replicas the test plays. */
import type { KeptBatch } from '../../../gateway/batches/batch.ts';
import { until } from '../support.ts';

export const endpoint = '/v1/chat/completions';

/** Files and batches of one key, as clients see them. */
export class BatchClient {
  readonly #url: string;
  readonly #headers: Record<string, string>;

  constructor(url: string, key: string) {
    this.#url = url;
    this.#headers = { authorization: `Bearer ${key}` };
  }

  async begin(requests: number, body: object = { model: 'tiny', messages: [] }): Promise<string> {
    const lines = Array.from({ length: requests }, (_, at) =>
      JSON.stringify({ custom_id: `r${at}`, method: 'POST', url: endpoint, body }),
    );
    return this.#made(await this.create(await this.upload(lines.join('\n'))));
  }

  async upload(content: string): Promise<string> {
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new File([content], 'in.jsonl'));
    return this.#made(
      await fetch(`${this.#url}/v1/files`, { method: 'POST', headers: this.#headers, body: form }),
    );
  }

  create(input_file_id: string): Promise<Response> {
    return fetch(`${this.#url}/v1/batches`, {
      method: 'POST',
      headers: { ...this.#headers, 'content-type': 'application/json' },
      body: JSON.stringify({ input_file_id, endpoint, completion_window: '24h' }),
    });
  }

  async batch(id: string): Promise<KeptBatch> {
    return (await (await this.#get(`/v1/batches/${id}`)).json()) as KeptBatch;
  }

  async ended(id: string): Promise<KeptBatch> {
    const isEnded = async (): Promise<boolean> =>
      ['completed', 'failed', 'cancelled', 'expired'].includes((await this.batch(id)).status);
    await until(isEnded, 'the batch to end');
    return this.batch(id);
  }

  async lines(file_id: string): Promise<{ custom_id: string; response: { status_code: number } }[]> {
    const text = await (await this.#get(`/v1/files/${file_id}/content`)).text();
    return text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
  }

  async removeFile(id: string): Promise<void> {
    await fetch(`${this.#url}/v1/files/${id}`, { method: 'DELETE', headers: this.#headers });
  }

  #get(path: string): Promise<Response> {
    return fetch(this.#url + path, { headers: this.#headers });
  }

  async #made(answer: Response): Promise<string> {
    if (!answer.ok) throw new Error(`nothing was made: ${await answer.text()}`);
    return ((await answer.json()) as { id: string }).id;
  }
}
