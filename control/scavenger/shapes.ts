/**
 * The jobs that could be submitted for idle nodes, planned for each preemptible node kind: one replica of a model, or
 * as many as a node holds where nodes are given whole.
 */
import { asDecided } from '../../solver/placement/decided-model.ts';
import type { ReplicaShape } from '../../solver/scavenging/scavenge.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { PlannedLaunch, PlannedModel } from '../../spec/plan.ts';
import { planNow } from '../plan/plan-now.ts';
import { rejectionLines } from '../plan/planning.ts';
import type { Operations } from '../runner/operations.ts';
import type { DeploymentState } from '../state/deployment-state.ts';
import { digestOf } from '../state/digest.ts';
import { scavengerKinds } from './idle-holes.ts';

export interface Shape {
  name: string;
  node_kind: string;
  launch: PlannedLaunch;
  fingerprint: string;
  worth_per_s: number;
  /** Devices of a node that such a job takes, used or not. */
  devices: number;
  replicas: number;
}

export interface ModelShapes {
  shapes: Shape[];
  /** Why it cannot run on some kinds. */
  because: string[];
}

/** Taken for the time to load until it was measured. */
export const load_s_default = 60;
/** A better plan of one replica on one node kind is not looked for any longer. */
const search_ms = 300;

/** Plans are kept as long as deployment and site stay the same. */
export class Shapes {
  readonly #operations: Operations;
  readonly #planned = new Map<string, ModelShapes>();

  constructor(operations: Operations) {
    this.#operations = { ...operations, emit: () => {} };
  }

  async of(state: DeploymentState, model: ModelSpec): Promise<ModelShapes> {
    const key = digestOf({ name: state.name, digest: state.spec_digest, model: model.name });
    const known = this.#planned.get(key);
    if (known) return known;
    const { node_kinds } = model.devices;
    const kinds = scavengerKinds(this.#operations.loaded.site)
      .map(({ name }) => name)
      .filter((name) => node_kinds.length === 0 || node_kinds.includes(name));
    const made: ModelShapes = {
      shapes: [],
      because:
        kinds.length > 0 ? [] : [`${model.name}: devices.node_kinds names no kind of preemptible nodes`],
    };
    for (const kind of kinds) {
      try {
        await this.#plan(state, model, kind, made);
      } catch (error) {
        if (!(error instanceof HpcserveError)) throw error;
        // What Slurm cannot say now it says in the next round.
        if (error.code.startsWith('E_SLURM_')) throw error;
        made.because.push(`${model.name} on ${kind}: ${[error.message, ...error.because].join(': ')}`);
      }
    }
    this.#planned.set(key, made);
    return made;
  }

  async #plan(state: DeploymentState, model: ModelSpec, node_kind: string, made: ModelShapes): Promise<void> {
    const planned = await this.#planReplicas(state, model, node_kind, 1);
    const { plan, question } = planned;
    const [launch] = plan.launches;
    if (!launch || plan.unplaced.length > 0) {
      made.because.push(...rejectionLines(plan.rejected).map(({ line }) => `${model.name} on ${line}`));
      return;
    }
    const taken = Math.max(1, launch.devices_per_node.count);
    const offer = question.node_kinds.find(
      (each) => each.node_kind === node_kind && each.devices.model === launch.devices_per_node.model,
    );
    const whole = offer?.whole_nodes === true && launch.node_count === 1;
    const fit = whole ? Math.min(Math.floor(offer.devices.count / taken), model.scavenger.replicas) : 1;
    const packed = fit > 1 ? await this.#planReplicas(state, model, node_kind, fit) : planned;
    // Where memory or cores hold fewer, one replica a job goes on being right.
    const chosen = packed.plan.launches.length === 1 && packed.plan.unplaced.length === 0 ? packed : planned;
    const [job = launch] = chosen.plan.launches;
    made.shapes.push({
      name: `${state.name}/${model.name} on ${node_kind}`,
      node_kind,
      launch: { ...job, units: job.units.map((unit) => ({ ...unit, model: asDecided(model, unit) })) },
      fingerprint: chosen.fingerprint(job),
      worth_per_s: worthOf(chosen.plan.models[0], job),
      devices: whole ? offer.devices.count : Math.max(1, job.devices_per_node.count),
      replicas: job.node_count === 1 ? job.units.length : 1,
    });
  }

  #planReplicas(
    state: DeploymentState,
    model: ModelSpec,
    node_kind: string,
    replicas: number,
  ): ReturnType<typeof planNow> {
    const { partition: _, time_limit: __, ...slurm } = state.spec.slurm;
    const one: ModelSpec = {
      ...model,
      replicas,
      min_stable_replicas: 0,
      tier: 'scavenger',
      devices: { ...model.devices, node_kinds: [node_kind] },
    };
    const spec = { ...state.spec, models: [one], slurm };
    return planNow(this.#operations, spec, state.spec_file, { search_ms });
  }
}

/** Tokens a second where the plan predicts them, else devices: kinds of one model are compared by it. */
function worthOf(model: PlannedModel | undefined, launch: PlannedLaunch): number {
  const predicted = model?.groups[0]?.predicted;
  if (model && predicted) return predicted.max_rate_per_s * model.workload.output_tokens;
  return Math.max(1, launch.devices_per_node.count) * launch.node_count;
}

export function replicaShape(
  { name, node_kind, launch, worth_per_s, devices, replicas }: Shape,
  load_s: number,
): ReplicaShape {
  return {
    shape: name,
    node_kind,
    nodes: launch.node_count,
    devices,
    replicas,
    load_s,
    worth_per_s,
  };
}
