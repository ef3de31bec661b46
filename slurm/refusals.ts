/** sbatch's refusals as errors: Slurm's words, the place that set the refused option, what to change. */
import { HpcserveError } from '../spec/errors/error.ts';
import type { ErrorCode } from '../spec/errors/registry.ts';
import type { Directive } from '../spec/slurm-types.ts';

interface Refusal {
  /** In Slurm's words (common/slurm_errno.c and the option parser), any of 20.11 to 25.x. */
  pattern: RegExp;
  code: ErrorCode;
  what: string;
  /** Options that can be at fault, most likely first. */
  options: readonly string[];
  advice?: string;
}

const size = ['gres', 'gpus-per-node', 'gpus', 'mem', 'cpus-per-task', 'nodes', 'constraint', 'partition'];

/** The first match counts: precise words stand before general ones. */
const refusals: readonly Refusal[] = [
  {
    pattern: /invalid entry for --clusters?|no cluster '.*' known|use 'sacctmgr list clusters'/i,
    code: 'E_SLURM_CLUSTER',
    what: 'Slurm knows no such cluster, or it is not up',
    options: ['clusters'],
  },
  {
    pattern:
      /could not establish a configuration source|unable to process configuration file|cannot stat file|ClusterName needs to be specified|lookup failure of configuration|failed to fetch (remote )?config/i,
    code: 'E_SLURM_UNREACHABLE',
    what: 'Slurm has no configuration here, so its controller cannot be found',
    options: [],
    advice:
      'run this on a login node of the cluster; or name slurm.conf as slurm.conf_file of the site config, or in $SLURM_CONF',
  },
  {
    pattern: /talking to the database|open persistent connection|PersistInit/i,
    code: 'E_SLURM_UNREACHABLE',
    what: 'Slurm’s accounting (slurmdbd) cannot be reached',
    options: [],
  },
  {
    pattern:
      /unable to contact slurm controller|connection refused|socket timed out|zero bytes were transmitted|unable to establish controller|controller not responding|slurm backup controller in standby|protocol authentication error|munge.*(fail|error|socket)|auth.*credential|temporarily unable to accept job|resource temporarily unavailable|communication connection failure|transport endpoint|connection timed out|no route to host|network is unreachable/i,
    code: 'E_SLURM_UNREACHABLE',
    what: 'Slurm’s controller cannot be reached',
    options: [],
  },
  {
    pattern: /job arrays?\b|--array specification/i,
    code: 'E_SLURM_ARRAY',
    what: 'Slurm refused the job array',
    options: ['array'],
  },
  {
    pattern:
      /(QOS|Assoc)\w*Submit\w*|MaxSubmitJobs\w*|violates accounting\/QOS policy|job submit limit|maximum (number of )?jobs|(QOS|Assoc)(Max|Grp|Min)\w+/i,
    code: 'E_SLURM_LIMIT',
    what: 'Slurm refused the job because a limit of your account or QoS is reached',
    options: ['account', 'qos', 'partition', 'time', ...size],
  },
  {
    pattern: /invalid account|account.*(not|in)valid|must specify (an )?account|no (default )?account/i,
    code: 'E_SLURM_ACCOUNT',
    what: 'Slurm refused the account',
    options: ['account', 'partition'],
  },
  {
    pattern: /group not permitted|access\/permission denied|user.*not (permitted|allowed)|not authori[sz]ed/i,
    code: 'E_SLURM_NOT_ALLOWED',
    what: 'Slurm does not let you use what was asked for',
    options: ['partition', 'account', 'qos', 'reservation'],
  },
  {
    pattern: /invalid partition|partition.*(inactive|drain|not available|down)|no partition specified/i,
    code: 'E_SLURM_PARTITION',
    what: 'Slurm refused the partition',
    options: ['partition'],
  },
  {
    pattern: /invalid qos|qos.*(not permitted|not allowed)|must specify .*qos/i,
    code: 'E_SLURM_QOS',
    what: 'Slurm refused the quality of service',
    options: ['qos', 'partition', 'account'],
  },
  {
    pattern: /reservation/i,
    code: 'E_SLURM_RESERVATION',
    what: 'Slurm refused the reservation',
    options: ['reservation'],
  },
  {
    pattern: /time limit is invalid|--time specification|time.?limit.*(exceed|missing)|must specify .*time/i,
    code: 'E_SLURM_TIME_LIMIT',
    what: 'Slurm refused the time limit',
    options: ['time', 'partition', 'qos'],
  },
  {
    pattern: /invalid feature|--constraint specification/i,
    code: 'E_SLURM_FEATURE',
    what: 'Slurm knows no node with these features',
    options: ['constraint', 'partition'],
  },
  {
    pattern: /generic resource|invalid gres|trackable resource|\bTRES\b.*(invalid|specification)/i,
    code: 'E_SLURM_GRES',
    what: 'Slurm refused the request for GPUs',
    options: ['gres', 'gpus-per-node', 'gpus'],
  },
  {
    pattern: /invalid node name|--(nodelist|exclude) specification|node names? .*invalid/i,
    code: 'E_SLURM_NODE_NAME',
    what: 'Slurm knows no node of this name',
    options: ['nodelist', 'exclude'],
  },
  {
    pattern:
      /node configuration is not available|node count specification|memory specification|partition configuration not available|required node not available|more processors requested|cpu count .*(invalid|not)|nodes? busy/i,
    code: 'E_SLURM_NODE_CONFIG',
    what: 'Slurm has no nodes that fit what one node is asked for',
    options: size,
  },
  {
    pattern:
      /unrecognized option|invalid option|invalid --?[a-z-]+ specification|requires an argument|ambiguous|--[a-z-]+.*invalid|bad value/i,
    code: 'E_SLURM_OPTION',
    what: 'sbatch does not take an option of the script',
    options: [],
  },
];

