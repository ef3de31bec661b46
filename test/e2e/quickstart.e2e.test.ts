import { execFileSync, spawnSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { readGguf } from '../../native/formats/gguf-reader.ts';
import { Vocabulary } from '../../native/vocabulary.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

describe('npm run quickstart', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-quickstart-'));
  const environment = {
    ...process.env,
    HPCSERVE_STATE_DIR: join(folder, 'state'),
    XDG_CONFIG_HOME: join(folder, 'config'),
  };

  afterAll(() => {
    spawnSync(
      process.execPath,
      [join(root, 'cli/hpcserve.mjs'), 'stop', '--all', '--site', 'local', '--yes'],
      { env: environment },
    );
    rmSync(folder, { recursive: true, force: true });
  });

  it('deploys, answers, and prints commands that work as typed', () => {
    const run = spawnSync('npm', ['run', '--silent', 'quickstart'], {
      cwd: root,
      env: environment,
      encoding: 'utf8',
      timeout: 120_000,
    });
    expect(run.status, run.stderr).toBe(0);
    expect(run.stdout).toMatch(/^URL {2}http:\/\/127\.0\.0\.1:\d+\/v1$/m);
    expect(run.stdout).toMatch(/^key {2}hsk-\w+$/m);
    expect(run.stderr).toMatch(/▸ [1-9]\d* chunks arrived/);
    expect(run.stderr).toMatch(/^▸ asking guide: What is hpcserve\?$/m);
    expect(run.stdout).toMatch(/^hpcserve serves language models on Slurm clusters\./m);

    // The printed lines are given to a shell as a person would paste them.
    const line = (start: string): string => {
      const found = run.stdout.split('\n').find((text) => text.trim().startsWith(start));
      expect(found, start).toBeDefined();
      return found!.trim();
    };
    const type = (text: string): string =>
      execFileSync('/bin/sh', ['-c', text], {
        cwd: root,
        env: environment,
        encoding: 'utf8',
        timeout: 60_000,
      });
    const answer = type(line('curl').replace('curl', 'curl -sS'));
    expect(answer).toMatch(/^data: \{/);
    expect(answer.trimEnd().split('\n').at(-1)).toBe('data: [DONE]');
    expect(type(line('npm run --silent hpcserve -- status'))).toContain('serving');
    expect(type(line('npm run --silent hpcserve -- logs')).length).toBeGreaterThan(0);
    type(line('npm run --silent hpcserve -- stop'));
    const left = execFileSync('ps', ['-eo', 'pid,args'], { encoding: 'utf8' })
      .split('\n')
      .filter((text) => text.includes(folder));
    expect(left).toEqual([]);
  }, 180_000);

  it('ends with what doctor says where the first question is not answered', () => {
    const gguf = join(folder, 'broken.gguf');
    execFileSync(process.execPath, [join(root, 'cli/hpcserve.mjs'), 'model', 'synth', gguf, '--seed', '1']);
    // The weights of one letter of the question are no numbers.
    const { tensors } = readGguf(gguf);
    const embedding = tensors.find(({ name }) => name === 'token_embd.weight')!;
    const vocabulary = Vocabulary.open(gguf);
    const letter = vocabulary.tokenize(' hpcserve', { add_special: false }).at(-1);
    vocabulary.close();
    const file = openSync(gguf, 'r+');
    const row_bytes = embedding.size_bytes / embedding.shape[1]!;
    writeSync(
      file,
      Buffer.alloc(row_bytes, 0xff),
      0,
      row_bytes,
      embedding.offset_bytes + letter! * row_bytes,
    );
    closeSync(file);
    const yaml = join(folder, 'model.yaml');
    const example = readFileSync(join(root, 'examples/quickstart.yaml'), 'utf8');
    writeFileSync(yaml, example.replace('./guide.gguf', gguf));
    const run = spawnSync('npm', ['run', '--silent', 'quickstart', '--', yaml], {
      cwd: root,
      env: environment,
      encoding: 'utf8',
      timeout: 120_000,
    });
    expect(run.status, run.stderr).toBe(8);
    expect(run.stderr).toMatch(/▸ no answer came; hpcserve doctor --site local says\nPASSED {3}node: /);
    // Whether the replicas are known to have failed by then, or the keeper is at it, a moment decides.
    expect(run.stderr).toMatch(/^(PASSED|WARNING|FAILED) {2,3}deployment quickstart: /m);
    expect(run.stderr).toMatch(
      /error: the model is deployed, .*E_QUICKSTART\]\n {2}because: .*no numbers.*E_REPLICA_FAILED\]/,
    );
    expect(run.stderr).not.toMatch(/HPCSERVE_DEBUG|^ {4}at /m);
  }, 180_000);
});
