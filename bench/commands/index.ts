/** What a command costs the login node that it is typed on: its own CPU time, on the site `local`. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { Bench, BenchResult } from '../result.ts';

const rounds = 11;
const help_ms_max = 150;
const read_ms_max = 200;

/** Commands that only read, as far as they need no gateway. */
const reading: readonly (readonly string[])[] = [
  ['status'],
  ['doctor'],
  ['sites'],
  ['nodes'],
  ['gateway', 'list'],
  ['config', 'show'],
];

export const commandsBench: Bench = {
  name: 'commands',
  describe: 'own CPU time of -h and of commands that only read, on the site local',
  run: async ({ log }) => {
    const home = mkdtempSync(join(tmpdir(), 'hpcserve-commands-'));
    try {
      const empty_ms = fastest(['-e', '0'], home, []);
      log(`an empty Node process takes ${empty_ms.toFixed(0)} ms`);
      return [['-h'], ...reading].map((argv): BenchResult => {
        const most_ms = argv[0] === '-h' ? help_ms_max : read_ms_max;
        const ours = fastest([join(packageRoot, 'cli/hpcserve.mjs'), ...argv], home, [0]);
        return {
          what: `hpcserve ${argv.join(' ')}, user and system (least of ${rounds})`,
          unit: 'ms',
          ours,
          peer: 'an empty Node process',
          theirs: empty_ms,
          ratio: empty_ms / ours,
          bar: `≤ ${most_ms} ms`,
          holds: ours <= most_ms,
        };
      });
    } finally {
      rmSync(home, { recursive: true, force: true });
    }
  },
};

/**
 * CPU time of the process itself, ms. The least of many: what is beyond it is the machine's, which shares its caches.
 * The first run is not counted, since it finds out what later ones are told.
 */
function fastest(argv: readonly string[], home: string, codes: readonly number[]): number {
  const times: number[] = [];
  for (let round = 0; round <= rounds; round++) {
    const { status, stderr } = spawnSync(process.execPath, ['--import', told, ...argv], {
      cwd: home,
      env: { PATH: process.env.PATH, HOME: home, HPCSERVE_SITE: 'local' },
      encoding: 'utf8',
    });
    if (codes.length > 0 && !codes.includes(status ?? -1)) throw new Error(`${argv.join(' ')}: ${stderr}`);
    const found = /^cpu_us (\d+)$/m.exec(stderr);
    if (!found) throw new Error(`${argv.join(' ')} does not tell its CPU time: ${stderr}`);
    if (round > 0) times.push(Number(found[1]) / 1000);
  }
  return Math.min(...times);
}

/** A module that says at the end what the process took, its children left out. */
const told = `data:text/javascript,${encodeURIComponent(
  "process.on('exit', () => { const { user, system } = process.cpuUsage(); process.stderr.write('cpu_us ' + (user + system) + '\\n'); });",
)}`;
