import type { ServerResponse } from 'node:http';

type Model = (ids: readonly number[], draw?: number) => number;

export const letterModel: Model;
export const drawnModel: Model;
export function scriptedModel(scripts: Record<string, string>): Model;
export function decode(ids: readonly number[]): string;
export function encode(text: string): number[];

export interface VllmOptions {
  model?: Model;
  context_tokens?: number;
  chunk_tokens?: (made: number) => number;
  gives_ids?: boolean;
  heeds_seed?: boolean;
  parsers?: { reasoning?: boolean; tools?: boolean };
  loses?: (tokens: number, choice: number) => boolean;
}

export class VllmProtocol {
  constructor(options: VllmOptions);
  answer(request: { path: string; body: string }, response: ServerResponse): Promise<void>;
}