/**
 * The error for a submission that Slurm refused.
 * @param stderr what sbatch printed
 * @param directives the options of the script, each with the place that set it
 */
export function refusalError(stderr: string, directives: readonly Directive[]): HpcserveError {
  const words = refusalLines(stderr);
  const text = words.join('\n');
  const refusal = refusals.find((candidate) => candidate.pattern.test(text));
  const named = optionsNamedIn(text);
  const suspects = [...named, ...(refusal?.options ?? [])];
  const culprits = [...new Set(suspects)].flatMap((name) =>
    directives.filter((directive) => directive.name === name),
  );
  const because = [
    ...(words.length > 0 ? words : ['sbatch gave no reason']),
    ...culprits.map(
      (directive) =>
        `--${directive.name}${directive.value === undefined ? '' : `=${directive.value}`} was set by ${directive.source}`,
    ),
  ];
  return new HpcserveError(refusal?.code ?? 'E_SLURM_REFUSED', {
    what: refusal?.what ?? 'Slurm refused the job',
    because,
    try: refusal?.advice,
    details: {
      slurm: words,
      options: culprits.map(({ name, value, source }) => ({ name, value, source })),
      retryable: refusal?.code === 'E_SLURM_UNREACHABLE',
    },
  });
}

/** Slurm's words without the name of the command in front: `sbatch: error: …`, `allocation failure: …`. */
export function refusalLines(stderr: string): string[] {
  const words = stderr
    .split('\n')
    .map((line) =>
      line
        .trim()
        .replace(/^(sbatch|srun|squeue|scancel|sinfo|scontrol|sacct):\s*/, '')
        .replace(/^(error|fatal):\s*/, '')
        .replace(/^Batch job submission failed:\s*/, '')
        .replace(/^allocation failure:\s*/, ''),
    )
    .filter((line) => line !== '' && !/^Try "sbatch --help"/.test(line));
  // A policy of the site (job_submit) that refuses in its own words has no error of Slurm's.
  const told = words.filter((line) => !/^unspecified error$/i.test(line));
  return [...new Set(told.length > 0 ? told : words)];
}

function optionsNamedIn(text: string): string[] {
  return [...text.matchAll(/--([a-z][a-z-]+)/g)].map((match) => match[1]!);
}
