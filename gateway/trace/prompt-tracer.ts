import { hash } from 'node:crypto';
import type { RequestRecord } from '../../ledger/index.ts';
import { prefixHash_bytes } from '../../spec/trace.ts';
import { siteSecret } from '../kept/site-secret.ts';
import { type ParsedRequest, scalarOf } from '../relay/request-body.ts';

/** 16 tokens, at the four bytes a token that the gateway takes everywhere: it does not tokenize. */
const bucket_bytes = 64;
/** Buckets that are kept of a prompt: 8,192 tokens. Lower: less to store; higher: longer prefixes are told apart. */
const buckets_max = 512;
const parameters = [
  'temperature',
  'top_p',
  'top_k',
  'max_tokens',
  'max_completion_tokens',
  'max_output_tokens',
  'min_tokens',
  'n',
  'presence_penalty',
  'frequency_penalty',
] as const;

/**
 * Makes of prompts what a trace has of them: a hash a bucket of 16 tokens, over all the text up to its end, with a
 * secret salt. So two are equal where two prompts are alike so far, and nobody without the salt can find out by trying
 * which text it was.
 */
export class PromptTracer {
  readonly #salt: Buffer;

  private constructor(salt: Buffer) {
    this.#salt = salt;
  }

  /**
   * @param file with the salt, which all gateways of a site share; made where it is absent, and of several that make it
   * at once by one of them
   * @throws E_GATEWAY_FOLDER
   */
  static open(file: string): PromptTracer {
    return new PromptTracer(siteSecret(file));
  }

  traceOf({ scan }: ParsedRequest): NonNullable<RequestRecord['trace']> {
    const named: Record<string, number> = {};
    for (const name of parameters) {
      const value = scalarOf(scan, name);
      if (typeof value === 'number') named[name] = value;
    }
    const pieces: Buffer[] = [];
    let left = bucket_bytes * buckets_max;
    for (const { start, end } of scan.promptParts.parts) {
      if (left <= 0) break;
      const piece = scan.bytes.subarray(start, Math.min(end, start + left));
      pieces.push(piece);
      left -= piece.length;
    }
    return { parameters: JSON.stringify(named), prefix: this.#hashes(Buffer.concat(pieces)) };
  }

  #hashes(text: Buffer): Buffer {
    const buckets = Math.min(buckets_max, Math.floor(text.length / bucket_bytes));
    const hashes = Buffer.alloc(buckets * prefixHash_bytes);
    const block = Buffer.alloc(this.#salt.length + 32 + bucket_bytes);
    this.#salt.copy(block);
    for (let index = 0; index < buckets; index++) {
      text.copy(block, this.#salt.length + 32, index * bucket_bytes, (index + 1) * bucket_bytes);
      const digest = hash('sha256', block, 'buffer');
      // The next bucket's hash is over this one's: equal hashes mean equal beginnings.
      digest.copy(block, this.#salt.length);
      digest.copy(hashes, index * prefixHash_bytes, 0, prefixHash_bytes);
    }
    return hashes;
  }
}
