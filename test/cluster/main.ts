/** `npm run cluster -- up|down|status|shell`: the private Slurm cluster of the tests, for people. */
import { spawn } from 'node:child_process';
import { parseArgs } from 'node:util';
import { type ClusterOptions, prepareBase, readState, startCluster, stopCluster } from './cluster.ts';
import { ensureSlurmInstalled } from './install.ts';
import { type ClusterShape, clusterShapes } from './layout.ts';
import { isAlive } from './processes.ts';
import { userShell } from './shell.ts';
import { ensureSlurmRelease, slurmRelease, slurmReleases } from './slurm-folder.ts';

const usage = `usage: npm run cluster -- up|down|status|shell [--name NAME] [--slurm RELEASE] [--shape SHAPE]

  up      install Slurm if it is missing (Debian, root), start the cluster, print how to reach it as JSON
  status  print the same JSON and whether each daemon lives; exit code 1 when the cluster is not up
  shell   open a shell of the ordinary user on the cluster's login node (starts the cluster if needed), with
          hpcserve on the PATH, HPCSERVE_SITE set, and a model.yaml with its model in the folder it begins in
  down    cancel all jobs and stop every process of the cluster

  --slurm RELEASE  another Slurm than that of this machine: ${slurmReleases.join(', ')}; taken from Debian by debootstrap (root)
  --shape SHAPE    another kind of site: ${clusterShapes.join(', ')}
`;

const say = (line: string): void => {
  process.stderr.write(`${line}\n`);
};

interface Asked {
  command: string | undefined;
  name: string;
  options: ClusterOptions;
}

/** @throws Error where something was typed that is none of it */
function parse(argv: string[]): Asked {
  const { values, positionals } = parseArgs({
    args: argv,
    options: { name: { type: 'string' }, slurm: { type: 'string' }, shape: { type: 'string' } },
    allowPositionals: true,
  });
  const [command, ...rest] = positionals;
  if (rest.length > 0) throw new Error(`unexpected: ${rest.join(' ')}`);
  const options: ClusterOptions = {};
  if (values.slurm !== undefined) options.slurm = slurmRelease(values.slurm);
  if (values.shape !== undefined) options.shape = shapeNamed(values.shape);
  return { command, name: values.name ?? 'default', options };
}

function shapeNamed(text: string): ClusterShape {
  const known = clusterShapes.find((shape) => shape === text);
  if (known === undefined) throw new Error(`no shape ${text}; there are ${clusterShapes.join(', ')}`);
  return known;
}

async function main(argv: string[]): Promise<number> {
  let asked: Asked;
  try {
    asked = parse(argv);
  } catch (error) {
    say((error as Error).message);
    return wrongUsage();
  }
  const { command, name, options } = asked;
  switch (command) {
    case 'up': {
      if (!(await install(options))) return 12;
      const cluster = await startCluster(name, options);
      process.stdout.write(`${JSON.stringify(cluster.state, null, 2)}\n`);
      say(`up: a shell on it: npm run cluster -- shell ${argv.slice(1).join(' ')}`.trim());
      return 0;
    }
    case 'status': {
      const state = readState(prepareBase(name, options.shape));
      if (state === undefined) {
        say(`cluster ${name} is not up`);
        return 1;
      }
      const daemons = state.daemons.map((daemon) => ({ ...daemon, alive: isAlive(daemon.pid) }));
      process.stdout.write(`${JSON.stringify({ ...state, daemons }, null, 2)}\n`);
      return daemons.every((daemon) => daemon.alive) ? 0 : 1;
    }
    case 'shell': {
      if (!(await install(options))) return 12;
      const cluster = await startCluster(name, options);
      const { argv: shell, folder, environment } = userShell(cluster);
      say(
        `a shell of ${cluster.user.name} on cluster ${name}, with hpcserve and, in ${folder}, a model: try sinfo, or hpcserve plan model.yaml. The cluster stays up afterwards.`,
      );
      const [program = '', ...args] = cluster.argvAsUser(shell);
      const env = { ...cluster.env, ...environment, TERM: process.env.TERM ?? 'dumb' };
      const child = spawn(program, args, { env, cwd: folder, stdio: 'inherit' });
      return new Promise((resolve) => child.once('exit', (code) => resolve(code ?? 1)));
    }
    case 'down': {
      const report = await stopCluster(name, options.shape);
      for (const found of report.killed) say(`had to kill ${found.pid}: ${found.command}`);
      say(report.was_up ? `cluster ${name} is down` : `cluster ${name} was not up`);
      return 0;
    }
    default:
      return wrongUsage();
  }
}

function wrongUsage(): number {
  process.stderr.write(usage);
  return 2;
}

async function install({ slurm }: ClusterOptions): Promise<boolean> {
  // Munge, and whatever else is not Slurm itself, is that of this machine.
  const own = await ensureSlurmInstalled(say);
  const installation = own.ready && slurm !== undefined ? await ensureSlurmRelease(slurm, say) : own;
  if (!installation.ready) say(installation.missing);
  return installation.ready;
}

process.exitCode = await main(process.argv.slice(2));
