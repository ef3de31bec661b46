import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { every } from '../../host/every.ts';
import { writeFileAtomicallyAsync } from '../../host/whole-file.ts';
import { systemMessage } from '../../spec/errors/system-error.ts';
import { gatewayFiles } from '../../spec/state-layout.ts';
import {
  combineWorkloads,
  type SiteWorkload,
  type WorkloadClass,
  type WorkloadFile,
  workloadFileSchema,
  workloadWrite_ms,
} from '../../spec/workload.ts';
import type { GatewayLog } from '../log.ts';
import { Ewma, window_s } from './ewma.ts';
import { LengthQuantiles } from './length-quantiles.ts';

/** A rate over less time would make ten requests a second of one. */
const rateOver_s = 10;
/** Models kept; the oldest go. Lower: less to write; names come from deployments. */
const models_max = 1000;
/** Weight of the newest answer in what is expected of the next. Lower: steadier; higher: follows changes sooner. */
const newestWeight = 0.02;
/**
 * Of answers so many are no longer than what is held for one that names no limit. Lower: keys get further with what
 * they have; higher: budgets are kept more exactly.
 */
const longShare = 0.95;
/** Before so many answers were measured, one is taken to be as long as this at least. */
const measuredLeast = 20;
const longAnswerPrior_tokens = 1024;

const lengthsSchema = z.object({
  input: Ewma.schema,
  output: Ewma.schema,
  requests: z.number().min(0),
});
const stateSchema = z.object({
  since_ms: z.number(),
  expected_tokens: z.number().min(0),
  answer_lengths: LengthQuantiles.schema.optional(),
  arrivals: Ewma.schema,
  refusals: Ewma.schema,
  plain: lengthsSchema,
  reasoning: lengthsSchema,
});
/** The file as this gateway writes it: what it needs to go on after a restart stands beside what others read. */
const ownFileSchema = workloadFileSchema.extend({ state: z.record(z.string(), stateSchema) });

interface Lengths {
  input: Ewma;
  output: Ewma;
  requests: number;
}

interface ModelLoad {
  since_ms: number;
  /** Moving mean of prompt and answer together, over requests of both classes. */
  expected_tokens: number;
  /** Of both classes. */
  answer_lengths: LengthQuantiles;
  arrivals: Ewma;
  refusals: Ewma;
  plain: Lengths;
  reasoning: Lengths;
}

/** How long requests of a model are, as the next one is expected. */
export interface AnswerLengths {
  /** Mean of prompt and answer together; 0 where nothing was measured. */
  expected_tokens: number;
  /** Few answers are longer. */
  long_answer_tokens: number;
}

/** Of a model of which nothing was measured. */
export const lengthsUnknown: AnswerLengths = {
  expected_tokens: 0,
  long_answer_tokens: longAnswerPrior_tokens,
};

/** What an answer tells of its model's load. */
export interface MeasuredAnswer {
  prompt_tokens?: number | undefined;
  completion_tokens?: number | undefined;
  reasoning_tokens?: number | undefined;
}

/** Measures what one gateway is asked: rate and lengths of each model, with their spread. */
export class WorkloadMeter {
  readonly #path: string;
  readonly #log: GatewayLog;
  readonly #now_ms: () => number;
  readonly #models: Map<string, ModelLoad>;
  readonly #stop: () => void;
  #writing: Promise<void> = Promise.resolve();

  constructor(folder: string, log: GatewayLog, now_ms: () => number = Date.now) {
    this.#path = join(folder, gatewayFiles.workload);
    this.#log = log;
    this.#now_ms = now_ms;
    this.#models = this.#read();
    // Of what nobody was asked there is nothing to write.
    this.#stop = every(workloadWrite_ms, () => this.#models.size > 0 && this.#write());
  }

  /** A request for a model that is deployed has arrived. */
  arrived(model: string): void {
    this.#of(model).arrivals.add(1, this.#now_ms());
  }

  /** It was refused for want of room. */
  refused(model: string): void {
    this.#of(model).refusals.add(1, this.#now_ms());
  }

  /** It was answered; lengths that its replica did not tell are not made up. */
  answered(model: string, { prompt_tokens, completion_tokens, reasoning_tokens }: MeasuredAnswer): void {
    if (prompt_tokens === undefined) return;
    const load = this.#of(model);
    const lengths = reasoning_tokens !== undefined && reasoning_tokens > 0 ? load.reasoning : load.plain;
    const now_ms = this.#now_ms();
    lengths.input.add(prompt_tokens, now_ms);
    lengths.output.add(completion_tokens ?? 0, now_ms);
    lengths.requests++;
    load.answer_lengths.add(completion_tokens ?? 0);
    const tokens = prompt_tokens + (completion_tokens ?? 0);
    load.expected_tokens += (load.expected_tokens === 0 ? 1 : newestWeight) * (tokens - load.expected_tokens);
  }

  /** Mean length of prompt and answer together; 0 where nothing was measured. Asked for with every request. */
  expectedLength_tokens(model: string): number {
    return this.#models.get(model)?.expected_tokens ?? 0;
  }

  /** Tokens that few answers of a model are longer than. */
  longAnswer(model: string): number {
    const lengths = this.#models.get(model)?.answer_lengths;
    if (!lengths || lengths.count < measuredLeast)
      return Math.max(longAnswerPrior_tokens, lengths?.quantile(longShare) ?? 0);
    return lengths.quantile(longShare);
  }

