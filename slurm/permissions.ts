/** Accounts, QoS and reservations that a user may name, as slurmdbd and the controller know them. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { ErrorCode } from '../spec/errors/registry.ts';
import { nearest } from '../spec/nearest.ts';
import type { Directive } from '../spec/slurm-types.ts';
import type { ControllerConfig } from './cluster-facts.ts';
import type { SlurmReservation } from './promised-nodes.ts';

/** One line of what slurmdbd allows a user on a cluster. */
export interface Association {
  cluster: string;
  account: string;
  /** The only partition it is for. Absent: all of them. */
  partition?: string;
  qos: string[];
  default_qos?: string;
  /** Its account is charged where a job names none. */
  is_default: boolean;
}

const fields = ['DefaultAccount', 'Cluster', 'Account', 'Partition', 'QOS', 'DefaultQOS'] as const;

/** `sacctmgr` for the associations of a user on a cluster; `parseAssociations` reads it. */
export function associationsArgv(user: string, cluster: string): string[] {
  return [
    'sacctmgr',
    '--noheader',
    '--parsable2',
    'show',
    'user',
    user,
    'withassoc',
    `cluster=${cluster}`,
    `format=${fields.join(',')}`,
  ];
}

/** Lines of other forms (what a wrapper prints) are none. Names cannot hold "|". */
export function parseAssociations(output: string): Association[] {
  return output.split('\n').flatMap((line) => {
    const columns = line.trim().split('|');
    if (columns.length !== fields.length) return [];
    const [fallback, cluster = '', account = '', partition = '', qos = '', default_qos = ''] = columns;
    if (account === '') return [];
    return [
      {
        cluster,
        account,
        partition: partition === '' ? undefined : partition,
        qos: qos.split(',').filter((name) => name !== ''),
        default_qos: default_qos === '' ? undefined : default_qos,
        is_default: account === fallback,
      },
    ];
  });
}

/** A cluster that slurmdbd knows, and so one that commands can be sent to (`slurm.cluster`). */
export interface ClusterName {
  name: string;
  /** Where its controller runs; absent: it is not up, and never was where it was only registered. */
  controller?: string;
  federation?: string;
}

/** `sacctmgr` for all clusters; `parseClusters` reads it. */
export const clustersArgv: readonly string[] = [
  'sacctmgr',
  '--noheader',
  '--parsable2',
  'show',
  'cluster',
  'format=Cluster,ControlHost,Federation',
];

/** Lines of other forms are none. */
export function parseClusters(output: string): ClusterName[] {
  return output.split('\n').flatMap((line) => {
    const columns = line.trim().split('|');
    const [name = '', controller = '', federation = ''] = columns;
    if (columns.length !== 3 || name === '') return [];
    return [
      {
        name,
        controller: controller === '' ? undefined : controller,
        federation: federation === '' ? undefined : federation,
      },
    ];
  });
}

/** What is known of a user's rights; a part that could not be asked is absent, and nothing is refused for it. */
export interface Permissions {
  enforced: { associations: boolean; qos: boolean };
  associations?: Association[];
  reservations?: SlurmReservation[];
}

/** AccountingStorageEnforce: every one of its words but nojobs and nosteps asks for associations (slurm.conf(5)). */
export function enforcedBy({ all, has_accounting }: ControllerConfig): Permissions['enforced'] {
  const words = (has_accounting ? (all.get('AccountingStorageEnforce') ?? '') : '').toLowerCase().split(',');
  const any = (...names: string[]): boolean => names.some((name) => words.includes(name));
  return {
    associations: any('associations', 'limits', 'qos', 'safe', 'wckeys', 'all'),
    qos: any('qos', 'all'),
  };
}

/**
 * Whether Slurm would take what a script names. Says nothing of limits, which only Slurm can judge.
 * @throws E_SLURM_ACCOUNT, E_SLURM_QOS, E_SLURM_RESERVATION with the names there are, before anything is submitted
 */
export function checkPermissions(directives: readonly Directive[], permissions: Permissions): void {
  const { enforced, associations = [], reservations } = permissions;
  const named = (name: string): Directive | undefined =>
    directives.findLast((directive) => directive.name === name && directive.value !== undefined);
  const [account, qos, reservation] = [named('account'), named('qos'), named('reservation')];
  // A user without associations here may be known by other means (a plugin, an operator's rights).
  if (enforced.associations && associations.length > 0) {
    const accounts = unique(associations.map((each) => each.account));
    if (account && !accounts.includes(account.value!.toLowerCase()))
      throw unknown('E_SLURM_ACCOUNT', 'account', account, accounts);
    const charged = associations.filter((each) =>
      account ? each.account === account.value!.toLowerCase() : each.is_default,
    );
    const allowed = unique(charged.flatMap((each) => each.qos));
    // Several are a request from 24.11 on, and each must be allowed.
    const missing = qos?.value?.split(',').find((name) => !allowed.includes(name.toLowerCase()));
    if (enforced.qos && qos && allowed.length > 0 && missing !== undefined)
      throw unknown('E_SLURM_QOS', `QoS of account ${charged[0]!.account}`, qos, allowed, missing);
  }
  if (reservation && reservations) {
    const names = reservations.map(({ name }) => name);
    const wanted = reservation.value!.split(',');
    if (!wanted.some((name) => names.includes(name)))
      throw unknown('E_SLURM_RESERVATION', 'reservation', reservation, names);
  }
}

/**
 * A refusal of the account with what Slurm knows for this user, where the script named none: sites that charge every
 * job to a project refuse it so, and so does Slurm itself where the user is in no project.
 */
export function withKnownAccounts(
  error: HpcserveError,
  directives: readonly Directive[],
  { associations }: Permissions,
): HpcserveError {
  if (associations === undefined || directives.some(({ name }) => name === 'account')) return error;
  const accounts = unique(associations.map(({ account }) => account));
  const none = accounts.length === 0;
  return new HpcserveError(error.code, {
    what: error.message,
    because: [
      ...error.because,
      none
        ? 'Slurm knows no account of yours on this cluster'
        : `no account was named; yours are: ${accounts.join(', ')}`,
    ],
    try: none
      ? 'ask the operators of the cluster to add you to a project'
      : `name the one to charge: --account=${accounts[0]}, slurm.account in model.yaml, or slurm.defaults.account in the site config`,
    details: { ...error.details, known: accounts },
    cause: error.cause,
  });
}

function unknown(
  code: ErrorCode,
  what: string,
  { name, value, source }: Directive,
  names: readonly string[],
  missing = value!,
): HpcserveError {
  const near = nearest(missing, names);
  return new HpcserveError(code, {
    what: `you have no ${what} "${missing}"`,
    because: [
      `--${name}=${value} was set by ${source}`,
      names.length > 0 ? `Slurm knows for you: ${names.join(', ')}` : 'Slurm knows none for you',
    ],
    try: near
      ? `did you mean "${near}"?`
      : names.length > 0
        ? `use one of: ${names.join(', ')}`
        : `leave ${name} out`,
    details: { options: [{ name, value, source }], known: [...names] },
  });
}

function unique(names: readonly string[]): string[] {
  return [...new Set(names)];
}
