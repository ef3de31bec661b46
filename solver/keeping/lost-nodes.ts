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
 * An agent that alone is gone may have crashed: its job ends by itself. A node that alone is silent still serves.
 */

/** What is known of one node of a job. */
export interface NodeSigns {
  node: string;
  /** As the mesh has it; `unknown`: it never spoke, or nobody can be asked. */
  agent: 'speaks' | 'gone' | 'unknown';
  /** Whether the scheduler gets answers from the node. */
  scheduler: 'hears' | 'silent' | 'unknown';
}

export interface WatchedLaunch {
  launch_id: string;
  nodes: readonly NodeSigns[];
}

export interface LostLaunch {
  launch_id: string;
  nodes: string[];
  because: string;
}

export interface LossQuestion {
  now_ms: number;
  /** Launches whose jobs run. */
  launches: readonly WatchedLaunch[];
  /** Nodes of the whole cluster, and those of them from which the scheduler gets no answer. */
  cluster: { nodes: number; silent: number };
  /** Since when both signs were seen, Unix ms, by launch; as the last decision returned it. */
  suspected: ReadonlyMap<string, number>;
  /** How long both signs must last, ms. Lower: replaced sooner; higher: nodes that come back keep their job. */
  hold_ms: number;
}

export interface LossDecision {
  lost: LostLaunch[];
  suspected: ReadonlyMap<string, number>;
}

/** Where more of the cluster than this share is silent, its network or its controller is at fault, not the nodes. */
const silent_share_max = 0.5;

export function decideLost(question: LossQuestion): LossDecision {
  const { now_ms, launches, cluster, hold_ms } = question;
  const lost: LostLaunch[] = [];
  const suspected = new Map<string, number>();
  if (cluster.silent > silent_share_max * cluster.nodes) return { lost, suspected };
  for (const { launch_id, nodes } of launches) {
    const silent = nodes.filter(({ agent, scheduler }) => agent === 'gone' && scheduler === 'silent');
    if (silent.length === 0) continue;
    const since_ms = Math.min(now_ms, question.suspected.get(launch_id) ?? now_ms);
    suspected.set(launch_id, since_ms);
    if (now_ms - since_ms < hold_ms) continue;
    const names = silent.map(({ node }) => node);
    lost.push({ launch_id, nodes: names, because: describeLoss(names, now_ms - since_ms) });
  }
  return { lost, suspected };
}

function describeLoss(nodes: readonly string[], lasted_ms: number): string {
  const which = nodes.length === 1 ? `node ${nodes[0]} is lost` : `nodes ${nodes.join(', ')} are lost`;
  const lasted_s = Math.round(lasted_ms / 1000);
  return `${which}: Slurm gets no answer, and the agent left the mesh; so for ${lasted_s} s`;
}
