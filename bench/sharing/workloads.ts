/** Requests for the comparison: drawn by seed, or those that the paper's authors publish, where they are given. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { drawWorkload, type WorkloadRequest } from '../../solver/sharing-simulator/workload.ts';
import { parseTrace } from '../../solver/simulator/trace.ts';
import { MissingNeed } from '../need.ts';

const minutes = 30;
const tokens_max = 4096;

export interface Workload {
  /** Where arrivals and lengths come from, in words. */
  origin: string;
  /** Whether another seed gives other requests. */
  seeded: boolean;
  draw(models: number, seed: number): WorkloadRequest[];
}

/** Arrivals by seed, and lengths from the quantiles of Azure's conversations that the simulator brings. */
export function quantileWorkload(): Workload {
  return {
    seeded: true,
    origin: 'arrivals by seed, lengths from quantiles of Azure LLM 2023 conversations',
    draw: (models, seed) => drawWorkload({ models, minutes, seed }),
  };
}

/**
 * Arrivals by seed. Lengths from Azure's conversations of 2023: `azure_llm_2023_conv.csv` in the folder
 * `HPCSERVE_TRACES` (or `shared/traces` beside the project).
 * @throws MissingNeed where it is not there
 */
export function seededWorkload(): Workload {
  const folder = process.env.HPCSERVE_TRACES ?? join(packageRoot, '..', 'shared', 'traces');
  const file = join(folder, 'azure_llm_2023_conv.csv');
  if (!existsSync(file))
    throw new MissingNeed(
      `the lengths of Azure's conversations are not there: ${file}`,
      'set HPCSERVE_TRACES to a folder with azure_llm_2023_conv.csv (AzureLLMInferenceTrace_conv.csv of the Azure Public Dataset, CC-BY), or take the quantiles of it with --quantiles',
    );
  const { input_tokens, output_tokens } = parseTrace(readFileSync(file, 'utf8'), file);
  const lengths = Array.from(input_tokens, (input, at) => ({
    input_tokens: input,
    output_tokens: output_tokens[at]!,
  })).filter((pair) => pair.input_tokens + pair.output_tokens <= tokens_max);
  return {
    seeded: true,
    origin: `arrivals by seed, lengths from the ${lengths.length} Azure LLM 2023 conversations of at most ${tokens_max} tokens`,
    draw: (models, seed) => drawWorkload({ models, minutes, seed, lengths }),
  };
}

interface PublishedFunction {
  timestamps: number[];
  input: number[];
  output: number[];
}

/** Functions of one call count lie together, eight of each; of every eight the first so many are taken. */
const published_group = 8;

/**
 * The requests of the paper itself: a JSON array of functions with `timestamps` (s), `input` and `output` lengths, as
 * its authors publish them for 128 functions.
 */
export function publishedWorkload(file: string): Workload {
  const functions = JSON.parse(readFileSync(file, 'utf8')) as PublishedFunction[];
  return {
    seeded: false,
    origin: `the requests that LLM-Mesh’s authors publish (${file})`,
    draw: (models) => {
      const taken = (models / functions.length) * published_group;
      const chosen = functions.filter((_, at) => at % published_group < taken);
      return chosen
        .flatMap(({ timestamps, input, output }, model) =>
          timestamps.map((seconds, at) => ({
            id: `${model}.${at}`,
            model,
            arrival_ms: seconds * 1000,
            input_tokens: input[at]!,
            output_tokens: output[at]!,
          })),
        )
        .sort((a, b) => a.arrival_ms - b.arrival_ms);
    },
  };
}
