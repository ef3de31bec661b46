/**
 * When a deployment is planned again; `judge-plan.ts` says whether the new plan is worth its moves. Three things make a
 * plan wrong: nodes are lost, the cluster changes, requests come at another rate or length than it was made for. Pure:
 * the live keeper and the tests call it with the time.
 *
 *   plan ──► assumptions ──── differ for hold_ms ──► a search, at most one in interval_ms ──► pays? ──► moves
 *     ▲                                                                                         │
 *     └──── what is assumed is what was seen, whatever came of the search ◄─────────────────────┘
 *
 * A job that is over and has no node of its kind left is no matter of patience: it is planned elsewhere at once.
 */
import type { NodeKindOffer, PlannedLaunch, PlannedWorkload } from '../../spec/plan.ts';

export interface ReplanSettings {
  /**
   * Between two searches, ms; 0: none but for what is lost. Lower: follows load and cluster sooner; higher: fewer
   * moves.
   */
  interval_ms: number;
  /**
   * A change counts when it has lasted so long, ms. Lower: sooner; higher: nodes that reboot and bursts move nothing.
   */
  hold_ms: number;
  /** Rate or lengths differ when they are so many times what was planned for, or that part of it. Above 1. */
  load_factor: number;
  /** Share of its cost that a new plan must save. Lower: follows closely; higher: leaves more where it is. */
  gain_min: number;
}

/** Nodes of a kind came or went when there are so many times as many, or that part. Higher: fewer searches. */
const nodes_factor = 2;
/** Rates below it are all the same, requests per second: a replica serves them on the side. */
const rate_noticed_per_s = 0.1;
/** Between two searches for what waits without a node, ms. Higher: fewer where nodes come and go all the time. */
const lost_pause_ms = 60_000;
const epsilon = 1e-9;

/** What a plan was made for. */
export interface PlanAssumptions {
  planned_ms: number;
  /** Nodes that took jobs, by node kind; of kinds nobody could ask about nothing. */
  nodes: Readonly<Record<string, number>>;
  /** By model. */
  loads: Readonly<Record<string, PlannedWorkload>>;
  /** Since when cluster or load differ from this, without a break. */
  differs_since_ms?: number | undefined;
}

/** A launch that the deployment is to consist of. */
export interface StandingLaunch {
  launch_id: string;
  planned: Pick<PlannedLaunch, 'node_kind' | 'node_count' | 'devices_per_node' | 'cpus_per_node'>;
  phase: 'waiting' | 'running' | 'ended';
}

export interface ReplanQuestion {
  now_ms: number;
  launches: readonly StandingLaunch[];
  /** What the site offers now; undefined where nobody can be asked: then nothing is known to be lost. */
  offers: readonly NodeKindOffer[] | undefined;
  /** Absent: nobody wrote it down. */
  assumed: PlanAssumptions | undefined;
  /** What gateways measure, by model; of models whose workload a person gave nothing. */
  measured: ReadonlyMap<string, PlannedWorkload>;
  settings: ReplanSettings;
}

export type ReplanTrigger = 'loss' | 'cluster' | 'load';

export type ReplanDecision =
  | {
      do: 'replan';
      trigger: ReplanTrigger;
      because: string;
      /** Launches that have no node any more. */
      lost: string[];
      /** What runs is on more nodes than take jobs: it cannot go on so. */
      strained: boolean;
    }
  /** Something differs, since then. */
  | { do: 'wait'; differs_since_ms: number; because: string }
  | { do: 'nothing' };

/** Whether to search for a new plan now. */
export function decideReplan(question: ReplanQuestion): ReplanDecision {
  const { now_ms, launches, offers, assumed, settings } = question;
  const nodes = offers === undefined ? undefined : nodesByKind(offers);
  const since_ms = now_ms - (assumed?.planned_ms ?? Number.NEGATIVE_INFINITY);
  const { lost, strained, because } = offers
    ? withoutNodes(launches, offers)
    : { lost: [], strained: false, because: '' };
  // A search that found no other place is made again when other nodes are there, or after a while.
  const unlikeBefore = assumed === undefined || nodes === undefined || !sameNodes(assumed.nodes, nodes);
  const retried = settings.interval_ms > 0 && since_ms >= settings.interval_ms;
  // How often what ended is tried again is bounded where it is decided.
  const ended = launches.some(({ launch_id, phase }) => phase === 'ended' && lost.includes(launch_id));
  const paced = ended || since_ms >= lost_pause_ms;
  if (lost.length > 0 && ((unlikeBefore && paced) || retried))
    return { do: 'replan', trigger: 'loss', because, lost, strained };
  if (assumed === undefined || settings.interval_ms === 0) return { do: 'nothing' };
  const cluster = strained && unlikeBefore ? because : nodes && changedNodes(assumed.nodes, nodes);
  const load = changedLoad(assumed.loads, question.measured, settings.load_factor);
  const change = cluster ?? load;
  if (change === undefined) return { do: 'nothing' };
  const differs_since_ms = Math.min(assumed.differs_since_ms ?? now_ms, now_ms);
  if (now_ms - differs_since_ms < settings.hold_ms || since_ms < settings.interval_ms)
    return { do: 'wait', differs_since_ms, because: change };
  const trigger = cluster === undefined ? 'load' : 'cluster';
  return { do: 'replan', trigger, because: change, lost: [], strained };
}

