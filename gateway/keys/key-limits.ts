import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { every } from '../../host/every.ts';
import { writeFileAtomicallyAsync } from '../../host/whole-file.ts';
import { type ApiKey, dayOf, type Ledger, limitsKeyOf } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { systemMessage } from '../../spec/errors/system-error.ts';
import { listGatewayFolders } from '../../spec/gateway-folders.ts';
import { gatewayFiles } from '../../spec/state-layout.ts';
import type { GatewayLog } from '../log.ts';
import { type RatesLeft, rateHeaders, rateLeft } from './rate-fields.ts';
import {
  lastMinute,
  minuteOf,
  monthBegin,
  type Spent,
  type SpentFile,
  spentAt,
  spentFileSchema,
  sumSpent,
  untilWithin_s,
} from './spending.ts';

export interface KeyLimitsOptions {
  /** Of this gateway; the folders of the others are beside it. */
  gateway_folder: string;
  ledger: Pick<Ledger, 'spentSince'>;
  log: GatewayLog;
  now_ms?: () => number;
  /**
   * Between two exchanges with the other gateways. What one answered counts at the others after at most two of these
   * and the time that the filesystem takes to show a file. Lower: limits hold more exactly; higher: less to write.
   */
  exchange_ms?: number;
}

/** What is held for a request until its answer is known. */
export interface Reservation {
  key_id: string;
  tokens: number;
  settled: boolean;
}

/**
 * Tokens that are held for one key at most, as many as the largest budget has. Sums up to it are exact: a number so
 * large that others vanish beside it would take them along when it is given back.
 */
export const held_tokens_max = 1e15;

/** Gateways are looked for again after so many exchanges. */
const lookEvery = 10;

/** Keeps the limits of API keys, for all gateways of a site together. */
export class KeyLimits {
  readonly #options: KeyLimitsOptions;
  readonly #now_ms: () => number;
  readonly #own = new Map<string, Spent>();
  readonly #reserved = new Map<string, number>();
  /** Requests that are being read or answered here. */
  readonly #running = new Map<string, number>();
  #others = new Map<string, SpentFile>();
  #exchanges = 0;
  #dirty = false;
  #exchanging: Promise<void> = Promise.resolve();
  #stop: () => void = () => undefined;

  constructor(options: KeyLimitsOptions) {
    this.#options = options;
    this.#now_ms = options.now_ms ?? Date.now;
  }

  /** Tells the others what the ledger knows of these keys, and learns the same of them. */
  async start(keys: readonly ApiKey[]): Promise<void> {
    for (const key of keys) if (isLimited(key)) this.#of(limitsKeyOf(key));
    this.#dirty = this.#own.size > 0;
    await this.exchange();
    this.#stop = every(this.#options.exchange_ms ?? 1000, () => void this.exchange());
  }

