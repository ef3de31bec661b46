/** One pipeline becomes another one: where it is cut, on which devices its stages come to lie, and the call. */
import type { ScalingMark } from '../../solver/locality/resource-graph.ts';
import { deviceOf, type KindStages, stagesOnKind } from '../../solver/placement/kind-stages.ts';
import type { StagePlan } from '../../solver/placement/stage-plan.ts';
import { cv_assumed } from '../../solver/placement/stage-sharing.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { concurrencyOf, stagesPerNode } from '../../spec/launch.ts';
import type { PlacementQuestion } from '../../spec/plan.ts';
import { type RefactorOutcome, type RefactorStage, refactor_ms_max } from '../../spec/refactor.ts';
import { GatewayAdmin } from '../gateway/admin.ts';
import { inspectGateways, readAdminToken } from '../gateway/process.ts';
import { planningInput } from '../plan/plan-now.ts';
import { buildPlacementQuestion } from '../plan/planning.ts';
import type { Operations } from '../runner/operations.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import { type HeldPipeline, refactorStages } from './held-pipelines.ts';

export interface PipelineChange {
  pipeline: HeldPipeline;
  plan: StagePlan;
  stages: RefactorStage[];
  /** Of stages that start on a device which has nothing of them: why there. */
  starts: string[];
  /** Loads of these stages, and those that were under way. */
  marks: readonly ScalingMark[];
}

/** What else is known as stages of a pipeline start. */
export interface AtChange {
  /** Of the model's arrivals. */
  cv?: number | undefined;
  /** Loads of other pipelines that are under way. */
  marks?: readonly ScalingMark[];
}

/** What is known of the models of a deployment and of the nodes of its site, without asking the scheduler. */
export async function pipelineQuestion(
  operations: Operations,
  state: DeploymentState,
): Promise<PlacementQuestion> {
  const input = await planningInput(operations, state.spec, state.spec_file, { ask: 'never' });
  return (await buildPlacementQuestion(input)).question;
}

/** What the stages of a pipeline that runs are cut from; undefined where its kind of node is offered no more. */
export function kindStagesOf(pipeline: HeldPipeline, question: PlacementQuestion): KindStages | undefined {
  const { unit, node_kind } = pipeline;
  const model = question.models.find(({ spec }) => spec.name === unit.model.name);
  const offer = question.node_kinds.find((each) => each.node_kind === node_kind);
  if (!model || !offer) return undefined;
  const of: KindStages = {
    model,
    offer,
    device: deviceOf(offer),
    precision: unit.model.precision,
    weight_bytes: unit.weight_bytes,
    max_sequences: concurrencyOf(unit),
    // What is promised to sequences stays: each stage keeps that of its own layers.
    kv_tokens: unit.kv_tokens,
    device_bytes: rounding_bytes + (unit.memory?.device_bytes ?? offer.devices.memory_bytes),
    from: pipeline.stages,
  };
  if (!pipeline.lent) return of;
  const { node_kind: lender, device_bytes } = pipeline.lent;
  const other = question.node_kinds.find((each) => each.node_kind === lender);
  if (!other) return undefined;
  const stages = unit.stages!.length - stagesPerNode(unit);
  const last_bytes = rounding_bytes + device_bytes;
  return { ...of, last: { stages, offer: other, device: deviceOf(other), device_bytes: last_bytes } };
}

/** @throws HpcserveError E_STAGES_IMPOSSIBLE */
export function planChange(
  pipeline: HeldPipeline,
  stages: number,
  question: PlacementQuestion,
  now_ms: number,
  { cv = cv_assumed, marks = [] }: AtChange = {},
): PipelineChange {
  const { unit, devices } = pipeline;
  const impossible = (because: string): HpcserveError =>
    new HpcserveError('E_STAGES_IMPOSSIBLE', {
      what: `${unit.unit} cannot have ${stages} ${stages === 1 ? 'stage' : 'stages'}`,
      because,
      details: { unit: unit.unit, stages },
    });
  const { jobs } = unit.model.parallel;
  if (pipeline.shared_node !== undefined)
    throw impossible(
      `several of its jobs are on ${pipeline.shared_node}, and each counts its devices from 0`,
    );
  const layers = question.models.find(({ spec }) => spec.name === unit.model.name)?.summary?.n_layer;
  if (layers !== undefined && stages > layers) throw impossible(`${unit.model.name} has ${layers} layers`);
  if (stages > devices.length) {
    const have = jobs === undefined ? 'its job has' : `its ${jobs} jobs have`;
    throw impossible(`${have} ${devices.length} ${devices.length === 1 ? 'device' : 'devices'} for it`);
  }
  const planned = unit.stages!.length;
  if (pipeline.lent && stages !== planned)
    throw impossible(
      `its first job has other devices than those that lend it stages (${pipeline.lent.model}): it is planned as ${planned} stages on them`,
    );
  const of = kindStagesOf(pipeline, question);
  if (!of) {
    const kinds = [pipeline.node_kind, ...(pipeline.lent ? [pipeline.lent.node_kind] : [])];
    throw impossible(`the site offers no nodes of kind ${kinds.join(', or of kind ')} any more`);
  }
  const plan = stagesOnKind(of, stages, question.settings, measuredOf(of, pipeline));
  if (!plan.feasible) throw impossible(plan.because);
  const stage_bytes = plan.shares.map(({ weight_bytes }) => weight_bytes);
  const stage_s = plan.partition.stages.map(({ compute_s }) => compute_s);
  const starts = { model: unit.model.name, cv, stage_bytes, stage_s, now_ms, marks };
  return { pipeline, plan, ...refactorStages(pipeline, plan.cuts, starts)! };
}

/** What was planned to the byte fits again, however its sums are rounded. */
const rounding_bytes = 4096;

/** What the stages took, if what was measured is of this very cut. */
export function measuredOf(
  { model }: KindStages,
  { stages, node_kind, lent }: HeldPipeline,
): StageTimes | undefined {
  const isOfCut = (seen: StageTimes): boolean =>
    seen.length === stages.length && seen.every(({ begin }, index) => begin === stages[index]!.begin);
  return model.seen
    ?.filter((seen) => seen.node_kind === node_kind && (!lent || seen.lender === lent.node_kind))
    .map((seen) => seen.stages ?? [])
    .find(isOfCut);
}

type StageTimes = NonNullable<NonNullable<KindStages['model']['seen']>[number]['stages']>;

/** Returns when the pipeline is the other one. @throws HpcserveError E_GATEWAY_UNREACHABLE, E_GATEWAY_ANSWER */
export async function changePipeline(
  { loaded, signal }: Operations,
  { pipeline, stages }: PipelineChange,
): Promise<RefactorOutcome> {
  const gateways = await inspectGateways(loaded.layout);
  const { layout, status } = gateways.find((each) => each.status.state === 'running') ?? {};
  if (layout === undefined || status?.state !== 'running')
    throw new HpcserveError('E_GATEWAY_UNREACHABLE', {
      what: `no gateway of ${loaded.site.name} can be reached`,
      because: 'pipelines are told over a gateway, whose key their agents know',
    });
  const admin = new GatewayAdmin(status.endpoint, readAdminToken(layout));
  const order = { model: pipeline.unit.model.name, stages };
  const limit = AbortSignal.any([signal, AbortSignal.timeout(refactor_ms_max)]);
  return admin.refactor(pipeline.session_id, order, limit);
}
