import type { ErrorCode } from '../../spec/errors/registry.ts';

/** Where an answer goes: Node's own response, or one that tells it in another API. */
export interface ClientResponse {
  readonly headersSent: boolean;
  readonly destroyed: boolean;
  /** Bytes that were written and that the client has not taken. */
  readonly writableLength: number;
  /** Null while it is behind another one on its connection; absent where no connection brought its request. */
  readonly socket?: object | null | undefined;
  /** Why its client gets an error in the place of what was written, where that cannot be told in its API. */
  readonly untold?: ErrorCode | undefined;
  /** Takes what is left of an answer that is no stream before it is written, so that `untold` is known. */
  prepare?(rest: Buffer): void;
  setHeader(name: string, value: string): unknown;
  writeHead(status: number, pairs: string[]): unknown;
  write(bytes: Buffer | string): boolean;
  end(bytes?: Buffer | string): unknown;
  end(text: string, encoding: BufferEncoding): unknown;
  destroy(): unknown;
  on(event: 'close', listener: () => void): unknown;
  once(event: 'close' | 'drain', listener: () => void): unknown;
  off(event: 'close', listener: () => void): unknown;
}