  /**
   * Takes a request of a key in before its body is read, or says why not.
   *
   * @throws E_KEY_RATE, E_KEY_BUDGET, with `retry_after_s` in the details where it makes sense to come back
   */
  admit(key: ApiKey): Reservation | undefined {
    if (!isLimited(key)) {
      // Without limits nothing is counted: should it be given some again, the ledger knows.
      if (this.#own.size > 0) this.#own.delete(limitsKeyOf(key));
      return undefined;
    }
    const key_id = limitsKeyOf(key);
    const now_ms = this.#now_ms();
    const own = spentAt(this.#of(key_id), now_ms);
    const all = this.#all(key_id, own, now_ms);
    this.#requireRate(key, all, now_ms);
    this.#requireTokens(key, all, now_ms);
    own.requests++;
    this.#own.set(key_id, own);
    this.#running.set(key_id, (this.#running.get(key_id) ?? 0) + 1);
    this.#dirty = true;
    return { key_id, tokens: 0, settled: false };
  }

  /**
   * Holds tokens for a request until what it used is known, or says why not: others may have come first while its
   * body was read. One that is let in may use more than is left; no other is let in beside it then.
   *
   * @throws as `admit`
   */
  reserve(key: ApiKey, reservation: Reservation, tokens: number): void {
    const now_ms = this.#now_ms();
    const { key_id } = reservation;
    this.#requireTokens(key, this.#all(key_id, spentAt(this.#of(key_id), now_ms), now_ms), now_ms);
    const held = this.#reserved.get(key_id) ?? 0;
    const asked = Number.isFinite(tokens) ? Math.ceil(tokens) : held_tokens_max;
    reservation.tokens = Math.min(asked, held_tokens_max - held);
    this.#reserved.set(key_id, held + reservation.tokens);
  }

  /** The answer is known: what it used counts instead of what was held for it. */
  settle(
    reservation: Reservation | undefined,
    used: {
      prompt_tokens?: number | undefined;
      completion_tokens?: number | undefined;
      device_s?: number | undefined;
    },
  ): void {
    if (!reservation || reservation.settled) return;
    reservation.settled = true;
    const { key_id, tokens } = reservation;
    const running = this.#running.get(key_id)! - 1;
    if (running > 0) this.#running.set(key_id, running);
    else this.#running.delete(key_id);
    const held = (this.#reserved.get(key_id) ?? 0) - tokens;
    if (held > 0) this.#reserved.set(key_id, held);
    else this.#reserved.delete(key_id);
    const spent = spentAt(this.#of(key_id), this.#now_ms());
    const more = (used.prompt_tokens ?? 0) + (used.completion_tokens ?? 0);
    spent.tokens += more;
    spent.day_tokens += more;
    spent.month_tokens += more;
    spent.total_tokens += more;
    const { device_s = 0 } = used;
    spent.day_device_s += device_s;
    spent.month_device_s += device_s;
    spent.total_device_s += device_s;
    this.#own.set(key_id, spent);
    this.#dirty = true;
  }

  /** What a key has used of its limits on all gateways; undefined where it has none. */
  spent(key: ApiKey): Spent | undefined {
    if (!isLimited(key)) return undefined;
    const now_ms = this.#now_ms();
    const key_id = limitsKeyOf(key);
    return sumSpent([spentAt(this.#of(key_id), now_ms), ...this.#ofOthers(key_id)], now_ms);
  }

  /** What is left of a key's limits by the minute, in OpenAI's header fields. */
  rateHeaders(key: ApiKey): [name: string, value: string][] {
    return rateHeaders(key.settings, this.ratesLeft(key));
  }

  /** What is left of a key's limits by the minute; undefined where it has none. */
  ratesLeft(key: ApiKey): RatesLeft | undefined {
    const { requests_per_minute, tokens_per_minute } = key.settings;
    if (requests_per_minute === undefined && tokens_per_minute === undefined) return undefined;
    const now_ms = this.#now_ms();
    const key_id = limitsKeyOf(key);
    const all = this.#all(key_id, spentAt(this.#of(key_id), now_ms), now_ms);
    const held = this.#reserved.get(key_id) ?? 0;
    return [
      rateLeft(requests_per_minute, all.requests, all.previous_requests, 0, now_ms),
      rateLeft(tokens_per_minute, all.tokens, all.previous_tokens, held, now_ms),
    ];
  }

  /** Writes what this gateway has to tell, and reads what the others tell. Failures are for the next time. */
  async exchange(): Promise<void> {
    this.#exchanging = this.#exchanging
      .then(() => Promise.all([this.#publish(), this.#readOthers()]))
      .then(
        () => {},
        (error: Error) =>
          this.#options.log.warn(
            { reason: systemMessage(error) },
            'what keys used cannot be told to other gateways',
          ),
      );
    await this.#exchanging;
  }

  async close(): Promise<void> {
    this.#stop();
    await this.exchange();
  }

  #all(key_id: string, own: Spent, now_ms: number): Spent {
    const others = this.#ofOthers(key_id);
    return others.length === 0 ? own : sumSpent([own, ...others], now_ms);
  }

  #requireRate(
    { name, settings, ...key }: ApiKey,
    { requests, previous_requests }: Spent,
    now_ms: number,
  ): void {
    const { requests_per_minute, concurrent_requests } = settings;
    const running = this.#running.get(limitsKeyOf(key)) ?? 0;
    if (concurrent_requests !== undefined && running >= concurrent_requests)
      throw new HpcserveError('E_KEY_RATE', {
        what: `the key ${name} may be used for ${concurrent_requests} requests at a time, and as many are being answered`,
        details: { retry_after_s: 1 },
      });
    if (requests_per_minute === undefined) return;
    if (lastMinute(requests, previous_requests, now_ms) + 1 > requests_per_minute)
      throw new HpcserveError('E_KEY_RATE', {
        what: `the key ${name} may be used for ${requests_per_minute} requests a minute, and they are used up`,
        details: {
          retry_after_s: untilWithin_s(requests, previous_requests, requests_per_minute - 1, now_ms),
        },
      });
  }

  #requireTokens({ name, settings, ...key }: ApiKey, all: Spent, now_ms: number): void {
    const { tokens_per_minute, budget } = settings;
    const held = this.#reserved.get(limitsKeyOf(key)) ?? 0;
    if (budget) {
      const used = all[`${budget.window}_tokens`];
      const device_s = all[`${budget.window}_device_s`];
      if (budget.tokens !== undefined && used + held >= budget.tokens) {
        const running = held > 0 ? `, and ${Math.ceil(held)} are held for requests that run` : '';
        throw budgetError(
          name,
          `${used} of ${budget.tokens} tokens were used${running}`,
          budget.window,
          now_ms,
        );
      }
      if (budget.device_s !== undefined && device_s >= budget.device_s) {
        const because = `${device_s.toFixed(1)} of ${budget.device_s} device-seconds were used`;
        throw budgetError(name, because, budget.window, now_ms);
      }
    }
    if (tokens_per_minute !== undefined) {
      const { tokens, previous_tokens } = all;
      if (lastMinute(tokens, previous_tokens, now_ms) + held >= tokens_per_minute)
        throw new HpcserveError('E_KEY_RATE', {
          what: `the key ${name} may be used for ${tokens_per_minute} tokens a minute, and they are used up`,
          because: held > 0 ? `${Math.ceil(held)} of them are held for requests that run` : [],
          details: {
            retry_after_s: untilWithin_s(tokens, previous_tokens, tokens_per_minute - 1, now_ms),
          },
        });
    }
  }

  #of(key_id: string): Spent {
    let spent = this.#own.get(key_id);
    if (!spent) {
      const now_ms = this.#now_ms();
      const day = dayOf(now_ms);
      const since = (first: number) => this.#options.ledger.spentSince(key_id, first);
      const [today, month, ever] = [since(day), since(monthBegin(day)), since(0)];
      spent = {
        minute: minuteOf(now_ms),
        requests: 0,
        tokens: 0,
        previous_requests: 0,
        previous_tokens: 0,
        day,
        day_tokens: today.tokens,
        month_tokens: month.tokens,
        total_tokens: ever.tokens,
        day_device_s: today.device_s,
        month_device_s: month.device_s,
        total_device_s: ever.device_s,
      };
      this.#own.set(key_id, spent);
    }
    return spent;
  }

  #ofOthers(key_id: string): Spent[] {
    const all: Spent[] = [];
    for (const { keys } of this.#others.values()) if (Object.hasOwn(keys, key_id)) all.push(keys[key_id]!);
    return all;
  }

  async #publish(): Promise<void> {
    if (!this.#dirty) return;
    this.#dirty = false;
    const file: SpentFile = { format: 1, keys: Object.fromEntries(this.#own) };
    try {
      const path = join(this.#options.gateway_folder, gatewayFiles.spent);
      await writeFileAtomicallyAsync(path, `${JSON.stringify(file)}\n`, { durability: 'content' });
    } catch (error) {
      this.#dirty = true;
      throw error;
    }
  }

  async #readOthers(): Promise<void> {
    const { gateway_folder } = this.#options;
    if (this.#exchanges++ % lookEvery === 0) {
      const found = listGatewayFolders(dirname(gateway_folder)).filter(
        ({ folder }) => folder !== gateway_folder,
      );
      this.#others = new Map(
        found.map(({ folder }) => [folder, this.#others.get(folder) ?? { format: 1, keys: {} }]),
      );
    }
    for (const folder of this.#others.keys()) {
      let text: string;
      try {
        text = await readFile(join(folder, gatewayFiles.spent), 'utf8');
      } catch (error) {
        // It has told nothing yet. What it told before stays counted.
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') continue;
        throw error;
      }
      const parsed = spentFileSchema.safeParse(JSON.parse(text));
      if (parsed.success) this.#others.set(folder, parsed.data);
    }
  }
}

export function isLimited({ settings }: ApiKey): boolean {
  return (
    settings.budget !== undefined ||
    settings.concurrent_requests !== undefined ||
    settings.requests_per_minute !== undefined ||
    settings.tokens_per_minute !== undefined
  );
}

function budgetError(
  name: string,
  because: string,
  window: 'day' | 'month' | 'total',
  now_ms: number,
): HpcserveError {
  const period = window === 'total' ? '' : window === 'day' ? ' of this day (UTC)' : ' of this month (UTC)';
  const end_s = windowEnd_s(window, now_ms);
  return new HpcserveError('E_KEY_BUDGET', {
    what: `the budget${period} of the key ${name} is used up`,
    because,
    details: end_s === undefined ? {} : { retry_after_s: end_s },
  });
}

function windowEnd_s(window: 'day' | 'month' | 'total', now_ms: number): number | undefined {
  if (window === 'total') return undefined;
  const date = new Date(now_ms);
  const end_ms =
    window === 'day'
      ? (dayOf(now_ms) + 1) * 86_400_000
      : Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
  return Math.ceil((end_ms - now_ms) / 1000);
}
