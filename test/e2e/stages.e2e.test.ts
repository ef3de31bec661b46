/** A model in several stages on the local site: typed commands, a real gateway, a process a stage. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { AgentState } from '../../spec/agent-state.ts';
import { demandFileSchema } from '../../spec/demand.ts';
import { type Home, temporaryHome } from '../cli/support.ts';

let home: Home;

beforeAll(async () => {
  home = temporaryHome();
  const synth = ['model', 'synth', 'toy.gguf', '--preset', 'small-llama', '--seed', '1'];
  const { code, stderr } = await home.run(synth);
  expect(code, stderr).toBe(0);
  // Four devices for which cores stand in.
  writeFileSync(
    join(home.folder, 'box.yaml'),
    `name: box
kind: local
state_dir: ~/.hpcserve
node_kinds:
  - name: machine
    count: 1
    cpus: 8
    memory_gb: 8
    interconnect: none
    devices:
      - { kind: cpu, model: Xeon-8480+, count: 4, memory_gb: 1, cores: 1, emulated: cpu }
network: { private_fabric: true }
gateway: { place: login, host: 127.0.0.1 }
`,
  );
}, 60_000);
afterAll(async () => {
  await home.run(['stop', '--all', '--yes', '--site', './box.yaml']);
  home.dispose();
});

function write(cores: number, pipeline: string): void {
  writeFileSync(
    join(home.folder, 'model.yaml'),
    `name: demo
models:
  - name: cut
    source: ./toy.gguf
    replicas: 1
    cpu_threads: ${cores}
    context_tokens: 256
    max_sequences: 4
    batch_invariant: true
    parallel: { pipeline: ${pipeline} }
`,
  );
}

async function answer(url: string, key: string): Promise<string> {
  const response = await fetch(`${url}/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'cut',
      prompt: 'Stages',
      max_tokens: 12,
      temperature: 0,
      ignore_eos: true,
    }),
  });
  const text = await response.text();
  expect(response.status, text).toBe(200);
  return JSON.parse(text).choices[0].text;
}

const answers = new Map<number, string>();

/** So many answers of the model, by its gateway. */
function answersIn(state: string): number | undefined {
  const [file] = filesIn(state, 'demand.json').flatMap(
    (path) => demandFileSchema.safeParse(jsonOf(path)).data ?? [],
  );
  return file?.models.find(({ model }) => model === 'cut')?.answers?.total;
}

/**
 * So many stages of which an agent says what they take, what it says of the queue before the first, and whether it says
 * what each operator of it takes.
 */
function timesIn(state: string): [number | undefined, string, boolean] {
  // Of deployments before, too.
  const agents = filesIn(state, '.state.json').map((path) => jsonOf(path) as AgentState);
  agents.sort((one, other) => one.updated_at_ms - other.updated_at_ms);
  const all = agents.flatMap(({ sessions }) => sessions);
  const times = all.findLast(({ stage_times }) => stage_times?.cut !== undefined)?.stage_times?.cut;
  const { begin, end, waiting, operators_us } = times?.[0] ?? {};
  return [times?.length, typeof waiting, operators_us?.length === end! - begin!];
}

function filesIn(folder: string, end: string): string[] {
  const all = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  return all.filter((path) => path.endsWith(end)).map((path) => join(folder, path));
}

const jsonOf = (path: string): unknown => JSON.parse(readFileSync(path, 'utf8'));

it.each([1, 4])(
  'serves a model in %i stages, with the same answer',
  async (pipeline) => {
    write(pipeline, String(pipeline));
    const deploy = ['deploy', 'model.yaml', '--site', './box.yaml', '--timeout', '60s', '--yes'];
    const { code, stdout, stderr } = await home.run(deploy, { timeout_ms: 90_000 });
    expect(code, stderr).toBe(0);
    const [, url] = /URL +(\S+)/.exec(stdout)!;
    const [, key] = /key +(\S+)/.exec(stdout)!;
    answers.set(pipeline, await answer(url!, key!));
    expect(answers.get(pipeline)).toBe(answers.get(1));
    const told = await home.run(['status', 'demo', '--site', './box.yaml']);
    expect(told.code, told.stderr).toBe(0);
    if (pipeline > 1) {
      expect(told.stdout).toMatch(
        new RegExp(`${pipeline}× Xeon-8480\\+ \\(emulated\\), pipeline ${pipeline}`),
      );
      expect(told.stdout).toMatch(
        /stages of cut-0: operators 0-\d+ on cpu 0 of .*, operators 1?\d-17 on cpu/s,
      );
      expect(told.stdout).not.toContain('not as planned');
    }
    const stop = await home.run(['stop', 'demo', '--yes', '--site', './box.yaml']);
    expect(stop.code, stop.stderr).toBe(0);
  },
  120_000,
);

it('gets other stages by a typed command while it serves, with the same answer', async () => {
  write(4, '{ stages_min: 1, stages_max: 4 }');
  const deploy = ['deploy', 'model.yaml', '--site', './box.yaml', '--timeout', '60s', '--yes'];
  const { code, stdout, stderr } = await home.run(deploy, { timeout_ms: 90_000 });
  expect(code, stderr).toBe(0);
  const [, url] = /URL +(\S+)/.exec(stdout)!;
  const [, key] = /key +(\S+)/.exec(stdout)!;
  const began = await home.run(['status', 'demo', '--site', './box.yaml']);
  expect(began.stdout, began.stderr).toMatch(/stages of cut-0: (operators \d+-\d+ on cpu [0-3] of \S+ ?){4}/);
  for (const stages of [3, 4, 1, 2]) {
    const move = await home.run(['move', 'demo', '--stages', String(stages), '--site', './box.yaml']);
    expect(move.code, move.stderr).toBe(0);
    expect(move.stdout).toMatch(new RegExp(`cut-0 has ${stages} stages?: .* moved.*, no token for \\d+ ms`));
    expect(await answer(url!, key!)).toBe(answers.get(1));
  }
  const told = await home.run(['status', 'demo', '--site', './box.yaml']);
  expect(told.code, told.stderr).toBe(0);
  expect(told.stdout).toMatch(
    /stages of cut-0: operators 0-\d+ on cpu 0 of \S+, operators \d+-17 on cpu [1-3] of/,
  );
  expect(told.stdout).not.toContain('not as planned');
  // What the keeper decides on: answers by their gateway, queues by the coordinator of the stages.
  const state = join(home.folder, '.hpcserve');
  await expect.poll(() => answersIn(state)).toBe(4);
  await expect.poll(() => timesIn(state)[0], { timeout: 30_000 }).toBe(2);
  expect(timesIn(state)[1]).toBe('number');
  await expect.poll(() => timesIn(state)[2], { timeout: 30_000 }).toBe(true);
  const refused = await home.run(['move', 'demo', '--stages', '9', '--site', './box.yaml']);
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain('E_STAGES_IMPOSSIBLE');
  const stop = await home.run(['stop', 'demo', '--yes', '--site', './box.yaml']);
  expect(stop.code, stop.stderr).toBe(0);
}, 180_000);
