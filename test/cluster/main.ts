/** `npm run cluster -- up|down|status|shell`: the private Slurm cluster of the tests, for people. */
import { spawn } from 'node:child_process';
import { prepareBase, readState, startCluster, stopCluster } from './cluster.ts';
import { ensureSlurmInstalled } from './install.ts';
import { isAlive } from './processes.ts';

const usage = `usage: npm run cluster -- up|down|status|shell [--name NAME]

  up      install Slurm if it is missing (Debian, root), start the cluster, print how to reach it as JSON
  status  print the same JSON and whether each daemon lives; exit code 1 when the cluster is not up
  shell   open a shell of the ordinary user on the cluster's login node (starts the cluster if needed)
  down    cancel all jobs and stop every process of the cluster
`;

const say = (line: string): void => {
  process.stderr.write(`${line}\n`);
};

async function main(argv: readonly string[]): Promise<number> {
  const at = argv.indexOf('--name');
  const name = at < 0 ? 'default' : (argv[at + 1] ?? '');
  const [command, ...rest] = at < 0 ? argv : argv.filter((_, index) => index !== at && index !== at + 1);
  if (command === undefined || rest.length > 0) return wrongUsage();
  switch (command) {
    case 'up': {
      if (!(await install())) return 12;
      const cluster = await startCluster(name);
      process.stdout.write(`${JSON.stringify(cluster.state, null, 2)}\n`);
      say(`up: a shell on it: npm run cluster -- shell${at < 0 ? '' : ` --name ${name}`}`);
      return 0;
    }
    case 'status': {
      const state = readState(prepareBase(name));
      if (state === undefined) {
        say(`cluster ${name} is not up`);
        return 1;
      }
      const daemons = state.daemons.map((daemon) => ({ ...daemon, alive: isAlive(daemon.pid) }));
      process.stdout.write(`${JSON.stringify({ ...state, daemons }, null, 2)}\n`);
      return daemons.every((daemon) => daemon.alive) ? 0 : 1;
    }
    case 'shell': {
      if (!(await install())) return 12;
      const cluster = await startCluster(name);
      say(`a shell of ${cluster.user.name} on cluster ${name}; try sinfo. The cluster stays up afterwards.`);
      const [program = '', ...args] = cluster.argvAsUser(['/bin/bash', '--login']);
      const env = { ...cluster.env, TERM: process.env.TERM ?? 'dumb' };
      const child = spawn(program, args, { env, cwd: cluster.user.home, stdio: 'inherit' });
      return new Promise((resolve) => child.once('exit', (code) => resolve(code ?? 1)));
    }
    case 'down': {
      const report = await stopCluster(name);
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

async function install(): Promise<boolean> {
  const installation = await ensureSlurmInstalled(say);
  if (!installation.ready) say(installation.missing);
  return installation.ready;
}

process.exitCode = await main(process.argv.slice(2));
