import type { Command } from 'commander';

/** Options of every command that makes jobs. */
export function addSlurmOptions(command: Command): Command {
  return command
    .option('--partition <names>', 'partition, or a comma list of which Slurm takes the first')
    .option('--account <name>', 'account to charge')
    .option('--qos <name>', 'quality of service')
    .option('--reservation <name>', 'reservation to run in')
    .option('--constraint <features>', 'node features, as sbatch takes them')
    .option('--time <limit>', 'wall time of a job: MM, HH:MM:SS or D-HH:MM:SS');
}

/** Those that were given, as words again. */
export function slurmArguments(options: Readonly<Record<string, unknown>>): string[] {
  return ['partition', 'account', 'qos', 'reservation', 'constraint', 'time'].flatMap((name) =>
    options[name] === undefined ? [] : [`--${name}`, String(options[name])],
  );
}
