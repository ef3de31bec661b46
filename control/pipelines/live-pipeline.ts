/**
 * How fast a pipeline that serves would be with each number of stages that it may have: predicted, from its model's
 * files.
 */
import type { LivePipeline } from '../../solver/granularity/live-question.ts';
import { activationSize_bytes, fitActivations } from '../../solver/partition/activation-size.ts';
import { stagesOnKind } from '../../solver/placement/kind-stages.ts';
import { shapeOf } from '../../solver/placement/model-facts.ts';
import { load_bytes_per_s } from '../../solver/placement/stage-plan.ts';
import { chunkOf_tokens, concurrencyOf, type UnitSpec } from '../../spec/launch.ts';
import { type ModelSpec, stageBounds, stageCounts } from '../../spec/model-yaml.ts';
import { assumedWorkload, type PlacementQuestion } from '../../spec/plan.ts';
import { kindStagesOf, measuredOf } from './change-pipeline.ts';
import type { HeldPipeline } from './held-pipelines.ts';

/** One hop between stages, however little goes: a frame through both workers' threads, by sockets. */
const hop_s = 0.0002;
/** What goes is copied, summed up and, between nodes, encrypted on its way, bytes/s: an assumption. */
const hop_bytes_per_s = 1e9;
/** Hidden states are not compressed, so that Eq. 3's other law holds: bytes grow with the rows. */
const hidden_states = fitActivations(1, []);
const hidden_bytes = 4;

/**
 * A request is a pass for each token of its answer and one for each chunk of its prompt. These differ: a batch of
 * tokens that are decoded reads the weights of a stage, whose share of all falls as stages do, together with the
 * share of the sequences in it; a chunk computes, and twice the stages take half the time each. So finer pipelines
 * carry more where prompts are long. `stage_s` is what a pass takes on average of both, and `hops_s` what it takes
 * between stages: hidden states of all its rows (FlexPipe's s_a) go from one to the next.
 * @returns undefined where its number of stages cannot be planned, such as where its files are gone
 */
export function livePipeline(
  pipeline: HeldPipeline,
  model: ModelSpec,
  question: PlacementQuestion,
): LivePipeline | undefined {
  const of = kindStagesOf(pipeline, question);
  if (!of) return undefined;
  const stages = pipeline.stages.length;
  const workload = of.model.workload ?? assumedWorkload;
  const { input_tokens, output_tokens } = workload;
  const chunk_tokens = chunkOf_tokens(pipeline.unit);
  const chunks = Math.ceil(input_tokens / chunk_tokens);
  const passes_per_request = Math.max(1, output_tokens) + chunks;
  const batch_max = sequencesAtOnce(pipeline.unit, workload);
  const width = shapeOf(of.model)?.n_embd ?? 0;
  const hopOf_s = (rows: number): number =>
    hop_s + activationSize_bytes(hidden_bytes * width, hidden_states, rows) / hop_bytes_per_s;
  const counts = [...new Set([...stageCounts(stageBounds(model)), stages])].sort((a, b) => a - b);
  const found = counts.flatMap((count) => {
    if (count > pipeline.devices.length) return [];
    const plan = stagesOnKind(of, count, question.settings);
    const rows = Math.min(input_tokens, chunk_tokens);
    const prompts = stagesOnKind({ ...of, rows }, count, question.settings);
    if (!plan.feasible || !prompts.feasible) return [];
    const batch = batch_max / count;
    const request_s =
      (Math.max(1, output_tokens) * plan.partition.slowest_s) / batch + chunks * prompts.partition.slowest_s;
    const hops_s = Math.max(1, output_tokens) * hopOf_s(batch) + chunks * hopOf_s(rows);
    return [
      {
        count,
        plan,
        stage_s: (batch * request_s) / passes_per_request,
        hops_s: (count * hops_s) / passes_per_request,
      },
    ];
  });
  if (!found.some(({ count }) => count === stages)) return undefined;
  const live: LivePipeline = {
    stages,
    granularities: found.map(({ count, stage_s, hops_s }) => ({
      stages: count,
      batch_max,
      stage_s,
      hops_s,
    })),
    stage_bytes: found.map(({ plan }) => Math.max(...plan.shares.map(({ weight_bytes }) => weight_bytes))),
    load_bytes_per_s,
    passes_per_request,
  };
  const measured = measuredOf(of, pipeline);
  const better = measured && stagesOnKind(of, stages, question.settings, measured);
  if (better?.feasible)
    live.uneven = better.cuts.some(({ begin }, index) => begin !== pipeline.stages[index]!.begin);
  return live;
}

/**
 * b: as many sequences as a batch takes, and as its keys and values hold at the lengths that the model is asked with.
 * What it holds is the same however it is cut: a stage has that of its own layers, for all tokens.
 */
function sequencesAtOnce(unit: UnitSpec, { input_tokens, output_tokens }: typeof assumedWorkload): number {
  const length = Math.min(unit.context_tokens, input_tokens + output_tokens);
  return Math.max(1, Math.min(concurrencyOf(unit), Math.floor(unit.kv_tokens / length)));
}
