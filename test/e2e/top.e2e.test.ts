/** `hpcserve top` the whole way: workers, agents, gateway, command. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SharedDevice } from '../../control/gateway/admin.ts';
import { type Home, temporaryHome } from '../cli/support.ts';

let home: Home;
const names = ['one', 'two', 'three'];

beforeAll(async () => {
  home = temporaryHome();
  for (const [index, name] of names.entries()) {
    const argv = ['model', 'synth', `${name}.gguf`, '--preset', 'tiny-llama', '--seed', String(index)];
    const { code, stderr } = await home.run(argv);
    expect(code, stderr).toBe(0);
  }
  const model = (name: string): string =>
    `  - { name: ${name}, source: ./${name}.gguf, context_tokens: 512, max_sequences: 4, slo: { tpot_ms: 5000 } }\n`;
  writeFileSync(join(home.folder, 'model.yaml'), `name: demo\nmodels:\n${names.map(model).join('')}`);
  const { code, stderr } = await home.run(['deploy', '--yes', 'model.yaml', '--timeout', '60s']);
  expect(code, stderr).toBe(0);
});
afterAll(async () => {
  await home.run(['stop', '--all', '--yes']);
  home.dispose();
});

describe('hpcserve top', () => {
  it('shows every model of a deployment on its device, and why requests were let in', async () => {
    for (const name of names) {
      const { code, stderr } = await home.run(['chat', name, 'Hello', '--max-tokens', '8']);
      expect(code, stderr).toBe(0);
    }
    const { stdout, code, stderr } = await home.run(['top', '--once', '--json']);
    expect(code, stderr).toBe(0);
    const { devices } = JSON.parse(stdout) as { devices: SharedDevice[] };
    const reports = devices.map(({ report, error }) => {
      expect(error).toBeUndefined();
      return report!;
    });
    const instances = reports.flatMap((report) => report.instances);
    expect(instances.map(({ model }) => model).sort()).toEqual([...names].sort());
    for (const { slo, profile } of instances) {
      expect(slo).toEqual({ tpot_ms: 5000 });
      expect(profile).toMatchObject({ keeps_level: true });
    }
    const admitted = reports.flatMap(({ decisions }) => decisions).filter(({ kind }) => kind === 'admit');
    expect(admitted.map(({ model }) => model).sort()).toEqual([...names].sort());
    expect(admitted[0]!.because).toMatch(/^\w+ takes it as 1st of its batch$/);
  });

  it('draws the same as text, and says where there is nothing to show', async () => {
    const { stdout } = await home.run(['top', '--once']);
    for (const name of names) expect(stdout).toMatch(new RegExp(`^ {2}${name} +·/5000 ms`, 'm'));
    expect(stdout).toMatch(/^ {2}memory {2}[\d.]+ MiB = /m);
    const elsewhere = await home.run(['top', '--once', '--node', 'nowhere']);
    expect(elsewhere.stdout).toBe('no device that models share is in the mesh\n');
  });
});
