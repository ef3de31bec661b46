/** Where Slurm's commands run: on this machine, or (by another implementation) over ssh. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { HpcserveError } from '../spec/errors/error.ts';

export interface CommandOptions {
  /** Written to the command's standard input. */
  input?: string;
  timeout_ms: number;
}

export interface CommandResult {
  stdout: string;
  stderr: string;
  /** Exit status; a command ended by a signal has 128 plus its number. */
  code: number;
}

export interface CommandRunner {
  /**
   * Runs a command, never through a shell.
   * @throws E_SLURM_COMMAND_MISSING when there is no such program, E_SLURM_UNREACHABLE when it does not end in time.
   */
  run(argv: readonly string[], options: CommandOptions): Promise<CommandResult>;
}

/**
 * Variables that Slurm's commands need. Everything else stays out: sbatch copies its environment into the
 * job, where secrets have no business, and SBATCH_* or SLURM_* of an enclosing job would silently override
 * the script's own options.
 */
const neededVariables = new Set([
  'HOME',
  'USER',
  'LOGNAME',
  'SHELL',
  'PATH',
  'LANG',
  'LANGUAGE',
  'SLURM_CONF',
  'SLURM_CLUSTERS',
  'KRB5CCNAME',
  'LD_LIBRARY_PATH',
  'MODULEPATH',
  'MODULESHOME',
  'BASH_FUNC_module%%',
  'BASH_FUNC_ml%%',
]);

/** The part of `environment` that is handed to Slurm's commands, and by them to jobs. */
export function slurmCommandEnvironment(
  environment: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(environment).filter(
      (entry): entry is [string, string] =>
        entry[1] !== undefined && (neededVariables.has(entry[0]) || /^(LC|LMOD)_/.test(entry[0])),
    ),
  );
}

export interface LocalRunnerOptions {
  /** Environment to take from. Default: this process's. */
  environment?: Readonly<Record<string, string | undefined>>;
  /** Folder of Slurm's commands where they are not on PATH. */
  bin_dir?: string;
  /** slurm.conf, where the commands do not find it. */
  conf_file?: string;
  cwd?: string;
}

/** Runs commands on this machine. */
export class LocalCommandRunner implements CommandRunner {
  /** What the commands see. */
  readonly environment: Readonly<Record<string, string>>;
  readonly #cwd: string | undefined;

  constructor(options: LocalRunnerOptions = {}) {
    const environment = slurmCommandEnvironment(options.environment ?? process.env);
    if (options.bin_dir !== undefined)
      environment.PATH = [options.bin_dir, environment.PATH ?? '/usr/bin:/bin'].join(':');
    if (options.conf_file !== undefined) environment.SLURM_CONF = join(options.conf_file);
    this.environment = environment;
    this.#cwd = options.cwd;
  }

  run(argv: readonly string[], options: CommandOptions): Promise<CommandResult> {
    const [program = '', ...args] = argv;
    return new Promise((resolve, reject) => {
      const child = execFile(
        program,
        args,
        {
          env: this.environment,
          cwd: this.#cwd,
          timeout: options.timeout_ms,
          killSignal: 'SIGKILL',
          maxBuffer: 256 * 1024 * 1024,
          encoding: 'utf8',
        },
        (error, stdout, stderr) => {
          if (error === null) return resolve({ stdout, stderr, code: 0 });
          if (error.code === 'ENOENT') return reject(commandMissing(program, error));
          if (error.killed && error.signal === 'SIGKILL')
            return reject(commandTimedOut(argv, options.timeout_ms, stderr));
          if (typeof error.code === 'number') return resolve({ stdout, stderr, code: error.code });
          if (error.signal) return resolve({ stdout, stderr, code: 128 });
          return reject(error);
        },
      );
      // A command that ends before it has read its input closes the pipe; its exit status says why.
      child.stdin?.on('error', () => {});
      child.stdin?.end(options.input ?? '');
    });
  }
}

export function commandMissing(program: string, cause?: unknown): HpcserveError {
  return new HpcserveError('E_SLURM_COMMAND_MISSING', {
    what: `the command ${program} was not found`,
    try: [
      'run this on a login node of the cluster, or load the module that brings Slurm',
      'or set slurm.bin_dir in the site config',
      'or use the local site: --site local',
    ],
    details: { program },
    cause,
  });
}

function commandTimedOut(argv: readonly string[], timeout_ms: number, stderr: string): HpcserveError {
  const words = stderr.trim();
  return new HpcserveError('E_SLURM_UNREACHABLE', {
    what: `${argv.find((word) => !word.includes('=') && word !== 'env') ?? 'a Slurm command'} gave no answer within ${timeout_ms / 1000} s`,
    because: words === '' ? 'it printed nothing meanwhile' : words.split('\n'),
    details: { argv: [...argv], timeout_ms },
  });
}
