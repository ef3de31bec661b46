/** The options that the probe reads out of vLLM's sources are those that its own parser has. */
import { execFileSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { adapterOf } from '../../../agent/adapters/index.ts';
import { vllmPython } from '../../engines/environments.ts';

const { found: python, lacking } = vllmPython();

const program = `
import importlib, json
for name in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
    try:
        module = importlib.import_module(name)
        break
    except ModuleNotFoundError:
        pass
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = module.make_arg_parser(FlexibleArgumentParser())
print("options " + json.dumps([each for action in parser._actions for each in action.option_strings]))
`;

describe.skipIf(lacking !== '')(`vLLM's options${lacking}`, () => {
  test('are all known, and hardly any beside them', () => {
    const ask = (args: string[]): string =>
      execFileSync(python!, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    const line = ask(['-c', program])
      .split('\n')
      .find((each) => each.startsWith('options '))!;
    const own = (JSON.parse(line.slice(8)) as string[]).filter((each) => each.startsWith('--'));
    const [, , ...rest] = adapterOf('vllm').probeArgv!([]);
    const probed = adapterOf('vllm').parseProbe!(ask(['-c', ...rest]))!;
    const known = probed.options!;
    expect(own.length).toBeGreaterThan(300);
    expect(own.filter((each) => !known.has(each) && !known.has(each.replace(/^--no-/, '--')))).toEqual([]);
    // Fields of the engine's arguments that it keeps to itself.
    expect([...known].filter((each) => !own.includes(each)).length).toBeLessThan(10);
    expect(probed.options_by).toBe('sources');
  }, 180_000);
});
