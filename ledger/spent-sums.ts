import type { RequestRecord } from './record.ts';

export interface SpentSum {
  readonly key_id: string;
  readonly day: number;
  requests: number;
  tokens: number;
  device_us: number;
}

/** Collects what requests charge their keys, by day. */
export class SpentSums {
  readonly #sums = new Map<string, SpentSum[]>();

  add(record: RequestRecord, device_us: number): void {
    const key_id = record.limits_key_id ?? record.key_id;
    const day = dayOf(record.time_ms);
    let ofKey = this.#sums.get(key_id);
    if (!ofKey) {
      ofKey = [];
      this.#sums.set(key_id, ofKey);
    }
    let sum = ofKey.find((each) => each.day === day);
    if (!sum) {
      sum = { key_id, day, requests: 0, tokens: 0, device_us: 0 };
      ofKey.push(sum);
    }
    sum.requests++;
    sum.tokens += (record.prompt_tokens ?? 0) + (record.completion_tokens ?? 0);
    sum.device_us += device_us;
  }

  all(): SpentSum[] {
    return [...this.#sums.values()].flat();
  }
}

/** Days since 1970 in UTC. */
export function dayOf(time_ms: number): number {
  return Math.floor(time_ms / 86_400_000);
}
