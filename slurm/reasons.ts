/** Why a job waits: Slurm's reason words (https://slurm.schedmd.com/job_reason_codes.html) in plain ones. */

export interface ReasonExplanation {
  /** The word alone, without what Slurm appends to it. */
  reason: string;
  /** What it means, one sentence. */
  meaning: string;
  /** What a person can do; absent where waiting is all there is. */
  advice?: string;
  /** The job will not start unless someone changes something. */
  stuck: boolean;
}

type Entry = readonly [meaning: string, advice?: string, stuck?: 'stuck'];

const ask = 'ask the site’s support';
const release = 'release it with: scontrol release JOBID';

const exact: Readonly<Record<string, Entry>> = {
  None: ['Slurm has not looked at it yet'],
  Priority: ['jobs with higher priority are ahead of it'],
  Resources: ['it is next, but the nodes it needs are busy'],
  BeginTime: ['its start time has not come; requeued jobs wait about two minutes'],
  Dependency: ['it waits for another job'],
  DependencyNeverSatisfied: [
    'the job it waits for ended in another way',
    'cancel it and deploy again',
    'stuck',
  ],
  JobArrayTaskLimit: ['as many tasks of its array run as it allows at once'],
  JobHeldUser: ['its owner holds it', release, 'stuck'],
  JobHeldAdmin: ['an administrator holds it', ask, 'stuck'],
  JobHoldMaxRequeue: [
    'it was requeued too often and is held',
    `find out why it ended, then ${release}`,
    'stuck',
  ],
  Cleaning: ['its last run is still being cleaned up on the nodes'],
  PartitionDown: [
    'its partition takes jobs but starts none now',
    'choose another partition, or wait for the site',
  ],
  PartitionInactive: ['its partition is closed', 'choose another partition', 'stuck'],
  PartitionNodeLimit: [
    'it asks for more nodes than its partition allows, or its nodes are down',
    'ask for fewer nodes',
    'stuck',
  ],
  PartitionTimeLimit: ['it asks for more time than its partition allows', 'lower time_limit', 'stuck'],
  PartitionConfig: [
    'what it asks for does not fit its partition',
    'compare nodes, CPUs and time_limit with: scontrol show partition',
    'stuck',
  ],
  BadConstraints: [
    'no node can ever satisfy what it asks for',
    'ask for less per node, or fewer features',
    'stuck',
  ],
  NodeDown: ['a node it needs is down', 'name no nodes, or wait until it is back'],
  ReqNodeNotAvail: [
    'a node it needs is down, drained, or reserved (often for a maintenance that begins before the job would end)',
    'lower time_limit so that it ends before the maintenance; see: scontrol show reservation',
  ],
  Reservation: ['its reservation has not begun'],
  ReservationDeleted: ['its reservation was deleted', 'deploy again without the reservation', 'stuck'],
  InvalidAccount: ['its account is not valid', 'set slurm.defaults.account and deploy again', 'stuck'],
  InvalidQOS: ['its QoS is not valid', 'set slurm.defaults.qos and deploy again', 'stuck'],
  AccountNotAllowed: [
    'its account may not use this partition',
    'choose another account or partition',
    'stuck',
  ],
  QOSNotAllowed: ['its QoS may not be used with this account or partition', 'choose another QoS', 'stuck'],
  AccountingPolicy: ['a limit of its account or QoS is reached'],
  Licenses: ['it waits for a licence'],
  ReqNodeReserved: ['a node it names is reserved'],
  FrontEndDown: ['the front-end node is down'],
  SchedDefer: ['it asked to start at once and Slurm defers such jobs'],
  NodesBusy: ['the nodes it needs are busy'],
  SystemFailure: ['Slurm or a node failed', ask],
  JobLaunchFailure: [
    'it could not be started: often the log folder, the working folder or the user is missing on the node, or the log folder is full (a quota)',
    'check your quota (quota -s), and that state_dir is on a filesystem that compute nodes see',
    'stuck',
  ],
  // All that 20.11 says in both cases.
  NonZeroExitCode: [
    'it failed; where it left no log, it could not be started: the log folder is missing on the node, or full (a quota)',
    'read the log of the job; where there is none: check your quota (quota -s), and that compute nodes see state_dir',
  ],
  Prolog: ['the site’s prolog still prepares the nodes'],
  ProlongedCleanup: ['its last run is still being cleaned up'],
  'launch failed requeued held': [
    'it failed to start, was put back and is held',
    `find out why in the job’s log, then ${release}`,
    'stuck',
  ],
  BurstBufferOperation: ['a burst-buffer operation failed', ask, 'stuck'],
  BurstBufferResources: ['it waits for space in a burst buffer'],
  BurstBufferStageIn: ['its burst buffer is being filled'],
  PowerNotAvail: ['starting it would exceed the power that is available'],
  PowerReserved: ['power is reserved for others'],
  MaxPowerCap: ['its power cap is reached'],
  DeadLine: ['it can no longer end before its deadline', 'deploy again without a deadline', 'stuck'],
  NetworkTopology: ['no group of nodes near enough to each other is free'],
  Federation: ['another cluster of the federation starts it'],
  ReservationInvalid: ['its reservation is not valid', 'deploy again without the reservation', 'stuck'],
};

