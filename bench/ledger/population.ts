import type { RequestRecord, SessionFacts } from '../../ledger/index.ts';

const users = 200;
const models = 6;
const nodes_each = 2;
const hour_ms = 3_600_000;

/** Requests as a site of 200 users has them: a few of them ask for most, of six models on two nodes each. */
export class Population {
  readonly #sessions: SessionFacts[][];
  /** A gateway has the names of a key once, and so of a model; only the request's id is a string of its own. */
  readonly #keys = Array.from({ length: users }, (_u, user) => ({
    key_id: `key_${String(user).padStart(12, '0')}`,
    user: `user${user}`,
    project: `project${user % 40}`,
  }));
  readonly #models = Array.from({ length: models }, (_m, model) => `org/model-${model}`);
  readonly #first_ms: number;
  readonly #hours: number;
  #state: number;
  #count = 0;

  /** @param hours over which its requests are spread, evenly */
  constructor(seed: number, first_ms: number, hours: number) {
    this.#state = seed;
    this.#first_ms = first_ms;
    this.#hours = hours;
    this.#sessions = Array.from({ length: models }, (_m, model) =>
      Array.from({ length: nodes_each }, (_n, index) => ({
        session_id: `${model}${index}`.padStart(32, '0'),
        node: `nid${String(model * nodes_each + index).padStart(6, '0')}`,
        site: 'alps',
        engine: 'vllm',
        deployment: `deployment-${model}`,
        job_id: String(1_200_000 + model),
        slurm_account: `project-${model % 3}`,
        tier: model < 4 ? 'stable' : 'scavenger',
        provider: 'group@alps',
        devices: '4x GH200',
        device_count: 4,
      })),
    );
  }

  /** @param total requests that there will be; absent: all fall into the first hour */
  next(total = Number.POSITIVE_INFINITY): RequestRecord {
    // The square makes few users ask for most.
    const user = Math.floor(users * this.#random() ** 2);
    const model = (user + Math.floor(2 * this.#random() ** 2)) % models;
    const names = this.#keys[user]!;
    const session = this.#sessions[model]![Math.floor(nodes_each * this.#random())]!;
    const at = Number.isFinite(total) ? this.#count / total : 0;
    const prompt_tokens = Math.floor(4000 * this.#random() ** 2);
    const completion_tokens = 1 + Math.floor(1000 * this.#random() ** 2);
    const ttft_ms = 50 + prompt_tokens / 10;
    const duration_ms = ttft_ms + completion_tokens * 20;
    return {
      request_id: `req_${this.#letters()}${(this.#count++).toString(36)}`,
      time_ms: this.#first_ms + Math.floor(at * this.#hours * hour_ms),
      key_id: names.key_id,
      user: names.user,
      project: names.project,
      endpoint: '/v1/chat/completions',
      model: this.#models[model]!,
      served_model: this.#models[model]!,
      precision: 'bf16',
      session,
      status: 200,
      stream: true,
      attempts: 1,
      prompt_tokens,
      completion_tokens,
      cached_tokens: Math.floor(prompt_tokens / 3),
      reasoning_tokens: 0,
      ttft_ms,
      duration_ms,
      device_s: duration_ms / 8000,
      energy_j: duration_ms / 3,
      energy_estimated: true,
      finish_reason: 'stop',
    };
  }

  /** Twelve characters, as a gateway's ids have. */
  #letters(): string {
    return this.#random().toString(36).slice(2, 14).padEnd(12, '0');
  }

  /** A 32-bit linear congruential generator: the same requests for the same seed. */
  #random(): number {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) >>> 0;
    return this.#state / 2 ** 32;
  }
}
