/**
 * Energy that the processors of this host have taken, by the counters of Linux's powercap (RAPL: Intel, and AMD from
 * family 17h on). `root` stands before /sys, for recorded hosts in tests.
 *
 *   sys/class/powercap/intel-rapl:0/    name package-0   energy_uj   max_energy_range_uj
 *   sys/class/powercap/intel-rapl:0:1/  name dram        the same; `core` and `uncore` are parts of the package
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { systemCode } from '../spec/errors/system-error.ts';
import { parseNumberList } from './number-list.ts';

const powercap = 'sys/class/powercap';
const cpus = 'sys/devices/system/cpu';
/** The control type over MMIO counts the same once more. */
const zoneName = /^intel-rapl:\d+(?::\d+)?$/;

interface Zone {
  file: string;
  /** What the counter goes to before it begins anew, µJ. */
  range_uj: number;
}

/** What counters say of whole packages. A package is told whole or not at all: what else runs on it is in it, too. */
export class RaplCounters {
  readonly #zones: readonly Zone[];
  readonly #last_uj: number[];
  #sum_uj = 0;

  private constructor(zones: readonly Zone[]) {
    this.#zones = zones;
    this.#last_uj = zones.map(readCounter);
  }

  /**
   * Counters of the packages that these cores are.
   * @returns why there are none, in words
   */
  static of(cores: readonly number[], root = '/'): RaplCounters | string {
    const packages = packagesOf(cores, root);
    if (typeof packages === 'string') return packages;
    try {
      const zones = packages.map((id) => zonesOf(id, root));
      const unknown = zones.findIndex((found) => found.length === 0);
      if (unknown >= 0) return `the kernel counts no energy of package ${packages[unknown]} (${powercap})`;
      return new RaplCounters(zones.flat());
    } catch (error) {
      return isRefused(error)
        ? `root alone may read the counters of energy (/${powercap}/*/energy_uj), as is usual since 2020`
        : (error as Error).message;
    }
  }

  /** Joules since this was made. To be read before a counter comes round, which takes minutes. @throws if it cannot */
  read_j(): number {
    for (const [index, zone] of this.#zones.entries()) {
      const now_uj = readCounter(zone);
      const last_uj = this.#last_uj[index]!;
      this.#sum_uj += now_uj >= last_uj ? now_uj - last_uj : now_uj + zone.range_uj - last_uj;
      this.#last_uj[index] = now_uj;
    }
    return this.#sum_uj / 1e6;
  }
}

/** The packages whose cores are all among these, by one of their hardware threads at least; else why there are none. */
function packagesOf(cores: readonly number[], root: string): number[] | string {
  const own = new Set(cores);
  const packages = new Set<number>();
  const others = new Set<number>();
  for (const name of readdirSync(join(root, cpus))) {
    const cpu = /^cpu(\d+)$/.exec(name)?.[1];
    if (cpu === undefined) continue;
    const topology = join(root, cpus, name, 'topology');
    const id = readIfThere(join(topology, 'physical_package_id'));
    // Offline, or in a container that does not tell.
    if (id === undefined) continue;
    const threads = parseNumberList(readIfThere(join(topology, 'thread_siblings_list')) ?? cpu);
    (threads.some((thread) => own.has(thread)) ? packages : others).add(Number(id));
  }
  const [first] = packages;
  if (first === undefined) return 'the kernel does not tell which package its cores are in';
  const shared = [...packages].find((id) => others.has(id));
  if (shared === undefined) return [...packages];
  return `it has a part of the cores of package ${shared}, and energy is counted of a whole package`;
}

/** A package's own counter, of each of its dies, and that of its memory. @throws on one that cannot be read */
function zonesOf(id: number, root: string): Zone[] {
  let names: string[];
  try {
    names = readdirSync(join(root, powercap)).filter((name) => zoneName.test(name));
  } catch (error) {
    if (systemCode(error) === 'ENOENT') return [];
    throw error;
  }
  const own = names.filter((name) => isPackage(readIfThere(join(root, powercap, name, 'name')), id));
  const memory = names.filter(
    (name) =>
      own.some((zone) => name.startsWith(`${zone}:`)) &&
      readIfThere(join(root, powercap, name, 'name')) === 'dram',
  );
  return [...own, ...memory].map((name) => {
    const folder = join(root, powercap, name);
    const zone = {
      file: join(folder, 'energy_uj'),
      range_uj: readCount(join(folder, 'max_energy_range_uj')),
    };
    readCounter(zone);
    return zone;
  });
}

/** `package-0`, or `package-0-die-1`. */
function isPackage(name: string | undefined, id: number): boolean {
  return name === `package-${id}` || (name?.startsWith(`package-${id}-die-`) ?? false);
}

function readCounter({ file }: Zone): number {
  return readCount(file);
}

function readCount(file: string): number {
  const text = readFileSync(file, 'utf8').trim();
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw new Error(`${file} holds no count: ${JSON.stringify(text.slice(0, 40))}`);
}

function readIfThere(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch {
    return undefined;
  }
}

function isRefused(error: unknown): boolean {
  return ['EACCES', 'EPERM'].includes(String(systemCode(error)));
}
