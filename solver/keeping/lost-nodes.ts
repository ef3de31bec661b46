/**
 * When the node of a running job counts as lost. Slurm ends what ran on a silent node after SlurmdTimeout, 300 s where
 * nobody changed it; until then its replacement waits, for the place of the job and for limits of the account. Here two
 * witnesses that know nothing of each other have to agree, for a while: the mesh no longer hears the node's agent, and
 * the scheduler gets no answer from the node. Pure: the keeper and the tests call it with the time.
 *
 *   agent left the mesh ──┐
 *                         ├── both, for hold_ms without a break ──► lost: its job is ended, another takes its place
 *   node does not answer ─┘
 *
 * An agent that alone is gone may have crashed: its job ends by itself, in seconds. Where it does not, several times as
 * long, nobody is left on the node who could end it: the node went and came back before Slurm noticed, and what it had
 * of the job is gone. A node that alone is silent still serves.
 */

/** What is known of one node of a job. */
export interface NodeSigns {
  node: string;
  /** As the mesh has it; `unknown`: it never spoke, or nobody can be asked. */
  agent: 'speaks' | 'gone' | 'unknown';
  /** It said itself that it ends: what its script still does is the site's. */
  has_ended?: boolean;
  /** Whether the scheduler gets answers from the node. */
  scheduler: 'hears' | 'silent' | 'unknown';
}

export interface WatchedLaunch {
  launch_id: string;
  nodes: readonly NodeSigns[];
  /** Slurm computes it now: one that it has suspended says nothing either. */
  runs: boolean;
}

export interface LostLaunch {
  launch_id: string;
  /** Those that are lost; none where agents are gone alone. */
  nodes: string[];
  because: string;
}

export interface LossQuestion {
  now_ms: number;
  /** Launches whose jobs run. */
  launches: readonly WatchedLaunch[];
  /** Nodes of the whole cluster, and those of them from which the scheduler gets no answer. */
  cluster: { nodes: number; silent: number };
  /** By launch, as the last decision returned it. */
  suspected: ReadonlyMap<string, Suspicion>;
  /** How long both signs must last, ms. Lower: replaced sooner; higher: nodes that come back keep their job. */
  hold_ms: number;
}

/** Since when a sign was seen without a break, Unix ms; absent: it is not seen. */
export interface Suspicion {
  /** Agent and node are silent. */
  lost_since_ms?: number;
  /** An agent is gone, whatever the scheduler hears. */
  gone_since_ms?: number;
}

export interface LossDecision {
  lost: LostLaunch[];
  suspected: ReadonlyMap<string, Suspicion>;
}

/** Where more of the cluster than this share is silent, its network or its controller is at fault, not the nodes. */
const silent_share_max = 0.5;
/**
 * An agent is gone alone for so many times `hold_ms`, and for so long at least: schedulers ask their nodes every minute
 * or two, and what they find says more. Lower: replaced sooner; higher: slow ends of jobs are waited for.
 */
const goneHolds = 4;
const gone_ms_min = 120_000;

export function decideLost(question: LossQuestion): LossDecision {
  const { now_ms, launches, cluster, hold_ms } = question;
  const lost: LostLaunch[] = [];
  const suspected = new Map<string, Suspicion>();
  if (cluster.silent > silent_share_max * cluster.nodes) return { lost, suspected };
  for (const launch of launches) {
    const { launch_id } = launch;
    const silent = launch.nodes.filter(({ agent, scheduler }) => agent === 'gone' && scheduler === 'silent');
    const gone = launch.nodes.filter(
      ({ agent, scheduler, has_ended }) =>
        launch.runs && agent === 'gone' && scheduler !== 'unknown' && !has_ended,
    );
    const before = question.suspected.get(launch_id);
    const now: Suspicion = {};
    if (silent.length > 0) now.lost_since_ms = Math.min(now_ms, before?.lost_since_ms ?? now_ms);
    if (gone.length > 0) now.gone_since_ms = Math.min(now_ms, before?.gone_since_ms ?? now_ms);
    if (silent.length > 0 || gone.length > 0) suspected.set(launch_id, now);
    const lost_ms = now_ms - (now.lost_since_ms ?? now_ms);
    const gone_ms = now_ms - (now.gone_since_ms ?? now_ms);
    if (silent.length > 0 && lost_ms >= hold_ms) {
      const nodes = namesOf(silent);
      lost.push({ launch_id, nodes, because: describeLoss(nodes, lost_ms) });
    } else if (gone.length > 0 && gone_ms >= Math.max(gone_ms_min, goneHolds * hold_ms))
      lost.push({ launch_id, nodes: [], because: describeGone(namesOf(gone), gone_ms) });
  }
  return { lost, suspected };
}

function namesOf(signs: readonly NodeSigns[]): string[] {
  return signs.map(({ node }) => node);
}

function describeGone(nodes: readonly string[], lasted_ms: number): string {
  const who =
    nodes.length === 1 ? `the agent on node ${nodes[0]} has` : `the agents on nodes ${nodes.join(', ')} have`;
  const lasted_s = Math.round(lasted_ms / 1000);
  return `${who} been gone from the mesh for ${lasted_s} s without a word, and for Slurm the job runs on`;
}

function describeLoss(nodes: readonly string[], lasted_ms: number): string {
  const which = nodes.length === 1 ? `node ${nodes[0]} is lost` : `nodes ${nodes.join(', ')} are lost`;
  const lasted_s = Math.round(lasted_ms / 1000);
  return `${which}: Slurm gets no answer, and the agent left the mesh; so for ${lasted_s} s`;
}
