/** `move`: pipelines of a deployment get another number of stages while they answer. */
import { HpcserveError } from '../spec/errors/error.ts';
import { nearest } from '../spec/nearest.ts';
import type { RefactorOutcome } from '../spec/refactor.ts';
import {
  changePipeline,
  type PipelineChange,
  pipelineQuestion,
  planChange,
} from './pipelines/change-pipeline.ts';
import { type HeldPipeline, heldPipelines } from './pipelines/held-pipelines.ts';
import { observe, pollJobsIfReachable } from './reconcile/observe.ts';
import type { Operations } from './runner/operations.ts';
import type { DeploymentState } from './state/deployment-state.ts';

export interface MoveOrder {
  deployment: string;
  stages: number;
  /** Of a deployment with several models; absent: its only one. */
  model?: string;
}

/**
 * What would be changed: every pipeline of the model that serves now and has another number of stages.
 * @throws HpcserveError E_DEPLOYMENT_UNKNOWN, E_USAGE, E_STAGES_IMPOSSIBLE
 */
export async function planMove(operations: Operations, order: MoveOrder): Promise<PipelineChange[]> {
  const { store, runner, now_ms } = operations;
  const state = store.require(order.deployment);
  const name = modelOf(state, order.model);
  const poll = await pollJobsIfReachable([state], store, runner, now_ms());
  const held = heldPipelines(state, observe(state, store, poll, now_ms())).filter(
    ({ unit }) => unit.model.name === name,
  );
  if (held.length === 0) throw noPipeline(state, name, order.stages);
  const question = await pipelineQuestion(operations, state);
  return held
    .filter(({ stages }) => stages.length !== order.stages)
    .map((pipeline) => planChange(pipeline, order.stages, question, now_ms()));
}

/** One after the other: while one has its pause the others answer. */
export async function* move(
  operations: Operations,
  changes: readonly PipelineChange[],
): AsyncGenerator<{ pipeline: HeldPipeline; outcome: RefactorOutcome }> {
  for (const change of changes)
    yield { pipeline: change.pipeline, outcome: await changePipeline(operations, change) };
}

function modelOf({ name, spec }: DeploymentState, asked: string | undefined): string {
  const names = spec.models.map((model) => model.name);
  if (asked === undefined && names.length === 1) return names[0]!;
  if (asked !== undefined && names.includes(asked)) return asked;
  const close = asked === undefined ? names[0]! : (nearest(asked, names) ?? names[0]!);
  throw new HpcserveError('E_USAGE', {
    what:
      asked === undefined
        ? `which model of ${name} is to have other stages?`
        : `${name} has no model with the name ${asked}`,
    because: `it has ${names.join(', ')}`,
    try: `hpcserve move ${name} --model ${close} --stages N`,
  });
}

function noPipeline(state: DeploymentState, model: string, stages: number): HpcserveError {
  const units = state.launches.flatMap(({ superseded, planned }) =>
    superseded ? [] : planned.units.filter((unit) => unit.model.name === model),
  );
  const isCut = units.some((unit) => unit.stages !== undefined);
  const engines = [...new Set(units.map(({ engine }) => engine))].join(', ');
  return new HpcserveError('E_STAGES_IMPOSSIBLE', {
    what: `${model} cannot be given ${stages} ${stages === 1 ? 'stage' : 'stages'} now`,
    because: isCut
      ? 'none of its replicas serves; stages are changed while a pipeline answers'
      : units.length === 0
        ? 'it has no replica'
        : `its replicas (${engines}) are not cut into stages: parallel.pipeline of its model.yaml is 1, or the engine is not the native one`,
    try: isCut ? `hpcserve status ${state.name}` : [],
  });
}
