/**
 * The first token of a model that nobody asked for a while, on the whole GPU: streamed beside loaded first and then
 * run. Loading goes at the link's full rate from host memory, and nothing else counts: engines of the paper's peers
 * start up, too, which is most of what they lose. So ours is a floor of the gain, and the paper's figures stand beside
 * it.
 */
import { busyTime_s, iterationCost, iterationTime_s } from '../../solver/streaming/iteration-cost.ts';
import type { BenchResult } from '../result.ts';
import { machineOf, paperModels } from './setup.ts';

const prompt_tokens = 512;
const everything_streamed = { dense: 0, experts: 0 };
const everything_resident = { dense: 1, experts: 1 };
const paper: Readonly<Record<string, string>> = {
  'llama-3.2-3b': '7.1× over Aegaeon at most, dense models',
  'llama-3.1-8b': '7.1× over Aegaeon at most, dense models',
  'mixtral-8x7b': '4.6 to 5.0× over MoE-Infinity and FineMoE',
  'qwen3-30b-a3b': '1.95× over ServerlessLLM',
};

export function coldStartResults(): BenchResult[] {
  const { figures } = machineOf('the whole GPU').slices[0]!;
  return paperModels.flatMap((model) =>
    [prompt_tokens, 1].map((rows): BenchResult => {
      const cost = iterationCost(model, { rows, sampled: 1 }, figures, 'chosen');
      const streamed_s = iterationTime_s(cost, everything_streamed, figures);
      const load_s = (model.dense_bytes + model.expert_bytes) / figures.link_bytes_per_s;
      const loaded_s = load_s + busyTime_s(cost, everything_resident, figures.memory_bytes_per_s);
      return {
        what: `${model.name}: first token after ${rows} of prompt, weights in host memory (the paper: ${paper[model.name]})`,
        unit: 'ms',
        ours: 1000 * streamed_s,
        peer: 'loaded, then run',
        theirs: 1000 * loaded_s,
        ratio: loaded_s / streamed_s,
        bar: 'ratio ≥ 1',
        holds: loaded_s >= streamed_s,
      };
    }),
  );
}