/** What is assumed after a look at the world, whether or not a plan came of it. */
export function assumptions(
  now_ms: number,
  offers: readonly NodeKindOffer[] | undefined,
  loads: Readonly<Record<string, PlannedWorkload>>,
): PlanAssumptions {
  return { planned_ms: now_ms, nodes: offers === undefined ? {} : nodesByKind(offers), loads };
}

/** Nodes that take jobs; a kind with several sorts of devices is there once. */
function nodesByKind(offers: readonly NodeKindOffer[]): Record<string, number> {
  const nodes: Record<string, number> = {};
  for (const { node_kind, nodes_total } of offers)
    nodes[node_kind] = Math.max(nodes[node_kind] ?? 0, nodes_total);
  return nodes;
}

/**
 * Launches whose kind (or the pool of nodes it is in) has fewer nodes than they need together: of those that do not run
 * so many are lost as there is no room for. `strained`: even what runs is more than the nodes that take jobs hold, such
 * as on one that drains.
 */
export function withoutNodes(
  launches: readonly StandingLaunch[],
  offers: readonly NodeKindOffer[],
): { lost: string[]; strained: boolean; because: string } {
  const lost: string[] = [];
  const said: string[] = [];
  let strained = false;
  const places = new Map<string, { nodes: number; launches: { launch: StandingLaunch; share: number }[] }>();
  for (const launch of launches) {
    const { node_kind, devices_per_node } = launch.planned;
    const ofKind = offers.filter((offer) => offer.node_kind === node_kind);
    const offer = ofKind.find(({ devices }) => devices.model === devices_per_node.model) ?? ofKind[0];
    const key = offer?.pool?.id ?? node_kind;
    const place = places.get(key) ?? { nodes: offer?.pool?.nodes ?? offer?.nodes_total ?? 0, launches: [] };
    place.launches.push({ launch, share: nodeShare(launch, offer) });
    places.set(key, place);
  }
  for (const { nodes, launches: own } of places.values()) {
    const needed = own.reduce((sum, { share }) => sum + share, 0);
    if (needed <= nodes + epsilon) continue;
    const kinds = [...new Set(own.map(({ launch }) => launch.planned.node_kind))].join(', ');
    said.push(`${kinds}: ${nodes} node(s) take jobs, ${Math.ceil(needed - epsilon)} are needed`);
    let missing = needed - nodes;
    const order = { ended: 0, waiting: 1, running: 2 };
    const idle = own
      .filter(({ launch }) => launch.phase !== 'running')
      .sort((a, b) => order[a.launch.phase] - order[b.launch.phase]);
    for (const { launch, share } of idle) {
      if (missing <= epsilon) break;
      lost.push(launch.launch_id);
      missing -= share;
    }
    strained ||= missing > epsilon;
  }
  return { lost, strained, because: said.join('; ') };
}

/** Nodes that a launch takes; a part of one where others may be beside it. */
function nodeShare({ planned }: StandingLaunch, offer: NodeKindOffer | undefined): number {
  const { node_count, devices_per_node, cpus_per_node } = planned;
  if (offer === undefined || node_count > 1 || offer.whole_nodes) return node_count;
  const share = Math.max(devices_per_node.count / offer.devices.count, cpus_per_node / offer.cpus);
  return Math.min(1, share);
}

function sameNodes(a: Readonly<Record<string, number>>, b: Readonly<Record<string, number>>): boolean {
  return [...new Set([...Object.keys(a), ...Object.keys(b)])].every((kind) => a[kind] === b[kind]);
}

/** Kinds that came, went, or have many times as many nodes as before. */
function changedNodes(
  before: Readonly<Record<string, number>>,
  now: Readonly<Record<string, number>>,
): string | undefined {
  // Nobody could be asked when it was planned.
  if (Object.keys(before).length === 0) return undefined;
  const changes = [...new Set([...Object.keys(before), ...Object.keys(now)])].flatMap((kind) => {
    const was = before[kind] ?? 0;
    const is = now[kind] ?? 0;
    const least = Math.min(was, is);
    const most = Math.max(was, is);
    return most > 0 && most >= nodes_factor * least
      ? [`${kind}: ${is} node(s) take jobs, ${was} before`]
      : [];
  });
  return changes.length === 0 ? undefined : changes.join('; ');
}

/** The model whose requests differ most from what was planned for, if they differ enough. */
function changedLoad(
  assumed: Readonly<Record<string, PlannedWorkload>>,
  measured: ReadonlyMap<string, PlannedWorkload>,
  load_factor: number,
): string | undefined {
  let worst: { factor: number; words: string } | undefined;
  for (const [model, now] of measured) {
    const before = assumed[model];
    if (before === undefined || before.source === 'given') continue;
    const rate = (workload: PlannedWorkload): number => Math.max(rate_noticed_per_s, workload.rate_per_s);
    const factor = Math.max(
      apart(rate(now), rate(before)),
      apart(now.input_tokens, before.input_tokens),
      apart(now.output_tokens, before.output_tokens),
    );
    if (factor < load_factor || factor <= (worst?.factor ?? 0)) continue;
    worst = { factor, words: `${model} is asked ${describe(now)}; planned for ${describe(before)}` };
  }
  return worst?.words;
}

function apart(a: number, b: number): number {
  return Math.max(a, b) / Math.max(epsilon, Math.min(a, b));
}

function describe({ rate_per_s, input_tokens, output_tokens }: PlannedWorkload): string {
  return `${Number(rate_per_s.toPrecision(2))}/s, ${Math.round(input_tokens)} tokens in, ${Math.round(output_tokens)} out`;
}