/** Families of words; the first match counts. */
const families: readonly (readonly [RegExp, Entry])[] = [
  [
    /^(Assoc|QOS)(Grp|Max).*Submit.*/,
    ['as many jobs as allowed are in the queue', 'stop deployments that are no longer needed'],
  ],
  [
    /^AssocGrp.*(Minutes)/,
    [
      'the budget of its account is used up, or would be by the jobs that run',
      'use another account',
      'stuck',
    ],
  ],
  [
    /^AssocGrp|^AssocJobLimit|^AssociationJobLimit/,
    ['its account has as much running as it may have at once'],
  ],
  [
    /^(Assoc|QOS)MaxWallDurationPerJob|^QOSTimeLimit|^AssociationTimeLimit|^AssocTimeLimit/,
    ['it asks for more time than its account or QoS allows', 'lower time_limit', 'stuck'],
  ],
  [
    /^(QOS|Assoc)?Max.*PerUser|^QOSUsageThreshold|^QOSJobLimit/,
    ['you have as much running as you may have at once'],
  ],
  [/^(QOS)?Max.*PerAccount|^MaxJobsPerAccount/, ['its account has as much running as it may have at once']],
  [
    /^(QOS|Assoc)Max.*Per(Job|Node)/,
    ['it asks for more than one job may have', 'ask for less, or use another account or QoS', 'stuck'],
  ],
  [/^QOSMin/, ['it asks for less than its QoS wants at least', 'use another QoS', 'stuck']],
  [/^QOSGrp.*(Minutes)/, ['the budget of its QoS is used up', 'use another QoS', 'stuck']],
  [/^QOSGrp|^QOSResourceLimit/, ['all users of its QoS together have as much running as they may']],
  [/^AssocMax/, ['its account has as much running as it may have at once']],
  [/^QOSMax/, ['a maximum of its QoS is reached']],
  [
    /^PartNodeLimit|^PartitionNodeLimit/,
    ['it asks for more nodes than its partition allows', 'ask for fewer nodes', 'stuck'],
  ],
  [/^Nodes required for job are DOWN/i, exact.ReqNodeNotAvail!],
];

/** Explains a reason as squeue prints it, with what some versions append (`ReqNodeNotAvail, UnavailableNodes:…`). */
export function explainReason(raw: string): ReasonExplanation {
  const text = raw.trim().replace(/^\((.*)\)$/, '$1');
  const spaced = text.replaceAll('_', ' ');
  const reason = exact[spaced] === undefined ? (text.split(/[,:\s]/, 1)[0] ?? text) : spaced;
  const entry = exact[reason] ?? families.find(([pattern]) => pattern.test(text))?.[1];
  if (entry === undefined)
    return {
      reason,
      meaning: `Slurm says ${text}`,
      advice: 'see https://slurm.schedmd.com/job_reason_codes.html',
      stuck: false,
    };
  const [meaning, advice, stuck] = entry;
  return { reason, meaning, advice, stuck: stuck === 'stuck' };
}