  lengths(model: string): AnswerLengths {
    return {
      expected_tokens: this.expectedLength_tokens(model),
      long_answer_tokens: this.longAnswer(model),
    };
  }

  models(): Iterable<string> {
    return this.#models.keys();
  }

  /** What this gateway measured, as others read it. */
  file(): WorkloadFile {
    const now_ms = this.#now_ms();
    const classes = [...this.#models].flatMap(([model, load]) => classesOf(model, load, now_ms));
    return { format: 1, measured_at_ms: now_ms, classes };
  }

  workloads(): SiteWorkload[] {
    return [...combineWorkloads([this.file()]).values()];
  }

  async close(): Promise<void> {
    this.#stop();
    this.#write();
    await this.#writing;
  }

  #of(model: string): ModelLoad {
    let load = this.#models.get(model);
    if (!load) {
      if (this.#models.size >= models_max) this.#models.delete(this.#models.keys().next().value!);
      load = {
        since_ms: this.#now_ms(),
        expected_tokens: 0,
        answer_lengths: new LengthQuantiles(),
        arrivals: new Ewma(),
        refusals: new Ewma(),
        plain: { input: new Ewma(), output: new Ewma(), requests: 0 },
        reasoning: { input: new Ewma(), output: new Ewma(), requests: 0 },
      };
      this.#models.set(model, load);
    }
    return load;
  }

  #write(): void {
    const file: z.infer<typeof ownFileSchema> = {
      ...this.file(),
      state: Object.fromEntries([...this.#models].map(([model, load]) => [model, stateOf(load)])),
    };
    this.#writing = this.#writing
      .then(() =>
        writeFileAtomicallyAsync(this.#path, `${JSON.stringify(file)}\n`, { durability: 'content' }),
      )
      .catch((error: Error) =>
        // The next write tries again; a plan works without it.
        this.#log.warn({ file: this.#path, reason: systemMessage(error) }, 'measured load cannot be written'),
      );
  }

  #read(): Map<string, ModelLoad> {
    let json: unknown;
    try {
      json = JSON.parse(readFileSync(this.#path, 'utf8'));
    } catch (error) {
      if (!(error instanceof SyntaxError) && (error as NodeJS.ErrnoException).code !== 'ENOENT')
        this.#log.warn({ file: this.#path, reason: (error as Error).message }, 'measured load not readable');
      return new Map();
    }
    const parsed = ownFileSchema.safeParse(json);
    if (!parsed.success) return new Map();
    return new Map(
      Object.entries(parsed.data.state).map(([model, load]) => [
        model,
        {
          since_ms: load.since_ms,
          expected_tokens: load.expected_tokens,
          answer_lengths: new LengthQuantiles(load.answer_lengths),
          arrivals: new Ewma(load.arrivals),
          refusals: new Ewma(load.refusals),
          plain: lengthsFrom(load.plain),
          reasoning: lengthsFrom(load.reasoning),
        },
      ]),
    );
  }
}

function stateOf({
  since_ms,
  expected_tokens,
  answer_lengths,
  arrivals,
  refusals,
  plain,
  reasoning,
}: ModelLoad): z.infer<typeof stateSchema> {
  const sums = ({ input, output, requests }: Lengths): z.infer<typeof lengthsSchema> => ({
    input: input.sums,
    output: output.sums,
    requests,
  });
  return {
    since_ms,
    expected_tokens,
    answer_lengths: answer_lengths.counts,
    arrivals: arrivals.sums,
    refusals: refusals.sums,
    plain: sums(plain),
    reasoning: sums(reasoning),
  };
}

function lengthsFrom({ input, output, requests }: z.infer<typeof lengthsSchema>): Lengths {
  return { input: new Ewma(input), output: new Ewma(output), requests };
}

/** Whether an arrival will be of one class or the other shows at its end: their shares are those of the answers. */
function classesOf(model: string, load: ModelLoad, now_ms: number): WorkloadClass[] {
  const elapsed_s = Math.max(rateOver_s, (now_ms - load.since_ms) / 1000);
  // The weights of a constant rate r, so long after the first request, sum up to r times this.
  const full_s = window_s * (1 - Math.exp(-elapsed_s / window_s));
  const rate_per_s = load.arrivals.weightAt(now_ms) / full_s;
  const refused_per_s = Math.min(rate_per_s, load.refusals.weightAt(now_ms) / full_s);
  const weights = {
    plain: load.plain.input.weightAt(now_ms),
    reasoning: load.reasoning.input.weightAt(now_ms),
  };
  const all = weights.plain + weights.reasoning;
  return (['plain', 'reasoning'] as const).flatMap((kind) => {
    const { input, output, requests } = load[kind];
    if (requests === 0 && (kind === 'reasoning' || load.reasoning.requests > 0)) return [];
    const share = all > 0 ? weights[kind] / all : 1;
    return [
      {
        model,
        reasoning: kind === 'reasoning',
        rate_per_s: rate_per_s * share,
        refused_per_s: refused_per_s * share,
        input_tokens: input.mean,
        output_tokens: output.mean,
        input_cv: input.cv,
        output_cv: output.cv,
        requests,
        window_s,
        measured_at_ms: now_ms,
      },
    ];
  });
}
